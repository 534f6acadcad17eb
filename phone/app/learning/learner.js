/**
 * What a phone learns: its windows as training and holdout sets, the sums that it sends, and which head it uses of
 * those that shared and own sums give. Embeddings are computed elsewhere (`embedder.js`), and nothing is stored here.
 */

import { examplesAt, labelledWindows, windowSettings } from "./examples.js";
import { answersOf, evaluate, isFar, recognizeBy, solveHeads } from "./heads.js";
import { holdoutMetrics } from "./metrics.js";
import { beforeModel, normalized } from "./normalization.js";
import { pseudoLabelledHead } from "./pseudo_labels.js";
import { addWindows, emptySums, travelling } from "./ridge.js";
import { ClassSoundness } from "./soundness.js";
import { evenly, temporalSplit } from "./splits.js";

/** @typedef {import("../types.js").StoredWindow} StoredWindow */
/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("../types.js").HeadModel} HeadModel */
/** @typedef {import("../types.js").Normalization} Normalization */
/** @typedef {import("./ridge.js").FixedSums} FixedSums */

/** At most so many windows judge a model: a native device's default of holdout_windows. */
const HOLDOUT_WINDOWS = 1024;
/** Half a minute: of fewer, mean and deviation say nothing of a phone. */
const MIN_WINDOWS = 20;
/** Of a phone where nothing is labelled, so many tell how it lies. */
const LYING_WINDOWS = 256;

export class Learner {
  constructor() {
    /** @type {{key: string, prepared: Prepared} | null} */
    this.last = null;
    /** @type {WeakMap<Float32Array, Promise<FixedSums>>} by the embeddings that they are of */
    this.summed = new WeakMap();
  }

  /**
   * Split the labelled windows in time and normalize them where the plan says so. Asked again about the same windows it
   * returns the same arrays, whose embeddings are known then.
   * @param {readonly StoredWindow[]} windows in the order in which they are stored @param {Plan} plan
   * @returns {Prepared}
   */
  prepare(windows, plan) {
    const all = labelledWindows(windows, plan.labels);
    const outline = all.windows.map(({ id, startMs, label, session }) => [id, startMs, label, session]);
    const others = outline.length ? [] : windows;
    const known = { count: others.length, newest: others.at(-1)?.id ?? 0 };
    const key = JSON.stringify([plan.labels, plan.data, outline, known]);
    if (this.last?.key === key && all.windows.every(({ id }) => id !== undefined)) return this.last.prepared;
    const { windowS } = windowSettings(plan.data);
    const split = temporalSplit(all.y, all.startS, plan.data.test_share, windowS);
    const training = Array.from(split.train, (i) => all.windows[i]);
    const normalization = beforeModel(
      plan.data,
      training.map(({ x }) => x),
    );
    const prepared = {
      train: examplesAt(all, split.train, normalization),
      holdout: examplesAt(all, evenly(split.holdout, HOLDOUT_WINDOWS), normalization),
      normalization,
      unlabelled: recorded(others),
      recorded: known,
      keys: training.map(({ id, label }) => `${id} ${label}`),
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
   * What a phone sends: its whole sums. Of the same embeddings they are made once.
   * @param {Float32Array} embeddings (n × D) of the training windows @param {Int32Array} y (n) @param {number} classes
   * @param {number} clip @returns {Promise<FixedSums & {gram: Int32Array, moment: Int32Array}>}
   */
  sums(embeddings, y, classes, clip) {
    let found = this.summed.get(embeddings);
    if (!found) {
      found = sumsOf(embeddings, y, classes, clip);
      this.summed.set(embeddings, found);
      found.catch(() => this.summed.delete(embeddings));
    }
    return /** @type {Promise<FixedSums & {gram: Int32Array, moment: Int32Array}>} */ (found);
  }

  /**
   * Solve every head of an exchange, and say which one is used. Throws an Error where there is nothing to solve one of.
   * @param {import("../types.js").Choice} choice @returns {Promise<import("../types.js").Chosen>}
   */
  async choose({ exchange, present, prepared, embeddings, labels, gravity, rules }) {
    const { train, holdout } = prepared;
    const heads = await solveHeads(exchange);
    if (!heads.length) throw new Error("nobody has sent sums yet, and this phone has no labelled windows");
    const lying = train.y.length ? embeddings.train : embeddings.unlabelled;
    const far = await isFar(lying, gravity, exchange.shared);
    const adapted = train.y.length ? null : await pseudoLabelledHead(exchange, embeddings.unlabelled, far);
    if (adapted) heads.push({ head: "adapted", ...adapted, version: exchange.version, sha256: exchange.sha256 });
    const ofHoldout = (/** @type {import("../types.js").Model} */ model) =>
      answersOf(embeddings.holdout, holdout.y.length, /** @type {import("../types.js").HeadModel} */ (model));
    const verdict = evaluate({ heads, present, holdout, train, answersOf: ofHoldout, labels, isFar: far, ...rules });
    return { verdict, heads };
  }

  /**
   * What heads score on the holdout, under the names that updates carry: the shared one, and the phone's own.
   * @param {readonly HeadModel[]} heads @param {import("../types.js").Examples} holdout
   * @param {Float32Array} embeddings (n × D) of the holdout @param {readonly string[]} labels
   * @returns {Record<string, number>}
   */
  measure(heads, holdout, embeddings, labels) {
    const found = (/** @type {import("./heads.js").HeadName} */ name) => {
      const model = heads.find(({ head }) => head === name);
      if (!model) return null;
      return ClassSoundness.of(holdout.y, answersOf(embeddings, holdout.y.length, model), labels);
    };
    return holdoutMetrics(found("shared"), found("personalized"));
  }
}

/**
 * Recognize one window as it was measured.
 * @param {Float32Array} x (128, 6) @param {{model: HeadModel, normalization: Normalization | null}} by of `Prepared`
 * @param {{embed: (x: Float32Array) => Promise<Float32Array>}} embedder @param {readonly string[]} labels
 * @returns {Promise<{label: string, probability: number, probabilities: Record<string, number>}>}
 */
export async function recognize(x, { model, normalization }, embedder, labels) {
  const embedding = await embedder.embed(normalization ? normalized(x, normalization) : x);
  const { code, probabilities } = recognizeBy(embedding, model);
  return {
    label: labels[code],
    probability: probabilities[code],
    probabilities: Object.fromEntries(labels.map((label, i) => [label, probabilities[i]])),
  };
}

/** Some of the windows, over all of their time, one after the other. @param {readonly StoredWindow[]} windows */
function recorded(windows) {
  const some = evenly(Int32Array.from(windows.keys()), LYING_WINDOWS);
  const x = new Float32Array(some.length * (windows[0]?.x.length ?? 0));
  some.forEach((place, i) => x.set(windows[place].x, i * windows[place].x.length));
  return x;
}

/** @param {Float32Array} embeddings @param {Int32Array} y @param {number} classes @param {number} clip */
async function sumsOf(embeddings, y, classes, clip) {
  const sums = emptySums(classes, embeddings.length / Math.max(1, y.length));
  await addWindows(sums, embeddings, y, clip);
  return travelling(sums);
}
