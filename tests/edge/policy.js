// Runs a policy: each call in a worker, on an instance of its own.
//
// The contract is synchronous and `pg` is not. Where WebAssembly can suspend (JSPI), jco's
// `--async-mode jspi` lets the statements be promises. Node 20 cannot, so here the policy has
// a thread to block: the worker waits in Atomics.wait while this thread, whose event loop
// goes on, runs the statement.

import { Worker } from "node:worker_threads";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { transpile, writeFiles } from "@bytecodealliance/jco-transpile";

/** For a call, the database included, in milliseconds. After that the worker is ended. */
const DEADLINE = 5000;

export class Policy {
  #folder;
  #idle = [];
  #workers = new Set();

  /** Transpiles a component, once: as `jco transpile FILE --instantiation sync` does. */
  static async load(file) {
    const policy = new Policy();
    policy.#folder = mkdtempSync(join(tmpdir(), "tenure-edge-"));
    const { files } = await transpile(file, {
      name: "policy",
      instantiation: "sync",
      outDir: policy.#folder,
    });
    await writeFiles(files);
    return policy;
  }

  /**
   * Calls an exported function. `run(statement, args)` runs a statement and answers {ok}, or
   * {err: {tag, val}}, or {trap} where the policy may not run it. Returns the verdict.
   */
  async call(operation, args, run) {
    const worker = this.#idle.pop() ?? this.#start();
    let deadline;
    const verdict = await new Promise((resolve) => {
      worker.onend = (why) => resolve({ trap: why });
      worker.onmessage = async (message) => {
        if ("verdict" in message) return resolve(message.verdict);
        worker.port.postMessage(await run(message.statement, message.args));
        Atomics.add(worker.wake, 0, 1);
        Atomics.notify(worker.wake, 0);
      };
      deadline = setTimeout(() => resolve({ trap: `took more than ${DEADLINE} ms` }), DEADLINE);
      worker.thread.postMessage({ operation, args });
    });
    clearTimeout(deadline);
    worker.onmessage = worker.onend = () => {};
    // After a trap nothing that it had is used again.
    if ("trap" in verdict) this.#end(worker);
    else this.#idle.push(worker);
    return verdict;
  }

  async unload() {
    await Promise.all([...this.#workers].map((worker) => this.#end(worker)));
    rmSync(this.#folder, { recursive: true });
  }

  #start() {
    const { port1, port2 } = new MessageChannel();
    const wake = new Int32Array(new SharedArrayBuffer(4));
    const thread = new Worker(new URL("worker.js", import.meta.url), {
      workerData: { folder: this.#folder, port: port2, wake },
      transferList: [port2],
      // No environment, and no part of this process's own output.
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: 64 },
    });
    const worker = { thread, port: port1, wake, onmessage() {}, onend() {} };
    thread.on("message", (message) => worker.onmessage(message));
    thread.on("error", (error) => worker.onend(error.message));
    thread.on("exit", () => worker.onend("the worker ended"));
    this.#workers.add(worker);
    return worker;
  }

  #end(worker) {
    this.#workers.delete(worker);
    worker.port.close();
    return worker.thread.terminate();
  }
}
