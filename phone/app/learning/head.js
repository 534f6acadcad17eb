/**
 * A phone's own head: softmax regression on standardized embeddings, the sum of cross-entropies plus ‖W‖² / 2C, biases
 * free, as scikit-learn's LogisticRegression minimizes it of three classes or more. Only classes with training windows
 * have a score: of others a phone has learnt nothing.
 */

import { minimize } from "./lbfgs.js";

/**
 * @typedef {object} Head scores are weight · e + bias
 * @property {Float64Array} weight (classes × width)
 * @property {Float64Array} bias (classes) −Infinity for a class that was not learnt
 */

/** As scikit-learn's default. */
export const C = 1;

/**
 * Learn a head from n embeddings; null where they have fewer than two classes.
 * @param {Float32Array} embeddings (n × width) @param {ArrayLike<number>} y (n) @param {number} classes
 * @param {number} width @param {{c?: number, iterations?: number}} [options] @returns {Promise<Head | null>}
 */
export async function trainHead(embeddings, y, classes, width, { c = C, iterations = 300 } = {}) {
  const learnt = [...new Set(Array.from(y))].sort((a, b) => a - b);
  if (learnt.length < 2) return null;
  const { rows, mean, std } = standardized(embeddings, y.length, width);
  const truth = Int32Array.from(y, (code) => learnt.indexOf(code));
  const loss = crossEntropy(rows, truth, learnt.length, width, c);
  const { at } = await minimize(loss, new Float64Array(learnt.length * (width + 1)), { iterations });
  const head = { weight: new Float64Array(classes * width), bias: new Float64Array(classes).fill(-Infinity) };
  learnt.forEach((code, k) => {
    const from = k * (width + 1);
    let bias = at[from + width];
    for (let i = 0; i < width; i++) {
      const weight = at[from + i] / std[i];
      head.weight[code * width + i] = weight;
      bias -= weight * mean[i];
    }
    head.bias[code] = bias;
  });
  return head;
}

/** @param {ArrayLike<number>} embedding (width) @param {Head} head @returns {Float64Array} (classes) */
export function headScores(embedding, { weight, bias }) {
  const width = embedding.length;
  if (weight.length !== bias.length * width) {
    throw new Error(`${weight.length} weights of ${bias.length} classes; expected ${width} of each`);
  }
  return bias.map((score, code) => {
    if (score === -Infinity) return score;
    let sum = score;
    for (let i = 0, at = code * width; i < width; i++) sum += weight[at + i] * embedding[i];
    return sum;
  });
}

/** @param {Float32Array} embeddings @param {number} count @param {number} width */
function standardized(embeddings, count, width) {
  const mean = new Float64Array(width);
  const std = new Float64Array(width);
  embeddings.forEach((value, i) => (mean[i % width] += value / count));
  embeddings.forEach((value, i) => (std[i % width] += (value - mean[i % width]) ** 2 / count));
  // what is constant but for rounding stays, as in scikit-learn's StandardScaler
  std.forEach((variance, i) => (std[i] = variance > 1e-15 * (1 + mean[i] ** 2) ? Math.sqrt(variance) : 1));
  const rows = new Float64Array(embeddings.length);
  for (let i = 0; i < rows.length; i++) rows[i] = (embeddings[i] - mean[i % width]) / std[i % width];
  return { rows, mean, std };
}

/**
 * The mean loss and its gradient by weights and biases, (classes × (width + 1)), the bias last in each row.
 * @param {Float64Array} rows @param {Int32Array} y @param {number} classes @param {number} width @param {number} c
 */
function crossEntropy(rows, y, classes, width, c) {
  const decay = 1 / (c * y.length);
  const errors = new Float64Array(classes);
  /** @param {Float64Array} at @param {Float64Array} gradient */
  return (at, gradient) => {
    gradient.fill(0);
    let total = 0;
    for (let row = 0; row < y.length; row++) {
      const from = row * width;
      let highest = -Infinity;
      for (let k = 0, to = 0; k < classes; k++, to += width + 1) {
        let score = at[to + width];
        for (let i = 0; i < width; i++) score += at[to + i] * rows[from + i];
        errors[k] = score;
        highest = Math.max(highest, score);
      }
      let sum = 0;
      const own = errors[y[row]];
      for (let k = 0; k < classes; k++) sum += errors[k] = Math.exp(errors[k] - highest);
      total += Math.log(sum) + highest - own;
      for (let k = 0, to = 0; k < classes; k++, to += width + 1) {
        const error = (errors[k] / sum - (k === y[row] ? 1 : 0)) / y.length;
        for (let i = 0; i < width; i++) gradient[to + i] += error * rows[from + i];
        gradient[to + width] += error;
      }
    }
    let square = 0;
    for (let k = 0, to = 0; k < classes; k++, to += width + 1) {
      for (let i = to; i < to + width; i++) {
        square += at[i] * at[i];
        gradient[i] += decay * at[i];
      }
    }
    return total / y.length + (decay / 2) * square;
  };
}
