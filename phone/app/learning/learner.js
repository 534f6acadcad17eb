/**
 * What a phone learns: its windows as training and holdout sets, the class means that it sends, models of its own, and
 * which model it uses. Embeddings are computed elsewhere (`embedder.js`), and nothing is stored here.
 */

import { evaluate } from "./acceptance.js";
import { classMeans } from "./class_means.js";
import { byStretch } from "./comparison.js";
import { crossValidation, validatedAnswers } from "./cross_validation.js";
import { examplesAt, labelledWindows, windowSettings } from "./examples.js";
import { trainHead } from "./head.js";
import { holdoutMetrics } from "./metrics.js";
import { answersOf, probabilitiesOf, scoresOf, sourceOf } from "./models.js";
import { fitTemperature } from "./nearest.js";
import { beforeModel, normalized } from "./normalization.js";
import { ClassSoundness } from "./soundness.js";
import { evenly, temporalSplit } from "./splits.js";

/** @typedef {import("../types.js").StoredWindow} StoredWindow */
/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("../types.js").Prototypes} Prototypes */
/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").Question} Question */
/** @typedef {import("../types.js").Choice} Choice */
/** @typedef {import("../types.js").Verdict} Verdict */
/** @typedef {import("../types.js").Normalization} Normalization */

/** @typedef {import("../types.js").HeadModel} HeadModel */
/** @typedef {{head: HeadModel, means: Prototypes}} OwnModels */

/** What models are called in a verdict. */
const NAMES = { prototypes: "global", class_means: "class-means", head: "personalized" };
/** At most so many windows judge a model: a native device's default of holdout_windows. */
const HOLDOUT_WINDOWS = 1024;
/** Half a minute: of fewer, mean and deviation say nothing of a phone. */
const MIN_WINDOWS = 20;

export class Learner {
  /** @param {{margin?: number}} [options] least gain in macro-F1 of a model that replaces the present one */
  constructor({ margin = 0 } = {}) {
    this.margin = margin;
    /** @type {{key: string, prepared: Prepared} | null} */
    this.last = null;
    /** @type {WeakMap<Float32Array, Promise<OwnModels | null>>} what was learnt here, by the embeddings it is of */
    this.learnt = new WeakMap();
  }

  /**
   * Split the labelled windows in time and normalize them. Asked again about the same windows it returns the same
   * arrays, whose embeddings are known then.
   * @param {readonly StoredWindow[]} windows in the order in which they are stored @param {Plan} plan
   * @returns {Prepared}
   */
  prepare(windows, plan) {
    const all = labelledWindows(windows, plan.labels);
    const outline = all.windows.map(({ id, startMs, label, session }) => [id, startMs, label, session]);
    const key = JSON.stringify([plan.labels, plan.data, outline]);
    if (this.last?.key === key && all.windows.every(({ id }) => id !== undefined)) return this.last.prepared;
    const { windowS } = windowSettings(plan.data);
    const split = temporalSplit(all.y, all.startS, plan.data.test_share, windowS);
    const training = Array.from(split.train, (i) => all.windows[i].x);
    const normalization = beforeModel(plan.data, training);
    const prepared = {
      train: examplesAt(all, split.train, normalization),
      holdout: examplesAt(all, evenly(split.holdout, HOLDOUT_WINDOWS), normalization),
      normalization,
      windowS,
      ids: all.windows.flatMap(({ id }) => id ?? []),
    };
    this.last = { key, prepared };
    return prepared;
  }

  /**
   * How a live window is normalized: as the training windows are or, where the phone has none, by all that it has
   * recorded. Throws while these are too few. @param {Prepared} prepared of the windows
   * @param {readonly StoredWindow[]} windows @param {Plan} plan @returns {Normalization | null}
   */
  normalizationOf({ train, normalization }, windows, { data }) {
    if (!normalization || train.y.length) return normalization;
    if (windows.length < MIN_WINDOWS) {
      throw new Error(
        `it has to know this phone's sensors first, by ${MIN_WINDOWS} windows (half a minute) of any motion; there ` +
          `are ${windows.length}`,
      );
    }
    const some = evenly(Int32Array.from(windows.keys()), HOLDOUT_WINDOWS);
    return beforeModel(data, Array.from(some, (i) => windows[i].x));
  }

  /**
   * What a phone sends of a round: the mean embedding (classes × dim) of each class and its examples (classes).
   * @param {Float32Array} embeddings (n × dim) @param {Int32Array} y (n) @param {number} classes @param {number} dim
   */
  classMeans(embeddings, y, classes, dim) {
    return classMeans(embeddings, y, classes, dim);
  }

  /**
   * What a model scores on the holdout, under the names that updates carry.
   * @param {Model} model @param {import("../types.js").Examples} holdout
   * @param {Float32Array} embeddings (n, D) of the holdout @param {readonly string[]} labels
   * @returns {Record<string, number>}
   */
  measure(model, holdout, embeddings, labels) {
    const answered = answersOf(embeddings, holdout.y.length, model);
    return holdoutMetrics(ClassSoundness.of(holdout.y, answered, labels));
  }

