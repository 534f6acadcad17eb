/**
 * The client's half of ridge regression from exact sums, as `federation/aggregation/ridge_numpy.py` has it: sums of
 * windows by class, the fixed point in which they travel, and the head that shared and own sums give. Sums are the same
 * bit for bit. A person's own activities are classes behind the shared ones.
 */

import { UnusableModelError } from "../protocol/errors.js";
import { roundHalfEven } from "./numbers.js";
import { yieldToEventLoop } from "./yield_to_event_loop.js";

/**
 * @typedef {object} RidgeSums of one client, by class: whole numbers of FEATURE_STEPS, exactly
 * @property {number} size d: features and a 1
 * @property {Float64Array} counts (classes) windows
 * @property {Float64Array} gram (classes × d (d + 1) / 2) Σ a aᵀ, upper triangles
 * @property {Float64Array} total (classes × d) Σ a
 */

/**
 * @typedef {object} FixedSums weighed sums in SUM_STEPS
 * @property {ArrayLike<number> | BigInt64Array} gram (d (d + 1) / 2) the upper triangle
 * @property {ArrayLike<number> | BigInt64Array} moment (d × classes)
 * @property {number} classes
 */

/**
 * @typedef {object} Head scores are weight · features + bias
 * @property {Float64Array} weight (classes × width)
 * @property {Float64Array} bias (classes)
 */

const FEATURE_STEPS = 4096;
const SUM_STEPS = 32768;
const LIMIT = 2 ** 31 - 1;
/** Milliseconds of work before the page has its turn. */
const SLICE_MS = 12;

/** @param {number} classes @param {number} width features @returns {RidgeSums} sums of no window */
export function emptySums(classes, width) {
  const size = width + 1;
  return {
    size,
    counts: new Float64Array(classes),
    gram: new Float64Array(classes * triangle(size)),
    total: new Float64Array(classes * size),
  };
}

/**
 * Add windows' features to sums, clipped to ±clip.
 * @param {RidgeSums} sums changed @param {ArrayLike<number>} features (n × width) @param {ArrayLike<number>} y (n)
 * @param {number} clip @param {1 | -1} [sign] of −1: windows that were added are taken out @returns {Promise<void>}
 */
export async function addWindows(sums, features, y, clip, sign = 1) {
  const { size, counts, gram, total } = sums;
  const width = size - 1;
  if (features.length !== y.length * width) {
    throw new Error(`${features.length} numbers for ${y.length} windows; expected ${width} of each`);
  }
  const steps = new Float64Array(size).fill(FEATURE_STEPS);
  const turns = new Turns();
  for (let row = 0; row < y.length; row++) {
    const code = y[row];
    if (!(code >= 0 && code < counts.length)) {
      throw new Error(`window ${row} has class ${code}; expected 0 to ${counts.length - 1}`);
    }
    for (let i = 0; i < width; i++) {
      steps[i] = roundHalfEven(Math.min(Math.max(features[row * width + i], -clip), clip) * FEATURE_STEPS);
    }
    counts[code] += sign;
    for (let i = 0, at = code * triangle(size), to = code * size; i < size; i++) {
      const step = sign * steps[i];
      total[to + i] += step;
      for (let j = i; j < size; j++) gram[at++] += step * steps[j];
    }
    await turns.next();
  }
}

/**
 * What a client sends: each class weighs √n, and what is beyond 32 bits is cut off there.
 * @param {RidgeSums} sums @returns {{gram: Int32Array, moment: Int32Array, classes: number}}
 */
export function travelling({ size, counts, gram, total }) {
  const classes = counts.length;
  const length = triangle(size);
  const weighed = new Float64Array(length);
  const moment = new Int32Array(size * classes);
  counts.forEach((count, code) => {
    if (!count) return;
    const weight = 1 / Math.sqrt(count);
    for (let i = 0, from = code * length; i < length; i++) weighed[i] += gram[from + i] * weight;
    for (let i = 0; i < size; i++) moment[i * classes + code] = fixed((total[code * size + i] * weight) / FEATURE_STEPS);
  });
  return { gram: Int32Array.from(weighed, (value) => fixed(value / FEATURE_STEPS ** 2)), moment, classes };
}

/** @typedef {{ridge: number, floor?: number}} Damping λ, and what is added besides to sums that have noise */

/**
 * The head that shared and own sums give: W = (G + N Gᵢ + (λ tr/d + floor) I)⁻¹ (B + N Bᵢ), by Cholesky; the page has
 * its turns.
 * @param {FixedSums} shared
 * @param {FixedSums | null} own may have classes behind the shared ones, which come out last; null: the shared head
 * @param {number} clients N, at least 1 times the method's `own_weight`
 * @param {Damping} damping
 * @param {readonly number[] | null} [columns] the features that the head uses; the others weigh 0. All where null
 * @returns {Promise<Head>}
 */
