/** What the numbers of a sum mean, and how a phone's message travels: federation/secure_sums/{summation,uploads}.py. */

import { roundHalfEven } from "../learning/numbers.js";
import { WireError } from "../protocol/errors.js";
import { joined, utf8 } from "../protocol/signing.js";
import { digest } from "./membership.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {import("../protocol/safetensors.js").Tensor} Tensor */
/** @typedef {{name: string, shape: number[], steps: number, bound: number}} Segment one tensor's place among the numbers */

/** Of two whole numbers of 32 bits. */
const MAX_DIFFERENCE = 2 ** 32;

/**
 * What is added in a continuous federation: exact sums, and that the phone is there.
 * @param {number} features of the network @param {number} classes @param {number} maxWeight of the plan @returns {Segment[]}
 */
export function sumsLayout(features, classes, maxWeight) {
  const size = features + 1;
  return [
    { name: "gram", shape: [(size * (size + 1)) / 2], steps: 1, bound: MAX_DIFFERENCE },
    { name: "moment", shape: [size, classes], steps: 1, bound: MAX_DIFFERENCE },
    { name: "clients", shape: [], steps: 1, bound: maxWeight },
  ];
}

/**
 * What is added in a round, n · (w_k − w) and n, and what it means: `Method.summand` and `encoded` in Python.
 * @param {Record<string, Tensor>} upload as it would travel @param {Record<string, Tensor>} broadcast that it began with
 * @param {number} examples @param {import("../protocol/messages.generated.js").SecureSettings} limits
 * @returns {{layout: Segment[], vector: Float64Array}}
 */
export function weightedChange(upload, broadcast, examples, { steps, max_change: maxChange, max_weight: maxWeight }) {
  const weight = Math.min(examples, maxWeight);
  const bound = Math.ceil(maxChange * maxWeight * steps);
  const names = Object.keys(upload).filter((name) => name.startsWith("params/"));
  const layout = names.map((name) => ({ name, shape: [...upload[name].shape], steps, bound }));
  const vector = new Float64Array(names.reduce((size, name) => size + upload[name].data.length, 1));
  let at = 0;
  for (const name of names) {
    const [now, before] = [upload[name].data, broadcast[name]?.data];
    if (before?.length !== now.length) throw new WireError(`what the round began with has no tensor ${name} of this shape`);
    for (let i = 0; i < now.length; i++) {
      const change = Math.min(Math.max(Number(now[i]) - Number(before[i]), -maxChange), maxChange);
      vector[at++] = Math.min(Math.max(roundHalfEven(change * weight * steps), -bound), bound);
    }
  }
  vector[at] = weight;
  return { layout: [...layout, { name: "weight", shape: [], steps: 1, bound: maxWeight }], vector };
}

/** The SHA-256 of names, shapes and scales, as Python writes them. @param {Segment[]} layout @returns {Promise<Bytes>} */
export function layoutDigest(layout) {
  const rows = layout.map(({ name, shape, steps, bound }) => {
    return `[${JSON.stringify(name)}, [${shape.join(", ")}], ${steps}, ${bound}]`;
  });
  return digest(utf8(`[${rows.join(", ")}]`));
}

/** The largest number that a client may add. @param {Segment[]} layout */
export function boundOf(layout) {
  return Math.max(...layout.map(({ bound }) => bound));
}

/** @typedef {{gram: Int32Array, moment: Int32Array} | null} WholeNumbers what a phone has in the sums; null: nothing */

/**
 * By how much the sums change, in the order of the layout, the phone itself the last number.
 * @param {WholeNumbers} present @param {WholeNumbers} before @param {number} length @returns {Float64Array}
 */
export function difference(present, before, length) {
  const found = new Float64Array(length);
  for (const [numbers, sign] of /** @type {const} */ ([[present, 1], [before, -1]])) {
    if (!numbers) continue;
    const { gram, moment } = numbers;
    if (gram.length + moment.length + 1 !== length) throw new Error(`${gram.length + moment.length + 1} numbers for ${length}`);
    for (let i = 0; i < gram.length; i++) found[i] += sign * gram[i];
    for (let i = 0; i < moment.length; i++) found[gram.length + i] += sign * moment[i];
    found[length - 1] += sign;
  }
  return found;
}

/**
 * The bytes of a phone's message as they are uploaded: of a vector its head, before it the head's length.
 * @param {import("./client.js").ToServer} message @returns {Bytes}
 */
export function packed({ payload, vector }) {
  if (!vector) return payload;
  return joined(Uint8Array.of(payload.length >> 8, payload.length & 255), payload, vector);
}
