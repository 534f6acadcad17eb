/** The page's end of the worker that trains: started with the first call, and again after it has failed. */

import { NO_RUNTIME } from "../onnx_runtime.js";
import { UnusableModelError } from "../protocol/errors.js";

/** @typedef {import("../types.js").TrainingHost} TrainingHost */
/**
 * @typedef {object} Waiting for an answer
 * @property {(result: any) => void} resolve @property {(error: Error) => void} reject
 * @property {(...progress: any[]) => void} [onProgress]
 */

/** @implements {TrainingHost} */
export class RemoteHost {
  constructor() {
    /** @type {Worker | null} */ this.worker = null;
    this.calls = 0;
    /** @type {Map<number, Waiting>} */ this.waiting = new Map();
  }

  /** @type {TrainingHost["train"]} */
  async train(job, onProgress, signal) {
    return this.call("train", [job], onProgress, signal);
  }

  /** @type {TrainingHost["sharedNetwork"]} */
  async sharedNetwork(source, broadcast, client) {
    return this.call("sharedNetwork", [source, broadcast, client]);
  }

  /** @type {TrainingHost["logits"]} */
  async logits(source, network, x) {
    return this.call("logits", [source, network, x]);
  }

  /**
   * @param {string} method @param {any[]} given @param {(...progress: any[]) => void} [onProgress]
   * @param {AbortSignal} [signal] @returns {Promise<any>}
   */
  async call(method, given, onProgress, signal) {
    signal?.throwIfAborted();
    this.worker ??= this.started();
    const { worker } = this;
    const id = ++this.calls;
    const stop = () => worker.postMessage({ id, method: "stop" });
    signal?.addEventListener("abort", stop, { once: true });
    try {
      return await new Promise((resolve, reject) => {
        this.waiting.set(id, { resolve, reject, onProgress });
        worker.postMessage({ id, method, given });
      });
    } finally {
      signal?.removeEventListener("abort", stop);
      this.waiting.delete(id);
      signal?.throwIfAborted();
    }
  }

  started() {
    if (document.documentElement.dataset.runtime === "no") {
      throw new Error(NO_RUNTIME);
    }
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.addEventListener("message", ({ data }) => this.takeMessage(data));
    worker.addEventListener("error", (event) => {
      event.preventDefault();
      this.failed(worker, event.message || "its files could not be loaded");
    });
    return worker;
  }

  /** @param {{id: number, progress?: any[], result?: any, error?: string, isUnusable?: boolean}} message */
  takeMessage({ id, progress, result, error, isUnusable }) {
    const waiting = this.waiting.get(id);
    if (progress) waiting?.onProgress?.(...progress);
    else if (error !== undefined) waiting?.reject(isUnusable ? new UnusableModelError(error) : new Error(error));
    else waiting?.resolve(result);
  }

  /** @param {Worker} worker @param {string} reason */
  failed(worker, reason) {
    worker.terminate();
    if (this.worker === worker) this.worker = null;
    for (const { reject } of this.waiting.values()) reject(new Error(`what trains on this phone has stopped: ${reason}`));
  }
}
