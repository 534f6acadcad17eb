/** The worker in which a program trains: it answers the calls of remote_host.js by its ProgramHost, several at a time. */

import { UnusableModelError, messageOf } from "../protocol/errors.js";
import { loadRuntime, trainingThreads } from "../onnx_runtime.js";
import { ProgramHost } from "./host.js";

/** @typedef {{id: number, method: "train" | "sharedNetwork" | "logits" | "stop", given: any[]}} Call */

const host = new ProgramHost(() => loadRuntime(trainingThreads()));
/** @type {Map<number, AbortController>} */
const running = new Map();

addEventListener("message", ({ data }) => void answer(data));

/** @param {Call} call */
async function answer(call) {
  const { id } = call;
  if (call.method === "stop") return running.get(id)?.abort();
  const ended = new AbortController();
  running.set(id, ended);
  const onProgress = (/** @type {any[]} */ ...progress) => postMessage({ id, progress });
  try {
    const given = /** @type {any[]} */ ([...call.given, onProgress, ended.signal]);
    postMessage({ id, result: await /** @type {any} */ (host)[call.method](...given) });
  } catch (error) {
    postMessage({ id, error: messageOf(error), isUnusable: error instanceof UnusableModelError });
  } finally {
    running.delete(id);
  }
}