  /**
   * Judge a model by the gate of native devices. `others` are models that would be used in its place if they, too, may
   * replace the present one, and score higher. @param {Question} question @returns {Verdict}
   */
  judge({ candidate, present, others = [], holdout, embeddings, labels, score, release = 0, crossed = null }) {
    const source = sourceOf(candidate);
    const attempt = (/** @type {Model} */ model) => {
      const isNew = model === candidate || others.includes(model);
      return attemptOf(model, candidate.sha256, embeddings, holdout.y.length, crossed, isNew);
    };
    const { answer, reason, found, instead, compared } = evaluate(
      attempt(candidate),
      { kind: source === "global" ? "adopt" : "train", serverScore: score, release },
      { y: holdout.y, groups: byStretch(holdout), labels, labelled: crossed?.labelled },
      present && attempt(present),
      others.map(attempt),
      { margin: this.margin },
    );
    return {
      answer,
      reason,
      score: found?.score ?? null,
      trivial: found && !found.obstacle ? found.trivial : null,
      source,
      model: answer === "adopted" ? candidate : (instead?.is ?? present),
      compared,
    };
  }

  /**
   * Judge the server's prototypes, and then what was learnt here: a head, or the phone's own class means where they do
   * better. What a rollout gives is judged alone. Returns the model to be used, null while none works, and verdicts.
   * @param {Choice} choice @returns {Promise<{model: Model | null, verdicts: Verdict[]}>}
   */
  async choose({ candidate, present, prepared, embeddings, labels, score, release = 0 }) {
    const { train, holdout } = prepared;
    const about = { holdout, embeddings: embeddings.holdout, labels, score };
    const shown = withTemperature(candidate, embeddings.train, train.y);
    const first = this.judge({ ...about, candidate: shown, present, release });
    if (release) return { model: first.model, verdicts: [first] };
    const own = await this.ownModels(embeddings.train, train.y, labels.length, candidate);
    if (!own) return { model: first.model, verdicts: [first] };
    const crossed = await this.crossValidation(prepared, embeddings, labels.length);
    const second = this.judge({ ...about, candidate: own.head, present: first.model, others: [own.means], crossed });
    return { model: second.model, verdicts: [first, second] };
  }

  /**
   * What cross-validation says of what is learnt here, where the holdout is small; else null.
   * @param {Prepared} prepared @param {{train: Float32Array, holdout: Float32Array}} embeddings
   * @param {number} classes
   */
  crossValidation(prepared, embeddings, classes) {
    return crossValidation(prepared, embeddings, (rows, y) => learn(rows, y, classes));
  }

  /**
   * Learn what a phone can learn by itself: a head, and the class means of its own windows; null of fewer than two
   * classes. The same embeddings are learnt from once.
   * @param {Float32Array} embeddings (n × D) of the training windows @param {Int32Array} y (n) @param {number} classes
   * @param {{round: number, sha256: string}} of the round and the light model @returns {Promise<OwnModels | null>}
   */
  async ownModels(embeddings, y, classes, { round, sha256 }) {
    let learnt = this.learnt.get(embeddings);
    if (!learnt) {
      learnt = learn(embeddings, y, classes);
      this.learnt.set(embeddings, learnt);
    }
    const own = await learnt;
    return own && { head: { ...own.head, round, sha256 }, means: { ...own.means, round, sha256 } };
  }
}

/**
 * Recognize one window as it was measured. Shown are softmax(−‖e − p‖² / T) of prototypes (`nearest.js` says why), and
 * the head's own softmax.
 * @param {Float32Array} x (128, 6) @param {{model: Model, normalization: Normalization | null}} by of `Prepared`
 * @param {{embed: (x: Float32Array) => Promise<Float32Array>}} embedder @param {readonly string[]} labels
 * @returns {Promise<{label: string, probability: number, probabilities: Record<string, number>}>}
 */
export async function recognize(x, { model, normalization }, embedder, labels) {
  const embedding = await embedder.embed(normalization ? normalized(x, normalization) : x);
  const { code, probabilities } = probabilitiesOf(embedding, model);
  return {
    label: labels[code],
    probability: probabilities[code],
    probabilities: Object.fromEntries(labels.map((label, i) => [label, probabilities[i]])),
  };
}

/**
 * Fit the temperature of shown probabilities to training windows; the answers stay as they are.
 * @param {Prototypes} model @param {Float32Array} embeddings (n × D) @param {Int32Array} y (n) @returns {Prototypes}
 */
export function withTemperature(model, embeddings, y) {
  const width = embeddings.length / Math.max(y.length, 1);
  const scores = Array.from(y, (_, row) => scoresOf(embeddings.subarray(row * width, (row + 1) * width), model));
  return { ...model, temperature: fitTemperature(scores, y) };
}

/**
 * @param {Float32Array} embeddings @param {Int32Array} y @param {number} classes
 * @returns {Promise<OwnModels | null>}
 */
async function learn(embeddings, y, classes) {
  const width = embeddings.length / Math.max(y.length, 1);
  const head = await trainHead(embeddings, y, classes, width);
  if (!head) return null;
  const { prototypes, counts } = classMeans(embeddings, y, classes, width);
  const named = { round: 0, sha256: "" };
  const means = withTemperature({ by: "class_means", prototypes, known: counts, ...named }, embeddings, y);
  return { head: { by: "head", ...head, ...named }, means };
}

/**
 * Ask a model about the holdout; one of another light model has other embeddings, and does not run.
 * @param {Model} model @param {string} sha256 @param {Float32Array} embeddings @param {number} count
 * @param {import("./cross_validation.js").CrossValidation | null} crossed @param {boolean} isNew
 */
function attemptOf(model, sha256, embeddings, count, crossed, isNew) {
  const named = { source: NAMES[model.by ?? "prototypes"], round: model.round, is: model };
  try {
    if (model.sha256 !== sha256) throw new Error("it is of another network");
    const answered = answersOf(embeddings, count, model);
    return { model: named, answered, validated: validatedAnswers(crossed, model, isNew) };
  } catch (error) {
    return { model: named, answered: null, error: error instanceof Error ? error.message : String(error) };
  }
}
