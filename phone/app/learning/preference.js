/**
 * Which of a phone's models serves: the one with the highest expected gain over the shared model. A port of
 * federation/rounds/serving.py, which has the formula, its sources and what the constants mean.
 */

import { pairwiseSum, roundHalfEven } from "./numbers.js";

const STEPS = 10_000;
const MAX_GAIN = 0.5;
const MIN_DEVICES = 10;
const MAX_PRIOR_WINDOWS = 20;
const TIE = 0.003;
const WINDOWS_PER_GROUP = 3;
const TYPICAL_VARIANCE = 0.05;
const TYPICAL_WEIGHT = 6;

/** @typedef {readonly number[]} GainSums of one candidate: count, Σ g, Σ (g² - v), then a count and Σ g for each class */
/**
 * @typedef {object} Evidence a candidate's gain over the shared model on held-out windows
 * @property {number[]} gain by class (C); NaN: no window @property {number[]} variance of these means (C)
 * @property {number} windows @property {number} mean of the classes with windows @property {number} meanVariance of that
 */
/** @typedef {{mean: number, variance: number, byClass: number[]}} Prior the gain on other devices; variance between these */
/** @typedef {{evidence: Evidence | null, prior: Prior | null, forgets: boolean}} Candidate forgets: classes it wasn't trained on */

/**
 * Compare how well a candidate and the shared model answer windows (n) of classes y.
 * @param {ArrayLike<number>} y @param {ArrayLike<number>} quality @param {ArrayLike<number>} shared its quality
 * @param {ArrayLike<number>} session numbers @param {number} classes @returns {Evidence}
 */
export function evidenceOf(y, quality, shared, session, classes) {
  const difference = Float64Array.from(quality, (each, i) => each - shared[i]);
  /** @type {number[][]} */
  const places = Array.from({ length: classes }, () => []);
  difference.forEach((_, i) => places[y[i]].push(i));
  const gain = places.map((members) => mean(members.map((i) => difference[i])));
  const squares = pairwiseSum(difference.map((each, i) => (each - gain[y[i]]) ** 2)) + TYPICAL_WEIGHT * TYPICAL_VARIANCE;
  const spread = squares / (y.length - gain.filter(isKnown).length + TYPICAL_WEIGHT);
  const variance = places.map((members) => spread / independentGroups(members.map((i) => session[i])));
  const known = variance.filter(isKnown);
  const meanVariance = pairwiseSum(known) / known.length ** 2;
  return { gain, variance, windows: y.length, mean: mean(gain.filter(isKnown)), meanVariance };
}

/** What a phone adds to its federation's sums. @param {Evidence} evidence @returns {number[]} */
export function reportOf({ gain, mean: all, meanVariance }) {
  const byClass = gain.flatMap((each) => (isKnown(each) ? [1, inSteps(each)] : [0, 0]));
  return [1, inSteps(all), inSteps(clipped(all) ** 2 - meanVariance, MAX_GAIN ** 2), ...byClass];
}

/**
 * Read a prior off the federation's sums, less the phone's own report; null for fewer than MIN_DEVICES.
 * @param {GainSums} sums @param {GainSums | null} [own] @returns {Prior | null}
 */
export function priorOf(sums, own) {
  const [count, total, square, ...rest] = sums.map((each, i) => each - (own?.[i] ?? 0));
  if (count < MIN_DEVICES) return null;
  const all = clipped(total / STEPS / count);
  const byClass = Array.from({ length: rest.length / 2 }, (_, code) => {
    const devices = rest[2 * code];
    return devices < MIN_DEVICES ? all : clipped(rest[2 * code + 1] / STEPS / devices);
  });
  return { mean: all, variance: Math.max(0, square / STEPS / count - all ** 2), byClass };
}

/**
 * Each candidate's expected gain over the shared model, without those of which nothing is known.
 * @template K @param {Map<K, Candidate>} candidates @param {readonly boolean[]} trained whether the phone trained on each
 * class (C) @param {number} recall the shared model's lowest of a class on the held-out windows @returns {Map<K, number>}
 */
export function expectedGains(candidates, trained, recall) {
  const weight = evidenceWeight([...candidates.values()]);
  const known = [...candidates].filter(([, { evidence, prior }]) => evidence || prior);
  return new Map(known.map(([name, candidate]) => [name, expectedGain(candidate, weight, trained, recall)]));
}

/**
 * The model to serve: of those within TIE of the highest expected gain, the first in the order of preference.
 * @template K @param {Map<K, number>} gains over the reference @param {readonly K[]} order @param {K} reference
 * @param {number} [margin] what a model must gain to take the reference's place @returns {K}
 */
export function likeliest(gains, order, reference, margin = 0) {
  const able = new Map([[reference, 0], ...[...gains].filter(([, gain]) => gain >= margin)]);
  const best = Math.max(...able.values());
  return order.find((name) => (able.get(name) ?? -Infinity) >= best - TIE) ?? reference;
}

/** @param {number[]} sessions of one class's windows @returns {number} NaN without any */
function independentGroups(sessions) {
  const numbers = [...new Set(sessions)];
  if (numbers.length === 1) return Math.max(1, sessions.length / WINDOWS_PER_GROUP);
  const sizes = numbers.map((number) => sessions.filter((each) => each === number).length);
  return sessions.length ** 2 / pairwiseSum(sizes.map((size) => size ** 2));
}

/** @param {Candidate[]} candidates */
function evidenceWeight(candidates) {
  const known = candidates.flatMap(({ evidence, prior }) => (evidence && prior ? [{ evidence, prior }] : []));
  if (!known.length) return 1;
  const between = pairwiseSum(known.map(({ prior }) => prior.variance));
  const sampling = pairwiseSum(known.map(({ evidence }) => evidence.meanVariance));
  const { windows } = known[0].evidence;
  return Math.max(between / (between + sampling), windows / (windows + MAX_PRIOR_WINDOWS));
}

/** @param {Candidate} candidate @param {number} weight @param {readonly boolean[]} trained @param {number} recall */
function expectedGain({ evidence, prior, forgets }, weight, trained, recall) {
  const seen = evidence && (prior ? weight * evidence.mean + (1 - weight) * prior.mean : evidence.mean);
  return mean(
    trained.map((isTrained, code) => {
      if (seen !== null && isKnown(evidence?.gain[code] ?? NaN)) return seen;
      return forgets && !isTrained ? -recall : (prior?.byClass[code] ?? 0);
    }),
  );
}

/** @param {number} value */
function isKnown(value) {
  return !Number.isNaN(value);
}

/** NaN of nothing. @param {number[]} values */
function mean(values) {
  return pairwiseSum(values) / values.length;
}

/** @param {number} value @param {number} [limit] */
function clipped(value, limit = MAX_GAIN) {
  return Math.min(limit, Math.max(-limit, value));
}

/** A whole number that travels; + 0 makes 0 of −0. @param {number} value @param {number} [limit] */
function inSteps(value, limit) {
  return roundHalfEven(STEPS * clipped(value, limit)) + 0;
}
