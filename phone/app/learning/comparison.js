/**
 * Whether a released model is worse than the present one: edge_agent/training/comparison.py, an exact sign test over
 * stretches of time, with the same stretches, decisions and words.
 */

import { threeDecimals } from "./numbers.js";

const STRETCH_S = 10;
const LEVEL = 0.05;

/** @typedef {{startS: ArrayLike<number>, y: ArrayLike<number>, session: ArrayLike<number>}} Windows (n) */

/**
 * Count the stretches of time on which one model is right more often, and less often.
 * @param {Windows} windows @param {ArrayLike<number>} mine (n) of 0 and 1 @param {ArrayLike<number>} other (n) of 0 and 1
 */
export function signTest(windows, mine, other) {
  /** @type {number[]} */
  const votes = [];
  byStretch(windows).forEach((number, i) => (votes[number] = (votes[number] ?? 0) + mine[i] - other[i]));
  const [better, worse] = [votes.filter((vote) => vote > 0).length, votes.filter((vote) => vote < 0).length];
  const [pBetter, pWorse] = [tail(better, better + worse), tail(worse, better + worse)];
  const words =
    `of ${votes.length} stretches of ${STRETCH_S} s it is right more often on ${better} and less often on ${worse} ` +
    `(p ${threeDecimals(pBetter)}, at most ${LEVEL} shows a gain)`;
  return { stretches: votes.length, better, worse, pBetter, isWorse: pWorse <= LEVEL, words };
}

/** The number of each window's stretch: one session, one class, no longer than STRETCH_S. @param {Windows} windows */
function byStretch({ startS, y, session }) {
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
  return number;
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
