/**
 * Who masks with whom, which each device draws for itself from the list of members: federation/secure_sums/membership.py
 * has the bounds and where they are from. All of it is whole numbers, the same on every machine.
 */

import { joined, utf8 } from "../protocol/signing.js";

const SECURITY_BITS = 40n;
const CORRECTNESS_BITS = 20n;
export const MIN_MEMBERS = 3;
const PER_MILLE = 1000;

/** @typedef {{neighbours: number, threshold: number, quorum: number}} Degree what the graph has for all: k, t, signers */

/**
 * The smallest degree for so many members, of whom per mille `colluding` and `lost`.
 * @param {number} members @param {number} colluding @param {number} lost @returns {Degree}
 */
export function degreeFor(members, colluding, lost) {
  if (members < MIN_MEMBERS) throw new Error(`a secure sum needs ${MIN_MEMBERS} members at least, not ${members}`);
  const [others, corrupt] = [members - 1, Math.floor((members * colluding) / PER_MILLE)];
  const gone = Math.floor((members * lost) / PER_MILLE);
  const quorum = Math.floor((members + corrupt) / 2) + 1;
  const [ofAll, ofRemoved] = [choices(others), choices(corrupt + gone)];
  const marked = [corrupt, gone].map((count) => ({ in: choices(count), out: choices(others - count) }));
  for (let k = 4; k < others; k += 2) {
    if ((BigInt(members) * ofRemoved(k / 2)) << SECURITY_BITS > ofAll(k / 2)) continue;
    const threshold = firstRare(members, tail(marked[0], k), ofAll(k), SECURITY_BITS);
    const lacking = firstRare(members, tail(marked[1], k), ofAll(k), CORRECTNESS_BITS);
    if (threshold >= 2 && threshold <= k + 1 - lacking) {
      return { neighbours: k, threshold: Math.min(Math.max(threshold, k / 2 + 1), k + 1 - lacking), quorum };
    }
  }
  return { neighbours: others, threshold: Math.floor(others / 2) + 1, quorum };
}

/** @typedef {(k: number) => bigint} Choices in how many ways k are drawn */

/** @param {number} of @returns {Choices} */
function choices(of) {
  const found = [1n];
  return (k) => {
    for (let at = found.length; at <= k; at++) found.push((found[at - 1] * BigInt(Math.max(0, of - at + 1))) / BigInt(at));
    return found[k];
  };
}

/**
 * For each j up to k + 1 the ways to draw k with j or more marked ones among them.
 * @param {{in: Choices, out: Choices}} marked @param {number} k @returns {bigint[]}
 */
function tail(marked, k) {
  const found = Array(k + 2).fill(0n);
  for (let j = k; j >= 0; j--) found[j] = found[j + 1] + marked.in(j) * marked.out(k - j);
  return found;
}

/**
 * The smallest j for which members · P[j or more] ≤ 2^−bits.
 * @param {number} members @param {bigint[]} ways @param {bigint} draws @param {bigint} bits
 */
function firstRare(members, ways, draws, bits) {
  return ways.findIndex((count) => (BigInt(members) * count) << bits <= draws);
}

/**
 * The neighbours of a member in rising order; members are counted from 0 as the list has them.
 * @param {number} index @param {number} members @param {number} degree @param {import("../protocol/signing.js").Bytes} seed
 * @returns {Promise<number[]>}
 */
export async function neighboursOf(index, members, degree, seed) {
  const all = Array.from({ length: members }, (_, other) => other);
  if (degree >= members - 1) return all.filter((other) => other !== index);
  const digests = await Promise.all(all.map((member) => crypto.subtle.digest("SHA-256", joined(seed, bigEndian(member)))));
  const keys = digests.map((digest) => new DataView(digest));
  const order = all.sort((one, other) => compared(keys[one], keys[other]));
  const place = order.indexOf(index);
  const found = [];
  for (let step = -(degree / 2); step <= degree / 2; step++) {
    if (step) found.push(order[(place + step + members) % members]);
  }
  return found.sort((one, other) => one - other);
}

/**
 * Deal devices into groups whose sizes differ by one at most: each one's, by their order here.
 * @param {readonly string[]} devices @param {number} groups @param {number} round @returns {Promise<number[]>}
 */
export async function groupsOf(devices, groups, round) {
  const drawn = devices.map((device) => crypto.subtle.digest("SHA-256", utf8(`groups/${round}/${device}`)));
  const keys = (await Promise.all(drawn)).map((digest) => new DataView(digest));
  const found = devices.map(() => 0);
  const order = devices.map((_, device) => device).sort((one, other) => compared(keys[one], keys[other]));
  order.forEach((device, place) => (found[device] = Math.floor((place * groups) / devices.length)));
  return found;
}

/** @param {DataView} one @param {DataView} other */
function compared(one, other) {
  for (let at = 0; at < one.byteLength; at += 4) {
    const difference = one.getUint32(at) - other.getUint32(at);
    if (difference) return difference;
  }
  return 0;
}

/** Four bytes of a number, the highest first. @param {number} number */
export function bigEndian(number) {
  const found = new Uint8Array(4);
  new DataView(found.buffer).setUint32(0, number);
  return found;
}
