/**
 * The network below the heads behind ONNX Runtime for the web: windows in, embeddings out, in small batches between which the page
 * draws and takes input.
 */

import { readMetadata } from "../recognizer/onnx_metadata.js";
import { WINDOW, windowSettings } from "./examples.js";
import { CHANNELS, insideModel } from "./normalization.js";
import { yieldToEventLoop } from "./yield_to_event_loop.js";

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../recognizer/onnx_metadata.js").Metadata} Metadata */

const SIZE = WINDOW * CHANNELS;
/** Some 20 to 50 ms of a phone at a time. */
const BATCH = 8;
/** A plan's statistics go through decimal text into the file. */
const TOLERANCE = 1e-6;

export class Embedder {
  /** @param {any} ort onnxruntime-web, its paths set */
  constructor(ort) {
    this.ort = ort;
    /** @type {any} */
    this.session = null;
    /** @type {Metadata | null} */
    this.metadata = null;
    /** sha256 of the loaded file; empty before. */
    this.sha256 = "";
    /** @type {Set<Promise<Float32Array>>} what is being embedded: by a session that is still needed */
    this.running = new Set();
    /** @type {Promise<unknown>} one file after the other */
    this.loading = Promise.resolve();
    /** @type {WeakMap<Float32Array, Promise<Float32Array>>} what was embedded, by its input */
    this.done = new WeakMap();
  }

  /**
   * Load a file, once; throws an Error that says what does not fit.
   * @param {Uint8Array} file whose sha256 was checked @param {string} sha256
   * @param {Plan} [plan] that the file was made for
   * @returns {Promise<import("../types.js").Columns>} what it says of its columns
   */
  load(file, sha256, plan) {
    const loaded = this.loading.then(() => this.begin(file, sha256, plan));
    this.loading = loaded.catch(() => {});
    return loaded;
  }

  /** @param {Uint8Array} file @param {string} sha256 @param {Plan} [plan] */
  async begin(file, sha256, plan) {
    const metadata = sha256 === this.sha256 && this.metadata ? this.metadata : readMetadata(file);
    if (plan) checkModel(metadata, plan);
    const { orientationFree, gravity, acceleration } = metadata;
    const columns = { orientationFree, gravity, acceleration };
    if (sha256 === this.sha256) return columns;
    const session = await this.ort.InferenceSession.create(file);
    if (!session.inputNames.includes("x") || !session.outputNames.includes("embedding")) {
      throw new Error(
        `the model takes ${session.inputNames} and gives ${session.outputNames}; expected x, and embedding among them`,
      );
    }
    const [before, running] = [this.session, [...this.running]];
    void Promise.allSettled(running).then(() => before?.release());
    [this.session, this.metadata, this.sha256, this.done] = [session, metadata, sha256, new WeakMap()];
    return columns;
  }

  /**
   * Embed windows. The same array is embedded once, so that a version without new windows costs nothing: do not write
   * into `x`, nor into what is returned.
   * @param {Float32Array} x (n, 128, 6) as the model takes it @param {(done: number, all: number) => void} [onProgress]
   * @returns {Promise<Float32Array>} (n, D)
   */
  embed(x, onProgress) {
    let found = this.done.get(x);
    if (!found) {
      found = this.compute(x, onProgress);
      const [{ done, running }, own] = [this, found];
      done.set(x, own);
      running.add(own);
      own.catch(() => done.delete(x)).finally(() => running.delete(own));
    }
    return found;
  }

  /** @param {Float32Array} x @param {(done: number, all: number) => void} [onProgress] */
  async compute(x, onProgress) {
    const { session } = this;
    if (!session) throw new Error("no model is loaded");
    if (x.length % SIZE) throw new Error(`${x.length} numbers; expected windows of ${WINDOW} × ${CHANNELS}`);
    const count = x.length / SIZE;
    let embeddings = new Float32Array(0);
    for (let from = 0; from < count; from += BATCH) {
      if (from) await yieldToEventLoop();
      const rows = Math.min(BATCH, count - from);
      const part = x.subarray(from * SIZE, (from + rows) * SIZE);
      const input = new this.ort.Tensor("float32", part, [rows, WINDOW, CHANNELS]);
      const { embedding } = await session.run({ x: input }, ["embedding"]);
      const [given, width] = embedding.dims;
      if (embedding.dims.length !== 2 || given !== rows || !embedding.data.every(Number.isFinite)) {
        throw new Error(`the model gives (${embedding.dims}) for ${rows} windows; expected (${rows}, D), all finite`);
      }
      if (!from) embeddings = new Float32Array(count * width);
      embeddings.set(embedding.data, from * width);
      onProgress?.(from + rows, count);
    }
    return embeddings;
  }
}

/**
 * Throw an Error where a file's metadata do not fit a plan: other labels, other windows, another normalization inside.
 * @param {Metadata} metadata @param {Plan} plan
 */
export function checkModel({ labels, input }, plan) {
  const { rateHz } = windowSettings(plan.data);
  if (labels.join("\n") !== plan.labels.join("\n")) {
    throw new Error(`the model's classes are ${labels.join(", ")}; the plan's are ${plan.labels.join(", ")}`);
  }
  if (String(input.shape) !== String([WINDOW, CHANNELS]) || input.rate_hz !== rateHz) {
    throw new Error(
      `the model takes windows (${input.shape}) at ${input.rate_hz} Hz; ` +
        `expected (${WINDOW},${CHANNELS}) at ${rateHz} Hz`,
    );
  }
  const { mean, std } = insideModel(plan.data);
  if (!isNear(input.mean, mean) || !isNear(input.std, std)) {
    throw new Error(
      `the model normalizes by mean ${input.mean} and deviation ${input.std}; by the plan's data.normalization ` +
        `${plan.data.normalization} they are ${mean} and ${std}`,
    );
  }
}

/** @param {readonly number[]} given @param {Float64Array} expected */
function isNear(given, expected) {
  const near = (/** @type {number} */ value, /** @type {number} */ i) => {
    return Math.abs(given[i] - value) <= TOLERANCE * (1 + Math.abs(value));
  };
  return given?.length === expected.length && expected.every(near);
}
