"""Tenure's default lifecycle policy once more, in Python: check the arguments, run the one
statement, say what its outcome means. The rules are those of guest/rules, and the same
scenarios hold it to them.

An error of the contract is raised: `Err(case)`, as componentize-py has it. Its value is
what crosses; any other exception is a trap and fails the call.
"""

import re
from typing import List

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import statements
from wit_world.imports.types import (
    RegistryError_Contention,
    RegistryError_InvalidArgument,
    RegistryError_Store,
    StoreError_Contention,
)

MAX_OWNER_CHARS = 64
MAX_TTL_MS = 24 * 60 * 60 * 1000

# Unicode's White_Space. `str.isspace` has four control characters more.
WHITE_SPACE = frozenset(
    map(chr, [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)])
) | frozenset("\u2028\u2029\u202f\u205f\u3000")
# Unicode's general category Cc.
CONTROL = frozenset(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def require(holds: bool, rule: str) -> None:
    if not holds:
        raise Err(RegistryError_InvalidArgument(rule))


def check_owner(owner: str) -> None:
    require(len(owner) <= MAX_OWNER_CHARS, "owner-id must have at most 64 characters")
    require(not WHITE_SPACE.issuperset(owner), "owner-id must not be blank")
    require(CONTROL.isdisjoint(owner), "owner-id must not contain control characters")


def check_ttl(ttl_ms: int) -> None:
    require(ttl_ms > 0, "ttl-ms must be at least 1")
    require(ttl_ms <= MAX_TTL_MS, "ttl-ms must be at most 86400000 (24 hours)")


def check_session_id(session: str) -> None:
    is_uuid = UUID.fullmatch(session) is not None
    require(is_uuid, "session-id must be a UUID of 36 characters")


def run(statement, *arguments):
    """What a statement returns. A fault stays that fault."""
    try:
        return statement(*arguments)
    except Err as err:
        fault = err.value
        if isinstance(fault, StoreError_Contention):
            raise Err(RegistryError_Contention(fault.value)) from None
        raise Err(RegistryError_Store(fault.value)) from None


class SessionRegistry(exports.SessionRegistry):
    def open_session(self, owner_id: str, ttl_ms: int) -> str:
        check_owner(owner_id)
        check_ttl(ttl_ms)
        return run(statements.open_session, owner_id, ttl_ms)

    def heartbeat(self, session_id: str, ttl_ms: int) -> bool:
        check_session_id(session_id)
        check_ttl(ttl_ms)
        rows = run(statements.heartbeat, session_id, ttl_ms)
        if rows > 1:
            raise Err(RegistryError_Store("a heartbeat updated more than one session"))
        return rows == 1

    def close_session(self, session_id: str) -> int:
        check_session_id(session_id)
        return run(statements.close_session, session_id)

    def locks_of(self, session_id: str) -> List[str]:
        check_session_id(session_id)
        return run(statements.locks_of, session_id)
