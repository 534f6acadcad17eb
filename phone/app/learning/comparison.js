/**
 * Whether one model is better than another on the same windows: edge_agent/training/comparison.py, an exact sign test
 * over stretches of time, with the same stretches, decisions and words.
 */

import { pairwiseSum, threeDecimals } from "./numbers.js";

const STRETCH_S = 10;
const LEVEL = 0.05;
/** Of numbers that are equal but for rounding. */
const ROUNDING = 1e-9;
export const STRETCHES = `stretches of ${STRETCH_S} s`;

/** @typedef {{number: Int32Array, count: number}} Groups the number of the group (n) of each window, and how many */

/** Of `groups`, one model answers better on `better` and worse on `worse`; on the rest as well as the other. */
export class Paired {
  /** @param {number} groups @param {number} better @param {number} worse */
  constructor(groups, better, worse) {
    this.groups = groups;
    this.better = better;
    this.worse = worse;
  }

  /**
   * Compare where two models are right (n).
   * @param {Groups} groups @param {ArrayLike<number>} mine of 0 and 1 @param {ArrayLike<number>} other of 0 and 1
   */
  static of(groups, mine, other) {
    const votes = new Int32Array(groups.count);
    groups.number.forEach((number, i) => (votes[number] += mine[i] - other[i]));
    return new Paired(groups.count, votes.filter((vote) => vote > 0).length, votes.filter((vote) => vote < 0).length);
  }

  /** How often chance alone gives so many better groups, or more, of those that differ. */
  get pBetter() {
    return tail(this.better, this.better + this.worse);
  }

  get isBetter() {
    return this.pBetter <= LEVEL;
  }

  get isWorse() {
    return tail(this.worse, this.better + this.worse) <= LEVEL;
  }

  /** The counts in words. */
  get words() {
    return (
      `of ${this.groups} ${STRETCHES} it is right more often on ${this.better} and less often on ${this.worse} ` +
      `(p ${threeDecimals(this.pBetter)}, at most ${LEVEL} shows a gain)`
    );
  }
}

/** By how much more often one model is right than another, on average over groups, and the standard error of that. */
export class PairedGain {
  /** @param {number} groups @param {number} gain @param {number | null} error null: a single group has none */
  constructor(groups, gain, error) {
    this.groups = groups;
    this.gain = gain;
    this.error = error;
  }

  /**
   * Compare where two models are right (n).
   * @param {Groups} groups @param {ArrayLike<number>} mine of 0 and 1 @param {ArrayLike<number>} other of 0 and 1
   */
  static of(groups, mine, other) {
    const [votes, sizes] = [new Float64Array(groups.count), new Float64Array(groups.count)];
    groups.number.forEach((number, i) => {
      votes[number] += mine[i] - other[i];
      sizes[number]++;
    });
    const gains = votes.map((vote, group) => vote / Math.max(1, sizes[group]));
    const mean = gains.length ? pairwiseSum(gains) / gains.length : 0;
    if (gains.length < 2) return new PairedGain(gains.length, mean, null);
    const variance = pairwiseSum(gains.map((each) => (each - mean) ** 2)) / (gains.length - 1);
    return new PairedGain(gains.length, mean, Math.sqrt(variance) / Math.sqrt(gains.length));
  }

  /** Whether the gain is larger than its standard error; of one group alone, nobody can tell. */
  get isBetter() {
    return this.error !== null && this.gain > this.error + ROUNDING;
  }
}

/**
 * Group windows by stretches: one session, one class, no longer than `STRETCH_S` from its begin.
 * @param {{startS: Float64Array, y: Int32Array, session: Int32Array}} windows @returns {Groups}
 */
export function byStretch({ startS, y, session }) {
  const ordered = Array.from(y, (_, i) => i).sort(
    (a, b) => session[a] - session[b] || y[a] - y[b] || startS[a] - startS[b] || a - b,
  );
  const number = new Int32Array(y.length);
  let count = 0;
  let begin = 0;
  ordered.forEach((at, i) => {
    const before = ordered[i - 1];
    const same = i > 0 && session[at] === session[before] && y[at] === y[before];
    if (!same || startS[at] - begin >= STRETCH_S) {
      begin = startS[at];
      count++;
    }
    number[at] = count - 1;
  });
  return { number, count };
}

/**
 * Probability of so many successes or more in fair trials, exact and rounded once.
 * @param {number} successes @param {number} trials @returns {number}
 */
export function tail(successes, trials) {
  let ways = 0n;
  let choices = 1n;
  for (let k = trials; k >= successes; k--) {
    ways += choices;
    choices = (choices * BigInt(k)) / BigInt(trials - k + 1);
  }
  const dropped = Math.max(0, ways.toString(2).length - 64);
  let top = ways >> BigInt(dropped);
  if (top << BigInt(dropped) !== ways) top |= 1n;
  return Number(top) * 2 ** (dropped - trials);
}
