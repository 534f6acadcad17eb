/**
 * Shares of a secret, of which any t give it back and t − 1 say nothing (Shamir 1979), over the field of 2³¹ − 1:
 * federation/secure_sums/shamir.py. A secret of 32 bytes is eleven numbers of three bytes. A phone deals shares alone; the
 * server pieces secrets together. Points are below 2¹⁵, so that products are exact in the numbers of JavaScript.
 */

export const PRIME = 2 ** 31 - 1;
export const SECRET_BYTES = 32;
const LIMBS = 11;
const MAX_POINT = 2 ** 15;

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {(size: number) => Bytes} Entropy so many bytes that nobody can guess */

/**
 * A share for each of the points, which are different and from 1 on.
 * @param {Bytes} secret @param {readonly number[]} points @param {number} threshold @param {Entropy} entropy
 * @returns {Bytes[]}
 */
export function split(secret, points, threshold, entropy) {
  if (secret.length !== SECRET_BYTES) throw new Error(`a secret has ${SECRET_BYTES} bytes, not ${secret.length}`);
  const areRight = points.every((point) => Number.isInteger(point) && point >= 1 && point < MAX_POINT);
  if (!areRight || threshold < 1 || threshold > points.length || new Set(points).size < points.length) {
    throw new Error(`${points.length} points, threshold ${threshold}: expected t different points from 1 on`);
  }
  const coefficients = [...drawn((threshold - 1) * LIMBS, entropy), ...limbsOf(secret)]; // the highest power first
  return points.map((point) => {
    const share = new Uint32Array(LIMBS);
    for (let limb = 0; limb < LIMBS; limb++) {
      let value = 0;
      for (let at = limb; at < coefficients.length; at += LIMBS) value = (value * point + coefficients[at]) % PRIME;
      share[limb] = value;
    }
    return new Uint8Array(share.buffer);
  });
}

/** Uniform numbers of the field. @param {number} count @param {Entropy} entropy @returns {number[]} */
function drawn(count, entropy) {
  /** @type {number[]} */ const found = [];
  while (found.length < count) {
    const fresh = new Uint32Array(entropy(4 * (count - found.length + 8)).buffer);
    for (const number of fresh) if ((number & PRIME) !== PRIME) found.push(number & PRIME);
  }
  return found.slice(0, count);
}

/** @param {Bytes} secret @returns {number[]} */
function limbsOf(secret) {
  const byteAt = (/** @type {number} */ at) => (at < secret.length ? secret[at] : 0);
  return Array.from({ length: LIMBS }, (_, i) => byteAt(3 * i) + 256 * byteAt(3 * i + 1) + 65536 * byteAt(3 * i + 2));
}
