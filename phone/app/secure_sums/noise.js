/**
 * A phone's share of a sum's noise: whole numbers of a discrete Gaussian, exactly, by uniform whole numbers alone
 * (Canonne et al. 2020, algorithms 1 to 3): federation/privacy/discrete_gaussian.py.
 */

import { yieldToEventLoop } from "../learning/yield_to_event_loop.js";
import { WireError } from "../protocol/errors.js";
import { entropyOf } from "./client.js";

/** @typedef {(below: bigint) => bigint} Draw a uniform whole number from 0 on */
/** @typedef {import("../protocol/messages.generated.js").SecureSettings} SecureSettings */

/** Of one device's noise. */
const MIN_VARIANCE = 16n;
const AT_ONCE = 500;
/** What rounding could add to a norm. */
const SHORTER = 1 - 1e-9;

/**
 * The variance of one device's noise, rounded up: `min_devices` of the plan, less those who may be lost or work for the
 * server, have the deviation of the sum together. A server that says how many take part need not be believed.
 * @param {SecureSettings} settings @returns {bigint}
 */
export function shareOf({ noise_multiplier: multiplier, clip_norm: norm, min_devices: devices, ...settings }) {
  const certain = Math.max(1, devices - Math.ceil(devices * (settings.colluding_share + settings.lost_share)));
  const found = BigInt(Math.ceil(((multiplier * (norm ?? 0)) ** 2 / certain) * (1 + 1e-12))) + 1n;
  if (found < MIN_VARIANCE) throw new WireError("the plan's noise is too little for whole numbers; ask its operator");
  return found;
}

/** Independent numbers with P(x) ∝ exp(−x² / 2σ²). @param {number} length @param {bigint} variance @param {Draw} [draw] */
export async function gaussianNoise(length, variance, draw = uniform) {
  const found = new Float64Array(length);
  for (let i = 0; i < length; i++) {
    found[i] = Number(gaussian(variance, draw));
    if (i % AT_ONCE === AT_ONCE - 1) await yieldToEventLoop();
  }
  return found;
}

/**
 * Whole numbers in the same direction whose L2 norm is at most `norm`.
 * @template {Int32Array | Float64Array} Numbers @param {Numbers[]} parts @param {number} norm @returns {Numbers[]}
 */
export function clipped(parts, norm) {
  let squares = 0;
  for (const part of parts) for (const value of part) squares += value * value;
  const length = Math.sqrt(squares);
  /** @param {Numbers} part */
  const shorter = (part) => /** @type {Numbers} */ (part.map((value) => Math.trunc(value * (norm / length) * SHORTER)));
  return length <= norm ? parts : parts.map(shorter);
}

/**
 * Clip a round's numbers and add the phone's share of the noise, where the plan asks for it. The last number, that the
 * phone is there, stays as it is. They are kept with it: it is drawn once.
 * @param {Float64Array} vector @param {SecureSettings} secure
 */
export async function makePrivate(vector, secure) {
  if (!secure.noise_multiplier) return;
  const [numbers] = clipped([vector.subarray(0, -1)], secure.clip_norm ?? 0);
  const noise = await gaussianNoise(numbers.length, shareOf(secure));
  numbers.forEach((number, i) => (vector[i] = number + noise[i]));
}

/** Random bytes that are drawn many at a time, since asking the browser for some costs more than they do. */
const pool = { bytes: new Uint8Array(0), at: 0 };
const POOL_BYTES = 16_384;

/** @type {Draw} of the browser's random bytes */
function uniform(below) {
  const bits = (below - 1n).toString(2).length;
  const size = Math.ceil(bits / 8);
  for (;;) {
    if (pool.at + size > pool.bytes.length) [pool.bytes, pool.at] = [entropyOf(POOL_BYTES), 0];
    let found = 0n;
    for (let i = 0; i < size; i++) found = (found << 8n) | BigInt(pool.bytes[pool.at++]);
    found >>= BigInt(8 * size - bits);
    if (found < below) return found;
  }
}

/** @param {bigint} variance @param {Draw} draw a discrete Laplace that is accepted by exp(−(|y| − σ²/t)² / 2σ²) */
function gaussian(variance, draw) {
  const scale = root(variance) + 1n;
  for (;;) {
    const value = laplace(scale, draw);
    const over = ((value < 0n ? -value : value) * scale - variance) ** 2n;
    if (isBelowExponential(over, 2n * variance * scale ** 2n, draw)) return value;
  }
}

/** The whole part of a square root. @param {bigint} value */
function root(value) {
  let found = BigInt(Math.floor(Math.sqrt(Number(value))));
  while (found * found > value) found--;
  while ((found + 1n) * (found + 1n) <= value) found++;
  return found;
}

/** A whole number with P(x) ∝ exp(−|x| / scale). @param {bigint} scale @param {Draw} draw */
function laplace(scale, draw) {
  for (;;) {
    const rest = draw(scale);
    if (!isBelowUnitExponential(rest, scale, draw)) continue;
    let whole = 0n;
    while (isBelowUnitExponential(1n, 1n, draw)) whole++;
    const value = rest + scale * whole;
    const isNegative = draw(2n) === 1n;
    if (value || !isNegative) return isNegative ? -value : value;
  }
}

/** Whether an event of probability exp(−top / bottom) happens. @param {bigint} top @param {bigint} bottom @param {Draw} draw */
function isBelowExponential(top, bottom, draw) {
  for (; top > bottom; top -= bottom) if (!isBelowUnitExponential(1n, 1n, draw)) return false;
  return isBelowUnitExponential(top, bottom, draw);
}

/** The same for a fraction of at most 1. @param {bigint} top @param {bigint} bottom @param {Draw} draw */
function isBelowUnitExponential(top, bottom, draw) {
  let k = 1n;
  while (draw(bottom * k) < top) k++;
  return k % 2n === 1n;
}
