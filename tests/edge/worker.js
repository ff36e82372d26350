// The thread that a policy may block: one call at a time, each on an instance of its own.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parentPort, receiveMessageOnPort, workerData } from "node:worker_threads";

const { folder, port, wake } = workerData;
const { instantiate } = await import(pathToFileURL(join(folder, "policy.js")));

const modules = new Map();
const getCoreModule = (path) => {
  if (!modules.has(path)) {
    modules.set(path, new WebAssembly.Module(readFileSync(join(folder, path))));
  }
  return modules.get(path);
};

/** Asks the host for a statement, and blocks until it has answered. */
function run(statement, args) {
  const seen = Atomics.load(wake, 0);
  parentPort.postMessage({ statement, args });
  Atomics.wait(wake, 0, seen);
  const { message } = receiveMessageOnPort(port);
  if ("ok" in message) return message.ok;
  if ("trap" in message) throw new Error(message.trap);
  // What has a `payload` is the error of the `result`; anything else traps.
  throw Object.assign(new Error(), { payload: message.err });
}

// jco leaves the version out of the name.
const imports = {
  "tenure:registry/statements": {
    openSession: (...args) => run("open-session", args),
    heartbeat: (...args) => run("heartbeat", args),
    closeSession: (...args) => run("close-session", args),
    locksOf: (...args) => run("locks-of", args),
  },
};
const FUNCTIONS = {
  "open-session": "openSession",
  heartbeat: "heartbeat",
  "close-session": "closeSession",
  "locks-of": "locksOf",
};

parentPort.on("message", ({ operation, args }) => {
  let verdict;
  try {
    const { sessionRegistry } = instantiate(getCoreModule, imports);
    verdict = { ok: sessionRegistry[FUNCTIONS[operation]](...args) };
  } catch (error) {
    // An error of the contract comes as it is, or as an Error's payload; a trap as an Error.
    const err = error instanceof Error ? error.payload : error;
    verdict = err === undefined ? { trap: error.message } : { err };
  }
  parentPort.postMessage({ verdict });
});
