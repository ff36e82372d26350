//! The rules, bound to the contract.

mod bindings {
    wit_bindgen::generate!({ world: "session-policy", path: "../../wit" });
}

use bindings::exports::tenure::registry::session_registry::Guest;
use bindings::tenure::registry::statements;
use bindings::tenure::registry::types::{RegistryError, SessionId, StoreError};

/// With the 32 KiB stack and the data this fills one page of memory, which the host keeps
/// resident. The longest argument and the longest list of locks have room in it.
#[global_allocator]
static ARENA: guest_arena::Arena<{ 24 * 1024 }> = guest_arena::Arena::new();

struct Lifecycle;

impl Guest for Lifecycle {
    fn open_session(owner_id: String, ttl_ms: u64) -> Result<SessionId, RegistryError> {
        rules::check_owner(&owner_id).map_err(invalid)?;
        rules::check_ttl(ttl_ms).map_err(invalid)?;
        statements::open_session(&owner_id, ttl_ms).map_err(fault)
    }

    fn heartbeat(session_id: SessionId, ttl_ms: u64) -> Result<bool, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        rules::check_ttl(ttl_ms).map_err(invalid)?;
        let rows = statements::heartbeat(&session_id, ttl_ms).map_err(fault)?;
        rules::is_alive(rows).map_err(|broken| RegistryError::Store(broken.into()))
    }

    fn close_session(session_id: SessionId) -> Result<u32, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        statements::close_session(&session_id).map_err(fault)
    }

    fn locks_of(session_id: SessionId) -> Result<Vec<String>, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        statements::locks_of(&session_id).map_err(fault)
    }
}

fn invalid(broken: rules::Broken) -> RegistryError {
    RegistryError::InvalidArgument(broken.into())
}

/// A fault stays that fault.
fn fault(error: StoreError) -> RegistryError {
    match error {
        StoreError::Contention(text) => RegistryError::Contention(text),
        StoreError::Rejected(text) => RegistryError::Store(text),
    }
}

bindings::export!(Lifecycle with_types_in bindings);
