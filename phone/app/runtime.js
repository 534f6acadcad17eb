/** ONNX Runtime for the web, loaded with the first model: 14 MB that who only labels never needs. */

import { Embedder } from "./learning/embedder.js";

const HERE = new URL("./vendor/ort/", import.meta.url).href;

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
    throw new Error(
      "this server lacks ONNX Runtime for phones: whoever runs it has to say `make phone`, and start it again",
    );
  }
  const ort = await import("./vendor/ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = HERE;
  ort.env.wasm.numThreads = 1; // more need a page that is isolated from all others
  return new Embedder(ort);
}
