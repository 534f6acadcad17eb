/**
 * Which of a phone's models serves: the one with the highest expected gain over the shared model. A port of
 * federation/serving/preference.py, which has the formula and its sources, with the same constants.
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

/**
 * @typedef {readonly number[]} GainSums of one candidate, in steps of 1 / STEPS: count, Σ g, Σ (g² - v), then a count and
 *   Σ g for each class; they add
 * @typedef {object} Candidate what is known of a model that could serve instead of the shared one
 * @property {Evidence | null} evidence null: no held-out windows @property {Prior | null} prior
 * @property {boolean} forgets whether a class that it wasn't trained on counts as lost
 */

/** A candidate's gain over the shared model on held-out windows, by class (C); NaN: no window. */
export class Evidence {
  /** @param {number[]} gain mean by class @param {number[]} variance of these means @param {number} windows */
  constructor(gain, variance, windows) {
    this.gain = gain;
    this.variance = variance;
    this.windows = windows;
  }

  /**
   * Compare how well a candidate and the shared model answer windows of classes y (n).
   * @param {ArrayLike<number>} y @param {ArrayLike<number>} quality (n) @param {ArrayLike<number>} shared (n)
   * @param {ArrayLike<number>} session (n) numbers @param {number} classes
   */
  static of(y, quality, shared, session, classes) {
    const difference = Float64Array.from(quality, (each, i) => each - shared[i]);
    /** @type {number[][]} */
    const places = Array.from({ length: classes }, () => []);
    difference.forEach((_, i) => places[y[i]].push(i));
    const gain = places.map((members) => mean(members.map((i) => difference[i])));
    const groups = places.map((members) => independentGroups(members.map((i) => session[i])));
    const squares = pairwiseSum(difference.map((each, i) => (each - gain[y[i]]) ** 2)) + TYPICAL_WEIGHT * TYPICAL_VARIANCE;
    const freedom = y.length - places.filter((members) => members.length).length + TYPICAL_WEIGHT;
    return new Evidence(gain, groups.map((count) => squares / freedom / count), y.length);
  }

  /** The mean gain over the classes with windows. */
  get mean() {
    return mean(this.gain.filter((each) => !Number.isNaN(each)));
  }

  /** The sampling variance of that mean. */
  get meanVariance() {
    const known = this.variance.filter((each) => !Number.isNaN(each));
    return pairwiseSum(known) / known.length ** 2;
  }

  /** What the phone adds to its federation's sums. @returns {number[]} */
  report() {
    const square = clipped(this.mean) ** 2 - this.meanVariance;
    const byClass = this.gain.flatMap((each) => (Number.isNaN(each) ? [0, 0] : [1, inSteps(each)]));
    return [1, inSteps(this.mean), inSteps(square, MAX_GAIN ** 2), ...byClass];
  }
}

/** A candidate's gain on other devices. */
export class Prior {
  /** @param {number} mean @param {number} variance between devices @param {number[]} byClass mean of each class (C) */
  constructor(mean, variance, byClass) {
    this.mean = mean;
    this.variance = variance;
    this.byClass = byClass;
  }

  /**
   * Read it off the federation's sums, less the phone's own report; null for fewer than MIN_DEVICES.
   * @param {GainSums} sums @param {GainSums | null} [own]
   */
  static of(sums, own = null) {
    const [count, total, square, ...rest] = sums.map((each, i) => each - (own?.[i] ?? 0));
    if (count < MIN_DEVICES) return null;
    const all = clipped(total / STEPS / count);
    const byClass = rest.flatMap((devices, i) => {
      if (i % 2) return [];
      return clipped(devices >= MIN_DEVICES ? rest[i + 1] / STEPS / devices : all);
    });
    return new Prior(all, Math.max(0, square / STEPS / count - all ** 2), byClass);
  }
}

/**
 * Each candidate's expected gain over the shared model, without those of which nothing is known.
 * @template K @param {Map<K, Candidate>} candidates @param {readonly boolean[]} trained whether the phone trained on each
 * class (C) @param {number} recall the shared model's mean on the held-out windows @returns {Map<K, number>}
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
  /** @type {Map<number, number>} */
  const sizes = new Map();
  for (const session of sessions) sizes.set(session, 1 + (sizes.get(session) ?? 0));
  if (sizes.size === 1) return Math.max(1, sessions.length / WINDOWS_PER_GROUP);
  return sessions.length ** 2 / [...sizes.values()].reduce((sum, size) => sum + size ** 2, 0);
}

/** How much the evidence counts against the prior, alike for all candidates. @param {Candidate[]} candidates */
function evidenceWeight(candidates) {
  let [between, sampling, windows] = [0, 0, 0];
  for (const { evidence, prior } of candidates) {
    if (!evidence || !prior) continue;
    between += prior.variance;
    sampling += evidence.meanVariance;
    windows ||= evidence.windows;
  }
  return sampling ? Math.max(between / (between + sampling), windows / (windows + MAX_PRIOR_WINDOWS)) : 1;
}

/** @param {Candidate} candidate @param {number} weight @param {readonly boolean[]} trained @param {number} recall */
function expectedGain({ evidence, prior, forgets }, weight, trained, recall) {
  const here = evidence && (prior ? weight * evidence.mean + (1 - weight) * prior.mean : evidence.mean);
  return mean(
    trained.map((isTrained, code) => {
      if (forgets && !isTrained) return -recall;
      return here !== null && !Number.isNaN(evidence?.gain[code]) ? here : (prior?.byClass[code] ?? 0);
    }),
  );
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
function inSteps(value, limit = MAX_GAIN) {
  return roundHalfEven(STEPS * clipped(value, limit)) + 0;
}
