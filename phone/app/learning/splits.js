/**
 * Training and holdout windows of a phone: of each class the last ones in time are held out, and windows that overlap
 * one of these are left out of the training. As `_temporal` of har_pipeline/splits.py.
 */

import { roundHalfEven } from "./numbers.js";

/** Windows that only touch share no sample; a microsecond absorbs the rounding of times since 1970. */
const ROUNDING_S = 1e-6;

/**
 * @typedef {object} Split places of windows, ascending
 * @property {Int32Array} train
 * @property {Int32Array} holdout
 */

/**
 * Split windows in time; of a class with two windows or more at least one is held out, unless `testShare` is 0.
 * @param {ArrayLike<number>} y (n) classes @param {ArrayLike<number>} startS (n) begins in seconds
 * @param {number} testShare of each class, from 0 to below 1 @param {number} windowS length of a window in seconds
 * @returns {Split}
 */
export function temporalSplit(y, startS, testShare, windowS) {
  if (!(testShare >= 0 && testShare < 1)) {
    throw new Error(`the plan's test_share is ${testShare}; expected 0 or more, and less than 1`);
  }
  const held = new Uint8Array(y.length);
  /** @type {Map<number, number[]>} */
  const classes = new Map();
  for (let i = 0; i < y.length; i++) {
    const members = classes.get(y[i]);
    if (members) members.push(i);
    else classes.set(y[i], [i]);
  }
  for (const members of classes.values()) {
    if (members.length < 2 || !testShare) continue;
    members.sort((a, b) => startS[a] - startS[b] || a - b);
    const count = Math.max(1, roundHalfEven(testShare * members.length));
    for (const i of members.slice(-count)) held[i] = 1;
  }
  const all = Array.from(held, (_, i) => i);
  const holdout = all.filter((i) => held[i]);
  const shared = overlaps(
    startS,
    holdout.map((i) => startS[i]),
    windowS,
  );
  return {
    train: Int32Array.from(all.filter((i) => !held[i] && !shared[i])),
    holdout: Int32Array.from(holdout),
  };
}

/**
 * Thin windows out to at most `max`, over all of the time that they cover, so that no class goes missing.
 * @param {Int32Array} places @param {number} max two or more @returns {Int32Array}
 */
export function evenly(places, max) {
  const last = places.length - 1;
  if (last < max) return places;
  const step = last / (max - 1);
  return Int32Array.from({ length: max }, (_, i) => places[i < max - 1 ? Math.floor(i * step) : last]);
}

/**
 * Tell for each window whether it shares time with one of the others.
 * @param {ArrayLike<number>} startS (n) @param {readonly number[]} others (m) @param {number} windowS
 * @returns {Uint8Array} (n) of 0 and 1
 */
export function overlaps(startS, others, windowS) {
  const shared = new Uint8Array(startS.length);
  if (!others.length) return shared;
  const ordered = Float64Array.from(others).sort();
  const near = windowS - ROUNDING_S;
  for (let i = 0; i < startS.length; i++) {
    const after = firstNotBefore(ordered, startS[i]);
    const next = ordered[Math.min(after, ordered.length - 1)] - startS[i];
    const last = startS[i] - ordered[Math.max(after - 1, 0)];
    shared[i] = Math.abs(next) < near || Math.abs(last) < near ? 1 : 0;
  }
  return shared;
}

/** @param {Float64Array} ordered @param {number} value @returns {number} */
function firstNotBefore(ordered, value) {
  let low = 0;
  let high = ordered.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ordered[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
