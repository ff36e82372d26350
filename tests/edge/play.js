// Plays the scenarios of `tenure policy check` on a real PostgreSQL, under a policy:
//
//   DATABASE_URL=postgres://... node play.js policy.wasm
//
// or with PGHOST and the like. The database needs Tenure's schema, and loses what is in it. Exit status: 0 if every step
// had its expected outcome, 1 if not. scenarios.json describes its own format.

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import pg from "pg";
import { Statements, StoreError } from "./capability.js";
import { Policy } from "./policy.js";
import { SessionRegistry } from "./registry.js";

const read = (path) => readFileSync(new URL(`../../host/src/${path}`, import.meta.url), "utf8");
const { scenarios } = JSON.parse(read("policy/conformance/scenarios.json"));
const GRANT = read("postgres/sql/acquire_grant.sql");
const DAY_MS = 24 * 60 * 60 * 1000;
const OWNER = "tester";

/** Statements on which a step decides what befalls the next one. */
class Stage {
  #order = {};

  constructor(statements) {
    for (const name of ["openSession", "heartbeat", "closeSession", "locksOf"]) {
      this[name] = (...args) => this.#run(() => statements[name](...args));
    }
  }

  /** With `when`, resolves `reached` where the next statement waits, until `open` is called. */
  order(fault, when) {
    const gate = {};
    if (when) {
      gate.reached = new Promise((resolve) => (gate.reach = resolve));
      gate.opened = new Promise((resolve) => (gate.open = resolve));
    }
    this.#order = { fault, when, gate };
    return gate;
  }

  async #run(statement) {
    const { fault, when, gate } = this.#order;
    this.#order = {};
    const wait = async (here) => {
      if (when !== here) return;
      gate.reach();
      await gate.opened;
    };
    await wait("before");
    try {
      switch (fault) {
        case undefined:
          return await statement();
        case "contention-after":
          await statement();
        // Falls through: nobody hears of what it did.
        case "contention-before":
          throw new StoreError("contention", "the connection was lost");
        case "rejected":
          throw new StoreError("rejected", "the row violates a check constraint");
        case "other":
          throw new StoreError("other", "No space left on device. ".repeat(100));
        default:
          throw new TypeError(`no such fault: ${fault}`);
      }
    } finally {
      await wait("after");
    }
  }
}

class Player {
  #pool;
  #stage;
  #registry;
  #sessions = new Map();
  #held = new Map();

  constructor(pool, policy) {
    this.#pool = pool;
    this.#stage = new Stage(new Statements(pool));
    this.#registry = new SessionRegistry(policy, this.#stage);
  }

  /** Throws at the first step with another outcome. */
  async play({ steps }) {
    await this.#pool.query("TRUNCATE lock_session CASCADE");
    for (const [at, step] of steps.entries()) {
      const outcome = await this.#perform(step);
      const [broken] = this.#registry.violations.splice(0);
      const did = `step ${at + 1}, ${JSON.stringify(step)}`;
      if (broken) throw new Error(`${did}: violation: it ${broken}`);
      if (step.expect === undefined) continue;
      if (!isDeepStrictEqual(outcome, expected(step.expect))) {
        throw new Error(`${did}: ${JSON.stringify(outcome).slice(0, 500)}`);
      }
    }
  }

  async #perform(step) {
    const session = step.session === undefined ? undefined : this.#text(step.session);
    switch (step.do) {
      case "lock": {
        let granted = 0;
        for (const key of keys(step.keys)) {
          granted += (await this.#pool.query(GRANT, [key, session, DAY_MS])).rowCount;
        }
        return { granted };
      }
      case "advance":
        return this.#advance(step.ms);
      case "advance-to-end":
        return this.#advance(Math.max(0, (await this.#left(session)) - (step.before_ms ?? 0)));
      case "reap": {
        const dead = "DELETE FROM lock_session WHERE expires_at <= now()";
        return { reaped: (await this.#pool.query(dead)).rowCount };
      }
      case "finish": {
        const held = this.#held.get(step.call);
        held.open();
        return held.outcome;
      }
    }
    const gate = this.#stage.order(step.fault, step.hold?.when);
    const outcome = this.#call(step, session);
    if (!step.hold) return outcome;
    await Promise.race([gate.reached, outcome]);
    this.#held.set(step.hold.call, { open: gate.open, outcome });
  }

  async #call(step, session) {
    const ttl = step.ttl_ms === "max" ? 2n ** 64n - 1n : BigInt(step.ttl_ms ?? 0);
    const registry = this.#registry;
    const calls = {
      "open-session": () => registry.openSession(this.#text(step.owner ?? OWNER), ttl),
      heartbeat: () => registry.heartbeat(session, ttl),
      "close-session": () => registry.closeSession(session),
      "locks-of": () => registry.locksOf(session),
    };
    const { ok, err } = await calls[step.do]();
    if (err) return err.tag;
    switch (step.do) {
      case "open-session":
        if (step.as) this.#sessions.set(step.as, ok);
        return "opened";
      case "heartbeat":
        return ok ? "alive" : "dead";
      case "close-session":
        return { closed: ok };
      case "locks-of":
        return { locks: ok };
    }
  }

  /** The database's clock cannot be moved, so the sessions' time stamps are. */
  async #advance(ms) {
    await this.#pool.query(
      `UPDATE lock_session SET created_at = created_at - $1::float8 * interval '1 millisecond',
                               expires_at = expires_at - $1::float8 * interval '1 millisecond'`,
      [ms],
    );
  }

  async #left(session) {
    const { rows } = await this.#pool.query(
      `SELECT (extract(epoch FROM expires_at - now()) * 1000)::float8 AS ms
         FROM lock_session WHERE session_id = $1`,
      [session],
    );
    return rows[0]?.ms ?? 0;
  }

  #text(text) {
    if (typeof text === "string") {
      return text.startsWith("$") ? this.#sessions.get(text.slice(1)) : text;
    }
    if ("upper" in text) return this.#text(text.upper).toUpperCase();
    return text.repeat.repeat(text.times);
  }
}

function keys(given) {
  if (Array.isArray(given)) return given;
  return Array.from({ length: given.numbered }, (_, n) => String(n).padStart(given.width, "0"));
}

const expected = (expect) =>
  expect.locks === undefined ? expect : { locks: keys(expect.locks) };

const pool = new pg.Pool({
  connectionString: process.env.DATABASE_URL,
  connectionTimeoutMillis: 2000,
  lock_timeout: 500,
  statement_timeout: 2000,
});
const policy = await Policy.load(process.argv[2]);
let failed = 0;
for (const scenario of scenarios) {
  try {
    await new Player(pool, policy).play(scenario);
    console.log(`ok      ${scenario.name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${scenario.name}\n          ${error.message}`);
  }
}
await policy.unload();
await pool.end();
console.log(`${scenarios.length - failed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
