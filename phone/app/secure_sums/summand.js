/** What the numbers of a sum mean, and how a phone's message travels: federation/secure_sums/{summation,uploads}.py. */

import { roundHalfEven } from "../learning/numbers.js";
import { WireError } from "../protocol/errors.js";
import { GAINS, SUM_GROUPS } from "../protocol/messages.generated.js";
import { joined, utf8 } from "../protocol/signing.js";
import { digest } from "./membership.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {import("../protocol/safetensors.js").Tensor} Tensor */
/** @typedef {{name: string, shape: number[], steps: number, bound: number}} Segment one tensor's place among the numbers */

/** Deviations of the noise: a number has more with a probability below 10⁻⁵⁶. */
const WIDEST = 16;

/** Of whole numbers of 32 bits and their noise. */
const MAX_WHOLE = 2 ** 32;

/**
 * What is added in a continuous federation: exact sums, and that the phone is there.
 * @param {number} features of the network @param {number} classes @param {number} maxWeight of the plan @returns {Segment[]}
 */
export function sumsLayout(features, classes, maxWeight) {
  const size = features + 1;
  return [
    { name: "gram", shape: [(size * (size + 1)) / 2], steps: 1, bound: MAX_WHOLE },
    { name: "moment", shape: [size, classes], steps: 1, bound: MAX_WHOLE },
    { name: "clients", shape: [], steps: 1, bound: maxWeight },
  ];
}

/**
 * What is added in a round, and what it means: `Method.summand` and `encoded` in Python.
 * @param {Record<string, unknown>} method of the plan
 * @param {Record<string, Tensor>} upload as it would travel @param {Record<string, Tensor>} broadcast that it began with
 * @param {number} examples @param {number} classes @param {SecureSettings} limits
 * @param {Record<string, number[]> | null} [gains] what the phone reports of its models @returns {{layout: Segment[], vector: Float64Array}}
 */
export function summandOf(method, upload, broadcast, examples, classes, limits, gains) {
  const trained = { method, upload, broadcast, examples, limits };
  const parts = SUM_GROUPS[String(method.name)].flatMap((group) => GROUPS[group](trained));
  parts.push(...gainParts(gains ?? {}, classes, limits));
  const vector = new Float64Array(parts.reduce((size, { values }) => size + values.length, 0));
  let at = 0;
  for (const { values, steps, bound } of parts) {
    for (const value of values) vector[at++] = Math.min(Math.max(roundHalfEven(value * steps), -bound), bound);
  }
  return { layout: parts.map(({ name, shape, steps, bound }) => ({ name, shape, steps, bound })), vector };
}

/** @typedef {import("../protocol/messages.generated.js").SecureSettings} SecureSettings */
/** @typedef {Segment & {values: ArrayLike<number> & Iterable<number>}} Part with its numbers, in units of 1 */
/**
 * @typedef {{method: Record<string, unknown>, upload: Record<string, Tensor>, broadcast: Record<string, Tensor>,
 *   examples: number, limits: SecureSettings}} Trained
 */

/**
 * The gains of a device's models; zeros where it reports none.
 * @param {Record<string, number[]>} gains @param {number} classes @param {SecureSettings} limits @returns {Part[]}
 */
function gainParts(gains, classes, limits) {
  if (limits.noise_multiplier || classes > GAINS.maxClasses) return [];
  const length = 3 + 2 * classes;
  return GAINS.candidates.map((name) => {
    const values = gains[name] ?? new Float64Array(length);
    return { name: `gains/${name}`, shape: [length], steps: 1, bound: GAINS.maxNumber, values };
  });
}

