/** The embedder of the page, loaded with the first model. */

import { Embedder } from "./learning/embedder.js";
import { NO_RUNTIME, loadRuntime } from "./onnx_runtime.js";

/** The embedder, whose runtime comes when a model does. @implements {Embedding} */
export class LateEmbedder {
  constructor() {
    /** @type {Promise<Embedder> | null} */ this.embedder = null;
  }

  /** @param {Uint8Array} file @param {string} sha256 @param {import("./types.js").Plan} [plan] */
  async load(file, sha256, plan) {
    this.embedder ??= begin().catch((error) => {
      this.embedder = null; // what a lost network broke is tried again
      throw error;
    });
    return (await this.embedder).load(file, sha256, plan);
  }

  /** @param {Float32Array} x @param {(done: number, all: number) => void} [onProgress] */
  async embed(x, onProgress) {
    if (!this.embedder) throw new Error("no model is loaded");
    return (await this.embedder).embed(x, onProgress);
  }
}

/** @typedef {import("./types.js").Embedder} Embedding */

async function begin() {
  if (document.documentElement.dataset.runtime === "no") {
    throw new Error(NO_RUNTIME);
  }
  return new Embedder(await loadRuntime());
}
