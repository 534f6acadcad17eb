/**
 * The random draws of a round, with the bits of federation/seeds.py and of numpy's generator PCG64: M. E. O'Neill, PCG: A
 * Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number Generation, 2014 (XSL RR 128/64),
 * seeded as numpy's `SeedSequence` does, whose constants these are, and shuffled as `Generator.permutation` does.
 */

import { utf8 } from "../protocol/signing.js";

const MASK_64 = (1n << 64n) - 1n;
const MASK_128 = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
const POOL = 4;
const SEPARATOR = "\x1f";

/**
 * The 63-bit seed of the stream of that name.
 * @param {number} seed of the plan @param {readonly (string | number)[]} names such as ["order", client, round]
 * @returns {Promise<bigint>}
 */
export async function seedFor(seed, ...names) {
  const digest = await crypto.subtle.digest("SHA-256", utf8([seed, ...names].join(SEPARATOR)));
  return new DataView(digest).getBigUint64(0) >> 1n;
}

/**
 * Where the dropout counter of that name starts in a client's round, a number of so many bits.
 * @param {number} seed @param {string} client @param {number} round @param {string} name @param {number} bits
 */
export async function noiseSeed(seed, client, round, name, bits) {
  return (await seedFor(seed, "noise", client, round, name)) % (1n << BigInt(bits));
}

/** numpy's `Generator(PCG64(seed))`, as far as rounds draw from it. */
export class Generator {
  /** @param {bigint} seed below 2^64 */
  constructor(seed) {
    const [high, low, streamHigh, streamLow] = seedWords(seed);
    this.increment = ((((streamHigh << 64n) | streamLow) << 1n) | 1n) & MASK_128;
    this.state = 0n;
    this.advance();
    this.state = (this.state + ((high << 64n) | low)) & MASK_128;
    this.advance();
    /** @type {number | null} the upper half of a number of 64 bits, which is drawn next */
    this.half = null;
  }

  advance() {
    this.state = (this.state * MULTIPLIER + this.increment) & MASK_128;
  }

  /** @returns {bigint} of 64 bits */
  next64() {
    this.advance();
    const mixed = ((this.state >> 64n) ^ this.state) & MASK_64;
    const turn = this.state >> 122n;
    return ((mixed >> turn) | (mixed << (64n - turn))) & MASK_64;
  }

  /** @returns {number} of 32 bits */
  next32() {
    const { half } = this;
    if (half !== null) {
      this.half = null;
      return half;
    }
    const drawn = this.next64();
    this.half = Number(drawn >> 32n);
    return Number(drawn & 0xffffffffn);
  }

  /** A number from 0 to below 1 of 24 bits, as numpy's `random` gives for float32. */
  float32() {
    return (this.next32() >>> 8) / 2 ** 24;
  }

  /** A whole number from 0 to `max`, below 2^32: numbers of as many bits are drawn until one is. @param {number} max */
  integer(max) {
    if (!max) return 0; // nothing is drawn
    const mask = 2 ** (32 - Math.clz32(max)) - 1;
    for (;;) {
      const drawn = (this.next32() & mask) >>> 0;
      if (drawn <= max) return drawn;
    }
  }

  /** The numbers below `count` in a random order. @param {number} count @returns {Int32Array} */
  permutation(count) {
    const order = Int32Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = this.integer(i);
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }
}

/** Four words of 64 bits out of a seed: `SeedSequence(seed).generate_state(4, uint64)`. @param {bigint} seed */
function seedWords(seed) {
  const entropy = [Number(seed & 0xffffffffn), Number(seed >> 32n)];
  const pool = new Uint32Array(POOL);
  const hash = hasher(0x43b0d7e5, 0x931e8875);
  for (let i = 0; i < POOL; i++) pool[i] = hash(entropy[i] ?? 0);
  for (let source = 0; source < POOL; source++) {
    for (let target = 0; target < POOL; target++) {
      if (source !== target) pool[target] = mix(pool[target], hash(pool[source]));
    }
  }
  const out = hasher(0x8b51f9dd, 0x58f38ded);
  const words = Array.from({ length: 2 * POOL }, (_, i) => BigInt(out(pool[i % POOL])));
  return Array.from({ length: POOL }, (_, i) => words[2 * i] | (words[2 * i + 1] << 32n));
}

/** @param {number} constant @param {number} factor @returns {(value: number) => number} */
function hasher(constant, factor) {
  return (value) => {
    const mixed = value ^ constant;
    constant = Math.imul(constant, factor);
    return folded(Math.imul(mixed, constant));
  };
}

/** @param {number} one @param {number} other */
function mix(one, other) {
  return folded(Math.imul(0xca01f9dd, one) - Math.imul(0x4973f715, other));
}

/** @param {number} value */
function folded(value) {
  return (value ^ (value >>> 16)) >>> 0;
}
