/** The models that a phone has, behind one call: an embedding in, a score of each class out. */

import { headScores } from "./head.js";
import { best, nearnessScores, softmax } from "./nearest.js";

/** @typedef {import("../types.js").Model} Model */

/** @param {ArrayLike<number>} embedding (D) @param {Model} model @returns {Float64Array} (C), −Infinity: not known */
export function scoresOf(embedding, model) {
  return model.by === "head" ? headScores(embedding, model) : nearnessScores(embedding, model);
}

/** Whether the server's prototypes are asked, or what was learnt here. @param {Model} model */
export function sourceOf(model) {
  return model.by === "head" || model.by === "class_means" ? "personalized" : "global";
}

/**
 * The likeliest class of each embedding; throws where the model knows no class or gives no number.
 * @param {Float32Array} embeddings (n × D) @param {number} count n @param {Model} model @returns {Int32Array} (n)
 */
export function answersOf(embeddings, count, model) {
  if (!knowsAny(model)) throw new Error("no class has a prototype yet");
  const width = embeddings.length / Math.max(count, 1);
  return Int32Array.from({ length: count }, (_, row) => {
    return answerOf(scoresOf(embeddings.subarray(row * width, (row + 1) * width), model));
  });
}

/**
 * Probabilities of each class as they are shown, and the likeliest.
 * @param {ArrayLike<number>} embedding (D) @param {Model} model
 * @returns {{code: number, probabilities: Float64Array}}
 */
export function probabilitiesOf(embedding, model) {
  if (!knowsAny(model)) throw new Error("no class has a prototype yet");
  const scores = scoresOf(embedding, model);
  const code = answerOf(scores);
  return { code, probabilities: softmax(scores, model.by === "head" ? 1 : (model.temperature ?? 1)) };
}

/** @param {Float64Array} scores */
function answerOf(scores) {
  if (scores.some(Number.isNaN)) throw new Error("the model gives NaN on the phone's own windows");
  return best(scores);
}

/** @param {Model} model */
function knowsAny(model) {
  return model.by === "head" ? model.bias.some(Number.isFinite) : model.known.some((each) => each > 0);
}
