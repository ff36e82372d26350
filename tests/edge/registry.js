// The session registry: the policy decides, the database knows, the host compares.

import { randomUUID } from "node:crypto";
import { StoreError } from "./capability.js";
import { CallRecord, judge } from "./audit.js";

/** The longest argument that is passed on to a policy, in bytes. */
const MAX_ARGUMENT = 4096;
/** The longest text of a fault that a policy is told. The caller gets all of it. */
const MAX_FAULT_TEXT = 1024;
const MAX_BIGINT = 2n ** 63n - 1n;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Each operation answers {ok}, or {err: {tag, val}} with a case of `registry-error` or "policy". */
export class SessionRegistry {
  #policy;
  #statements;
  /** What policies did wrong, in order. To be counted and logged. */
  violations = [];

  constructor(policy, statements) {
    this.#policy = policy;
    this.#statements = statements;
  }

  openSession(owner, ttlMs) {
    return this.#call("open-session", owner, [owner, ttlMs]);
  }

  heartbeat(session, ttlMs) {
    return this.#call("heartbeat", session, [session, ttlMs]);
  }

  closeSession(session) {
    return this.#call("close-session", session, [session]);
  }

  locksOf(session) {
    return this.#call("locks-of", session, [session]);
  }

  async #call(operation, subject, args) {
    if (Buffer.byteLength(subject) > MAX_ARGUMENT) {
      return { err: { tag: "invalid-argument", val: `at most ${MAX_ARGUMENT} bytes` } };
    }
    const record = new CallRecord(operation, subject);
    const verdict = await this.#policy.call(operation, args, (statement, args) =>
      this.#run(record, statement, args),
    );
    const { answer, violation, close } = judge(record, verdict);
    if (violation) this.violations.push(violation);
    if (close) {
      try {
        await this.#statements.closeSession(operation === "open-session" ? record.evidence.did : subject);
      } catch (fault) {
        const tag = fault.kind === "contention" ? "contention" : "store";
        return { err: { tag, val: fault.message } };
      }
    }
    return answer;
  }

  /** Runs a statement for the policy, if it may, and keeps what it did. */
  async #run(record, statement, args) {
    if (!record.permits(statement, args[0])) return { trap: record.violation };
    try {
      const did = await this.#statement(statement, args);
      record.evidence = { did };
      return { ok: statement === "heartbeat" ? Number(did) : did };
    } catch (fault) {
      record.evidence = { fault };
      const tag = fault.kind === "contention" ? "contention" : "rejected";
      return { err: { tag, val: fault.message.slice(0, MAX_FAULT_TEXT) } };
    }
  }

  async #statement(statement, [subject, ttlMs]) {
    if (ttlMs > MAX_BIGINT) {
      throw new StoreError("rejected", `a ttl-ms of ${ttlMs} is out of range`);
    }
    if (statement === "open-session") {
      const id = randomUUID();
      await this.#statements.openSession(id, subject, ttlMs);
      return id;
    }
    if (!UUID.test(subject)) throw new StoreError("rejected", "session-id is not a UUID");
    switch (statement) {
      case "heartbeat":
        return this.#statements.heartbeat(subject, ttlMs);
      case "close-session":
        return this.#statements.closeSession(subject);
      case "locks-of":
        return this.#statements.locksOf(subject);
    }
  }
}
