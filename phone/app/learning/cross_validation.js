/**
 * What a phone's windows say of what it learns where its holdout is too small: each part in time of each class is
 * answered by what was learnt from the rest. As edge_agent/training/folds.py, of the parts that a phone learns: the
 * network is frozen, so that a fold costs a head. Embeddings keep the normalization by the training windows.
 */

import { byStretch, isSmall } from "./comparison.js";
import { answersOf } from "./models.js";
import { timeFolds } from "./splits.js";

const FOLDS = 3;
const MAX_WINDOWS = 4096;
const NOT_VALIDATED = -1;

/** @typedef {import("../types.js").Examples} Examples */
/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("./learner.js").OwnModels} OwnModels */

/**
 * @typedef {object} CrossValidation
 * @property {{y: Int32Array, startS: Float64Array, session: Int32Array}} labelled (m) all labelled windows
 * @property {Float32Array} embeddings (m × D)
 * @property {Int32Array} head (m) answers of heads that were learnt without the window, −1: none
 * @property {Int32Array} means (m) of class means
 */

/**
 * Answer each window by what was learnt without its part; null where the holdout is large enough, or nothing is learnt.
 * @param {{train: Examples, holdout: Examples, windowS: number}} prepared
 * @param {{train: Float32Array, holdout: Float32Array}} embeddings (n × D) of both
 * @param {(embeddings: Float32Array, y: Int32Array) => Promise<OwnModels | null>} learn
 * @returns {Promise<CrossValidation | null>}
 */
export async function crossValidation({ train, holdout, windowS }, embeddings, learn) {
  const count = train.y.length + holdout.y.length;
  if (!isSmall(byStretch(holdout)) || !count || count > MAX_WINDOWS) return null;
  const labelled = {
    y: Int32Array.of(...train.y, ...holdout.y),
    startS: Float64Array.of(...train.startS, ...holdout.startS),
    session: Int32Array.of(...train.session, ...holdout.session),
  };
  const all = new Float32Array(embeddings.train.length + embeddings.holdout.length);
  all.set(embeddings.train);
  all.set(embeddings.holdout, embeddings.train.length);
  const width = all.length / count;
  const [head, means] = [new Int32Array(count).fill(NOT_VALIDATED), new Int32Array(count).fill(NOT_VALIDATED)];
  const rowsAt = (/** @type {Int32Array} */ places) => {
    const rows = new Float32Array(places.length * width);
    places.forEach((place, i) => rows.set(all.subarray(place * width, (place + 1) * width), i * width));
    return rows;
  };
  for (const { train: learnFrom, holdout: part } of timeFolds(labelled.y, labelled.startS, FOLDS, windowS)) {
    const own = await learn(
      rowsAt(learnFrom),
      learnFrom.map((i) => labelled.y[i]),
    );
    if (!own) continue;
    const rows = rowsAt(part);
    answersOf(rows, part.length, own.head).forEach((code, i) => (head[part[i]] = code));
    answersOf(rows, part.length, own.means).forEach((code, i) => (means[part[i]] = code));
  }
  return { labelled, embeddings: all, head, means };
}

/**
 * A model's answers to all labelled windows: of what was learnt here those of cross-validation.
 * @param {CrossValidation | null} known @param {Model} model @param {boolean} isNew whether it is what was learnt now
 * @returns {Int32Array | null}
 */
export function validatedAnswers(known, model, isNew) {
  if (!known) return null;
  if (model.by === "head") return isNew ? known.head : null;
  if (model.by === "class_means") return isNew ? known.means : null;
  return answersOf(known.embeddings, known.labelled.y.length, model);
}
