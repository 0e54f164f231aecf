// Starts `tenure server --ephemeral`: a Kubernetes API server for tests, which ends with this process.
"use strict";

const { spawn } = require("node:child_process");
const { once } = require("node:events");
const path = require("node:path");

// Time until a server that prints nothing counts as failed.
const START_TIMEOUT = 60_000;
// Time until a server that ignores SIGTERM is killed.
const STOP_TIMEOUT = 10_000;
// The line is a path, so a longer output is an error.
const LONGEST_LINE = 8192;

/** Returns the path of the command `tenure`: `$TENURE_BINARY`, or the file of this package. */
function binary() {
  return process.env.TENURE_BINARY || path.join(__dirname, "bin", "tenure");
}

/** Resolves with the first line of a stream. */
function firstLine(stream) {
  return new Promise((resolve, reject) => {
    let text = "";
    stream.setEncoding("utf8");
    stream.on("end", () => reject(new Error("it ended")));
    stream.on("data", (part) => {
      text += part;
      const end = text.indexOf("\n");
      if (end >= 0) resolve(text.slice(0, end));
      else if (text.length > LONGEST_LINE) reject(new Error("its first line is too long"));
    });
  });
}

/** Ends a process, and waits until it has removed its files. */
async function stop(child, ended) {
  child.ref();
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT);
  await ended;
  clearTimeout(timer);
}

async function startServer({ args = [], timeout = START_TIMEOUT } = {}) {
  const command = [binary(), "server", "--ephemeral", ...args];
  const child = spawn(command[0], command.slice(1), { stdio: ["ignore", "pipe", "inherit"] });
  // `error` replaces `exit` if the program cannot be started.
  const failed = once(child, "error").then(([error]) => Promise.reject(error));
  const ended = Promise.race([once(child, "exit"), failed]).catch(() => {});
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not ready after ${timeout} ms`)), timeout);
  });
  let kubeconfig;
  try {
    kubeconfig = await Promise.race([firstLine(child.stdout), failed, late]);
  } catch (error) {
    if (child.pid !== undefined) await stop(child, ended);
    const reason = `${error.message}; its messages are on standard error`;
    throw new Error(`cannot start ${command.join(" ")}: ${reason}`);
  } finally {
    clearTimeout(timer);
  }
  // A test that does not stop its server can end. The server then ends too.
  child.unref();
  child.stdout.unref();
  return { kubeconfig, stop: () => stop(child, ended) };
}

exports.binary = binary;
exports.startServer = startServer;