/** By group of `Method.sum_groups`. @type {Record<string, (trained: Trained) => Part[]>} */
const GROUPS = {
  params: ({ method, upload, broadcast, examples, limits }) => {
    const { steps, max_change: limit, max_weight: maxWeight } = limits;
    const weight = weightOf(method, examples, maxWeight);
    const noise = Math.ceil(WIDEST * (limits.noise_multiplier ?? 0) * (limits.clip_norm ?? 0));
    const bound = Math.ceil(limit * maxWeight * steps) + noise;
    return tensorsOf(upload, "params").map(([name, { shape, data }]) => {
      const before = numbersOf(tensorOf(broadcast, name, data.length).data);
      const values = Float64Array.from(numbersOf(data), (now, i) => cut(now - before[i], limit) * weight);
      return { name, shape: [...shape], steps, bound, values };
    });
  },
  weight: ({ method, examples, limits: { max_weight: bound } }) => [
    { name: "weight", shape: [], steps: 1, bound, values: [weightOf(method, examples, bound)] },
  ],
  variate: ({ upload, limits: { steps, max_value: limit } }) =>
    tensorsOf(upload, "variate").map(([name, { shape, data }]) => {
      const values = Float64Array.from(numbersOf(data), (value) => cut(value, limit));
      return { name, shape: [...shape], steps, bound: Math.ceil(limit * steps), values };
    }),
  prototypes: (trained) => {
    const { shape, data } = tensorOf(trained.upload, "prototypes");
    const { steps, max_value: limit, max_weight: maxWeight } = trained.limits;
    const [weights, dim] = [classWeights(trained), shape[1]];
    // a class without examples adds nothing, whatever its row holds
    const values = Float64Array.from(numbersOf(data), (value, i) => {
      const weight = weights[Math.floor(i / dim)];
      return weight > 0 ? cut(value, limit) * weight : 0;
    });
    return [{ name: "prototypes", shape: [...shape], steps, bound: Math.ceil(limit * maxWeight * steps), values }];
  },
  counts: (trained) => {
    const values = classWeights(trained);
    return [{ name: "counts", shape: [values.length], steps: 1, bound: trained.limits.max_weight, values }];
  },
  centre_sums: (trained) => {
    const { steps, max_value: limit, max_weight: maxWeight } = trained.limits;
    return nearestCentres(trained).map(({ block, shape, rows, nearest }) => {
      const [dim, values] = [shape[1], new Float64Array(rows.length)];
      nearest.forEach((centre, row) => {
        for (let i = 0; i < dim; i++) values[centre * dim + i] += rows[row * dim + i];
      });
      return { name: `centre_sums${block}`, shape, steps, bound: Math.ceil(limit * maxWeight * steps), values };
    });
  },
  centre_counts: (trained) =>
    nearestCentres(trained).map(({ block, shape: [count], nearest }) => {
      const values = new Float64Array(count);
      for (const centre of nearest) values[centre]++;
      return { name: `centre_counts${block}`, shape: [count], steps: 1, bound: trained.limits.max_weight, values };
    }),
};

/** @param {Record<string, unknown>} method @param {number} examples @param {number} limit */
function weightOf({ weighting = "examples" }, examples, limit) {
  return Math.min(weighting === "examples" ? examples : 1, limit);
}

/** How much each class's prototype counts: its examples, or 1 where the phone has any. @param {Trained} trained */
function classWeights({ method: { name, weighting = "examples" }, upload, limits: { max_weight: limit } }) {
  const byExamples = name !== "fedpr" && weighting === "examples";
  const { data } = tensorOf(upload, "counts");
  return Float64Array.from(numbersOf(data), (count) => (byExamples ? Math.min(roundHalfEven(count), limit) : Number(count > 0)));
}

/**
 * Of each block's prototypes, cut off, the centre that each is nearest to, the first of those equally near; in float64,
 * where Python has float32: one that lies halfway between two centres may be nearest to the other one there.
 * @param {Trained} trained
 */
function nearestCentres({ upload, broadcast, limits: { max_value: limit } }) {
  return tensorsOf(upload, "prototypes").map(([name, { shape, data }]) => {
    const rows = Float64Array.from(numbersOf(data), (value) => cut(value, limit));
    const [dim, centres] = [shape[1], numbersOf(tensorOf(broadcast, name, data.length).data)];
    const nearest = Array.from({ length: shape[0] }, (_, row) => nearestOf(rows.subarray(row * dim, (row + 1) * dim), centres));
    return { block: name.slice("prototypes".length), shape: [...shape], rows, nearest };
  });
}

/** @param {Float64Array} row @param {ArrayLike<number>} centres of as many numbers each */
function nearestOf(row, centres) {
  let [least, nearest] = [Infinity, 0];
  for (let centre = 0; centre * row.length < centres.length; centre++) {
    const distance = row.reduce((sum, value, i) => sum + (value - centres[centre * row.length + i]) ** 2, 0);
    if (distance < least) [least, nearest] = [distance, centre];
  }
  return nearest;
}

/** @param {number} value @param {number} limit */
function cut(value, limit) {
  return Math.min(Math.max(value, -limit), limit);
}

/** Numbers alone, as everything that is added is of them. @param {Tensor["data"]} data */
function numbersOf(data) {
  if (data instanceof BigInt64Array) return Float64Array.from(data, Number);
  return data;
}

/** @param {Record<string, Tensor>} tree @param {string} group */
function tensorsOf(tree, group) {
  return Object.entries(tree).filter(([name]) => name.startsWith(`${group}/`));
}

/** @param {Record<string, Tensor>} tree @param {string} name @param {number} [length] that it must have */
function tensorOf(tree, name, length) {
  const found = tree[name];
  if (!found || (length !== undefined && found.data.length !== length)) {
    throw new WireError(`what the round began with, or has made, has no tensor ${name} of this shape`);
  }
  return found;
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

/** @typedef {{gram: Int32Array, moment: Int32Array}} WholeNumbers a phone's whole sums */

/** A phone's whole sums in the order of the layout, the phone itself the last number. @param {WholeNumbers} sums */
export function sumsVector({ gram, moment }) {
  return Float64Array.from([...gram, ...moment, 1]);
}

/**
 * The bytes of a phone's message as they are uploaded: of a vector its head, before it the head's length.
 * @param {import("./client.js").ToServer} message @returns {Bytes}
 */
export function packed({ payload, vector }) {
  if (!vector) return payload;
  return joined(Uint8Array.of(payload.length >> 8, payload.length & 255), payload, vector);
}