export async function solve(shared, own, clients, damping, columns = null) {
  const size = shared.moment.length / shared.classes;
  const classes = own?.classes ?? shared.classes;
  checkAlike(shared, own, size);
  const used = columns ? [...columns, size - 1] : Array.from({ length: size }, (_, i) => i);
  const gram = lowerTriangle(shared.gram, own?.gram ?? null, clients, used, size);
  const solution = new Float64Array(used.length * classes);
  used.forEach((column, i) => {
    for (let k = 0; k < classes; k++) {
      const all = k < shared.classes ? Number(shared.moment[column * shared.classes + k]) : 0;
      solution[i * classes + k] = (all + (own ? clients * Number(own.moment[column * classes + k]) : 0)) / SUM_STEPS;
    }
  });
  damp(gram, used.length, damping);
  await factorize(gram, used.length);
  substitute(gram, used.length, solution, classes);
  const head = { weight: new Float64Array(classes * (size - 1)), bias: new Float64Array(classes) };
  used.forEach((column, i) => {
    for (let k = 0; k < classes; k++) {
      if (column === size - 1) head.bias[k] = solution[i * classes + k];
      else head.weight[k * (size - 1) + column] = solution[i * classes + k];
    }
  });
  return head;
}

/**
 * The sums of these features alone: heads solved of them give the others no weight.
 * @param {FixedSums} sums @param {readonly number[]} columns @returns {FixedSums}
 */
export function restricted({ gram, moment, classes }, columns) {
  const size = moment.length / classes;
  const used = new Uint8Array(size);
  for (const column of [...columns, size - 1]) used[column] = 1;
  const found = { gram: Float64Array.from(gram, Number), moment: Float64Array.from(moment, Number), classes };
  for (let i = 0, at = 0; i < size; i++) {
    for (let j = i; j < size; j++, at++) if (!used[i] || !used[j]) found.gram[at] = 0;
    if (!used[i]) found.moment.fill(0, i * classes, (i + 1) * classes);
  }
  return found;
}

/**
 * The mean of the head on all features and, with so large a share, the one on `columns`, if there are any. Classes behind
 * the shared ones are those of the head on all features: as federation/aggregation/ridge_numpy.py.
 * @param {FixedSums} shared @param {FixedSums | null} own @param {number} clients @param {Damping} damping
 * @param {readonly number[]} columns @param {number} share @returns {Promise<Head>}
 */
export async function solveMean(shared, own, clients, damping, columns, share) {
  const whole = await solve(shared, own, clients, damping);
  if (!columns.length || !share) return whole;
  const part = await solve(shared, own, clients, damping, columns);
  const mean = (/** @type {Float64Array} */ one, /** @type {Float64Array} */ other) => {
    const federated = (one.length / whole.bias.length) * shared.classes;
    return one.map((value, i) => (i < federated ? (1 - share) * value + share * other[i] : value));
  };
  return { weight: mean(whole.weight, part.weight), bias: mean(whole.bias, part.bias) };
}

/**
 * How far a mean of some features lies from everybody's, in everybody's deviations: the root mean square over them, by
 * the covariance of all windows in the sums (Mahalanobis). 0 where no window is in them, or their noise hides it.
 * @param {FixedSums} shared @param {readonly number[]} columns of the features @param {readonly number[]} mean of them
 * @param {number} variance added to everybody's @returns {Promise<number>}
 */
export async function distanceFromAll(shared, columns, mean, variance) {
  const size = shared.moment.length / shared.classes;
  const squares = lowerTriangle(shared.gram, null, 0, [...columns, size - 1], size);
  const [count, last] = [columns.length, columns.length * (columns.length + 1)];
  const weight = squares[last + count];
  if (!(weight > 0)) return 0;
  const all = columns.map((_, i) => squares[last + i] / weight);
  const covariance = new Float64Array(count * count);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j <= i; j++) {
      covariance[i * count + j] = squares[i * (count + 1) + j] / weight - all[i] * all[j] + (i === j ? variance : 0);
    }
  }
  const away = Float64Array.from(mean, (value, i) => value - all[i]);
  const solved = away.slice();
  try {
    await factorize(covariance, count);
  } catch {
    return 0; // no covariance, as noise can make it
  }
  substitute(covariance, count, solved, 1);
  return Math.sqrt(Math.max(0, away.reduce((total, value, i) => total + value * solved[i], 0) / count));
}

/** @param {ArrayLike<number>} features (width) @param {Head} head @returns {Float64Array} (classes) */
export function headScores(features, { weight, bias }) {
  const width = features.length;
  if (weight.length !== bias.length * width) {
    throw new Error(`${weight.length} weights of ${bias.length} classes; expected ${width} of each`);
  }
  return bias.map((score, code) => {
    for (let i = 0, at = code * width; i < width; i++) score += weight[at + i] * features[i];
    return score;
  });
}

