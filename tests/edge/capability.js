// The PostgreSQL capability: the pinned statements of wit/statements.wit, on npm's `pg`.
//
// Each answers with what the database did, or throws a StoreError. A pool for it needs a
// `lock_timeout` far below the shortest TTL, a `statement_timeout` and a
// `connectionTimeoutMillis`.

import { readFileSync } from "node:fs";
import pg from "pg";

const sql = (name) =>
  readFileSync(new URL(`../../host/src/postgres/sql/${name}.sql`, import.meta.url), "utf8");
const OPEN_SESSION = sql("open_session");
const HEARTBEAT = sql("heartbeat");
const SEAL_SESSION = sql("seal_session");
const SESSION_STATE = sql("session_state");
const CLOSE_SESSION = ["lock", "count", "delete"].map((part) => sql(`close_session_${part}`));
const LOCKS_OF = sql("locks_of");

/** Why a statement gave no answer: "contention", "rejected", or "other". */
export class StoreError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** The table of faults. None of them says that a session is dead. */
function translate(error) {
  if (!(error instanceof pg.DatabaseError)) {
    // The socket failed, the pool was exhausted, or `pg` gave up waiting.
    return new StoreError("contention", error.message);
  }
  if (/^(40001|40P01|55P03|57014|08...|57P..)$/.test(error.code)) {
    return new StoreError("contention", error.message);
  }
  const rejected = error.code === "23503" || error.code === "23514";
  return new StoreError(rejected ? "rejected" : "other", error.message);
}

export class Statements {
  #pool;

  constructor(pool) {
    this.#pool = pool;
  }

  /** Inserts a session under an id that the host has made; throws or returns nothing. */
  async openSession(id, owner, ttlMs) {
    await this.#run((client) => client.query(OPEN_SESSION, [id, owner, ttlMs]));
  }

  /**
   * Whether a session lives on. `false` is final: before it is said, the session's death is
   * sealed, so that no heartbeat that is still under way can extend it.
   */
  async heartbeat(id, ttlMs) {
    return this.#run(async (client) => {
      const beat = await client.query(HEARTBEAT, [id, ttlMs]);
      if (beat.rowCount === 1) return true;
      const sealed = await client.query(SEAL_SESSION, [id]);
      const stands = await client.query(SESSION_STATE, [id]);
      if (sealed.rowCount === 0 && stands.rowCount === 1) {
        throw new StoreError("contention", "another heartbeat of the session was under way");
      }
      return false;
    });
  }

  /** Ends a session; returns how many locks went with it. */
  async closeSession(id) {
    return this.#run(async (client) => {
      const [lock, count, remove] = CLOSE_SESSION;
      await client.query("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
      await client.query(lock, [id]);
      const counted = await client.query(count, [id]);
      await client.query(remove, [id]);
      await client.query("COMMIT");
      return Number(counted.rows[0].count);
    });
  }

  /** The first 100 keys of a session's locks, in order. */
  async locksOf(id) {
    const { rows } = await this.#run((client) => client.query(LOCKS_OF, [id]));
    return rows.map((row) => row.lock_key);
  }

  /** A connection that has met a fault is not used again: it may be in a transaction. */
  async #run(work) {
    let client, failed;
    try {
      client = await this.#pool.connect();
      return await work(client);
    } catch (error) {
      failed = error instanceof StoreError ? error : translate(error);
      throw failed;
    } finally {
      client?.release(failed);
    }
  }
}
