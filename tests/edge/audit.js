// What the host enforces itself, whatever the policy: which statement a call may run, and
// whether the verdict agrees with what the statement did. As host/src/policy/record.rs and
// audit.rs.

/** Follows one call. */
export class CallRecord {
  /** `subject` is the caller's own owner or session, as the caller gave it. */
  constructor(operation, subject) {
    this.operation = operation;
    this.subject = subject;
    /** What the statement did: {did} or {fault}; none as long as none has run. */
    this.evidence = null;
    this.violation = null;
  }

  /** Whether the policy may run this statement now: its own, once, for the caller's own. */
  permits(statement, subject) {
    const { operation } = this;
    if (statement !== operation) {
      this.violation = `ran the statement ${statement} during ${operation}`;
    } else if (subject !== this.subject) {
      const own = operation === "open-session" ? "owner" : "session";
      this.violation = `ran the statement ${statement} for another than the caller's own ${own}`;
    } else if (this.evidence !== null) {
      this.violation = `ran the statement ${statement} twice`;
    } else {
      this.evidence = {};
      return true;
    }
    return false;
  }
}

const REFUSALS = ["invalid-argument", "refused"];

/**
 * Holds a verdict, {ok} or {err: {tag, val}} or {trap}, against the record. Returns the
 * `answer` {ok} or {err}; the `violation` to be counted and logged, if there is one; and
 * whether the session must be closed (`close`), before the answer is given.
 */
export function judge(record, verdict) {
  const { operation, evidence } = record;
  const opened = operation === "open-session" && evidence !== null && "did" in evidence;
  const violation = (what, close = false) => ({
    answer: { err: { tag: "policy", val: what } },
    violation: what,
    close,
  });

  if (record.violation !== null) return violation(record.violation, opened);
  if ("trap" in verdict) return violation(`trapped: ${verdict.trap}`, opened);
  if (evidence === null) {
    if ("err" in verdict) return { answer: verdict };
    return violation("answered without asking the database");
  }
  if ("fault" in evidence) {
    const { fault } = evidence;
    // The caller gets the fault itself, whatever the policy made of it.
    const tag = fault.kind === "contention" ? "contention" : "store";
    const answer = { err: { tag, val: fault.message } };
    if ("err" in verdict && verdict.err.tag === tag) return { answer };
    if (operation === "heartbeat" && verdict.ok === true) {
      return violation("called a session alive although the heartbeat had failed");
    }
    return { answer, violation: "hid a fault of the database" };
  }
  if ("err" in verdict) {
    // A new session can be taken back; what else has happened cannot be refused any more.
    if (opened) return { answer: verdict, close: true };
    if (!REFUSALS.includes(verdict.err.tag)) return { answer: verdict };
    return violation("refused a call after its statement had run");
  }
  const { did } = evidence;
  switch (operation) {
    case "open-session":
      if (verdict.ok.toLowerCase() === did) return { answer: { ok: did } };
      return violation("returned another session than the one it opened", true);
    case "heartbeat":
      if (verdict.ok === did) return { answer: verdict };
      if (verdict.ok) return violation("called a dead session alive");
      // Stricter than the database, which a policy may be; but then it has to be final.
      return { answer: verdict, violation: "called a live session dead", close: true };
    case "close-session":
      if (verdict.ok === did) return { answer: verdict };
      return violation("invented a number of released locks");
    case "locks-of":
      if (JSON.stringify(verdict.ok) === JSON.stringify(did)) return { answer: verdict };
      return violation("invented a list of locks");
  }
}