/** @param {ArrayLike<number>} features (n × width) @param {Head} head @returns {number[]} the class of each window */
export function predict(features, head) {
  const width = head.weight.length / head.bias.length;
  const rows = Float64Array.from(features);
  return Array.from({ length: rows.length / width }, (_, row) => {
    const scores = headScores(rows.subarray(row * width, (row + 1) * width), head);
    return scores.indexOf(Math.max(...scores));
  });
}

/** Gives the page its turn whenever SLICE_MS have passed. */
class Turns {
  #since = performance.now();

  /** @returns {Promise<void>} */
  async next() {
    if (performance.now() - this.#since < SLICE_MS) return;
    await yieldToEventLoop();
    this.#since = performance.now();
  }
}

/** @param {number} size @returns {number} */
function triangle(size) {
  return (size * (size + 1)) / 2;
}

/** @param {number} value @returns {number} */
function fixed(value) {
  return Math.min(Math.max(roundHalfEven(value * SUM_STEPS), -LIMIT), LIMIT);
}

/** @param {FixedSums} shared @param {FixedSums | null} own @param {number} size */
function checkAlike(shared, own, size) {
  const isWhole = Number.isInteger(size) && shared.gram.length === triangle(size);
  const isAlike = !own || (own.moment.length === size * own.classes && own.gram.length === shared.gram.length);
  if (isWhole && isAlike && (!own || own.classes >= shared.classes)) return;
  throw new Error(
    `the shared sums have ${shared.gram.length} and ${shared.moment.length} numbers of ${shared.classes} classes, ` +
      `this phone's ${own?.gram.length} and ${own?.moment.length} of ${own?.classes}; expected sums of one network`,
  );
}

/**
 * The used rows and columns of shared and own sums, whose upper triangles are packed row by row: row i of the result
 * has its first i + 1 numbers, which is the lower triangle.
 * @param {ArrayLike<number> | BigInt64Array} shared @param {ArrayLike<number> | BigInt64Array | null} own
 * @param {number} clients @param {readonly number[]} used @param {number} size
 * @returns {Float64Array} (used × used)
 */
function lowerTriangle(shared, own, clients, used, size) {
  const gram = new Float64Array(used.length * used.length);
  used.forEach((row, i) => {
    for (let j = 0; j <= i; j++) {
      const [low, high] = used[j] < row ? [used[j], row] : [row, used[j]];
      const at = low * size - (low * (low - 1)) / 2 + high - low;
      const sum = Number(shared[at]) + (own ? clients * Number(own[at]) : 0);
      gram[i * used.length + j] = sum / SUM_STEPS;
    }
  });
  return gram;
}

/** @param {Float64Array} gram @param {number} n @param {Damping} damping */
function damp(gram, n, { ridge, floor = 0 }) {
  let trace = 0;
  for (let i = 0; i < n; i++) trace += gram[i * n + i];
  // noise may have made it negative
  const added = trace > 0 ? (ridge * trace) / n + floor : floor || 1;
  for (let i = 0; i < n; i++) gram[i * n + i] += added;
}

/** Put L with L Lᵀ = G in the place of G's lower triangle. @param {Float64Array} gram @param {number} n */
async function factorize(gram, n) {
  const turns = new Turns();
  for (let i = 0; i < n; i++) {
    const row = i * n;
    for (let j = 0; j <= i; j++) {
      const other = j * n;
      // two sums, which the processor works on at the same time
      let even = gram[row + j];
      let odd = 0;
      let k = 0;
      for (; k + 1 < j; k += 2) {
        even -= gram[row + k] * gram[other + k];
        odd += gram[row + k + 1] * gram[other + k + 1];
      }
      if (k < j) even -= gram[row + k] * gram[other + k];
      const rest = even - odd;
      if (j < i) gram[row + j] = rest / gram[other + j];
      else if (rest > 0) gram[row + i] = Math.sqrt(rest);
      else throw new UnusableModelError("the sums are not those of any windows: their matrix is not positive definite");
    }
    await turns.next();
  }
}

/**
 * Solve L Lᵀ W = B in the place of B (n × classes).
 * @param {Float64Array} lower @param {number} n @param {Float64Array} solution @param {number} classes
 */
function substitute(lower, n, solution, classes) {
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < classes; k++) {
      let sum = solution[i * classes + k];
      for (let j = 0; j < i; j++) sum -= lower[i * n + j] * solution[j * classes + k];
      solution[i * classes + k] = sum / lower[i * n + i];
    }
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = 0; k < classes; k++) {
      let sum = solution[i * classes + k];
      for (let j = i + 1; j < n; j++) sum -= lower[j * n + i] * solution[j * classes + k];
      solution[i * classes + k] = sum / lower[i * n + i];
    }
  }
}
