/**
 * The head that a phone's own windows and everybody's sums give, and how well it does on windows left out: as
 * edge_agent/teaching/learned_head.py. Sums are whole numbers, so that what has come is added to those there are, and
 * what has gone is taken out again, with the same bits as of all windows at once.
 */

import { addWindows, emptySums, predict, solveMean, travelling } from "../learning/ridge.js";
import { confusion, macroF1 } from "../learning/scores.js";
import { leftOut } from "./stretches.js";

/** @typedef {import("../learning/ridge.js").Head} Head */
/** @typedef {{right: number, windows: number, macroF1: number | null}} Score of windows of the federation's activities */

/**
 * @typedef {object} Shared what a federation has published
 * @property {import("../learning/ridge.js").FixedSums} sums @property {number} clients
 * @property {import("../protocol/versions.js").Method} method @property {string} version
 * @property {readonly number[]} orientationFree columns of the features; none where the network does not say which
 */

/**
 * @typedef {object} Taught
 * @property {Head} personal @property {Head} shared
 * @property {string[]} activities the federation's, and behind them the person's own
 * @property {number[][]} matrix of the personal head: left-out windows by true (row) and answered activity
 * @property {Score} own @property {Score} others what both heads score
 * @property {number[]} learnt training windows of each activity
 * @property {number} solveS seconds from features to the head
 */

export class HeadLearner {
  constructor() {
    this.key = "";
    /** @type {import("../learning/ridge.js").RidgeSums | null} */ this.sums = null;
    /** @type {Map<number, number>} classes of the windows in the sums, by their ids */ this.inSums = new Map();
    /** @type {{version: string, head: Head} | null} */ this.everybody = null;
  }

  /**
   * @param {import("../learning/examples.js").LabelledWindows} labelled windows with ids
   * @param {Map<number, Float32Array>} features by id @param {string[]} activities @param {Shared} shared
   * @param {number} windowS @returns {Promise<Taught>}
   */
  async learn(labelled, features, activities, shared, windowS) {
    const { sums, clients, method, version, orientationFree } = shared;
    const solveBy = (/** @type {import("../learning/ridge.js").FixedSums | null} */ own, /** @type {number} */ others) =>
      solveMean(sums, own, others, method, orientationFree, method.orientation_free_share);
    if (this.everybody?.version !== version) this.everybody = { version, head: await solveBy(null, 0) };
    const { train, test } = leftOut(labelled, windowS);
    const begun = performance.now();
    const own = travelling(await this.sumUp(labelled, train, features, activities, sums, method.clip));
    const personal = await solveBy(own, method.own_weight * Math.max(1, clients));
    const solveS = (performance.now() - begun) / 1000;
    const rows = joined(test.map((place) => featuresOf(labelled, place, features)));
    const truth = test.map((place) => labelled.y[place]);
    const answers = predict(rows, personal);
    const theirs = predict(rows, this.everybody.head);
    const learnt = activities.map((_, code) => train.filter((place) => labelled.y[place] === code).length);
    return {
      personal,
      shared: this.everybody.head,
      activities,
      matrix: confusion(truth, answers, activities.length),
      own: scoreOf(truth, answers, activities.length, sums.classes),
      others: scoreOf(truth, theirs, activities.length, sums.classes),
      learnt,
      solveS,
    };
  }

  /**
   * Bring the sums to these windows.
   * @param {import("../learning/examples.js").LabelledWindows} labelled @param {number[]} train
   * @param {Map<number, Float32Array>} features @param {string[]} activities
   * @param {import("../learning/ridge.js").FixedSums} shared @param {number} clip
   */
  async sumUp(labelled, train, features, activities, shared, clip) {
    const width = shared.moment.length / shared.classes - 1;
    const key = JSON.stringify([activities, width, clip]);
    if (!this.sums || this.key !== key) {
      this.sums = emptySums(activities.length, width);
      this.inSums = new Map();
      this.key = key;
      this.kept = new Map();
    }
    const wanted = new Map(train.map((place) => [/** @type {number} */ (labelled.windows[place].id), labelled.y[place]]));
    for (const [id, code] of this.inSums) {
      if (wanted.get(id) === code) continue;
      await addWindows(this.sums, /** @type {Float32Array} */ (this.kept.get(id)), [code], clip, -1);
      this.inSums.delete(id);
      this.kept.delete(id);
    }
    for (const [id, code] of wanted) {
      if (this.inSums.has(id)) continue;
      const row = /** @type {Float32Array} */ (features.get(id));
      await addWindows(this.sums, row, [code], clip);
      this.inSums.set(id, code);
      this.kept.set(id, row);
    }
    return this.sums;
  }

  /** Features of the windows in the sums: one that was deleted is taken out by them. @type {Map<number, Float32Array>} */
  kept = new Map();
}

/**
 * Whether Recognize names an activity of the person's own: of the left-out windows that were taken for it, most were it.
 * @param {Pick<Taught, "matrix">} taught @param {number} code of the activity
 */
export function isNamed({ matrix }, code) {
  const answered = matrix.reduce((sum, row) => sum + row[code], 0);
  return 2 * matrix[code][code] > answered;
}

/** @param {import("../learning/examples.js").LabelledWindows} labelled @param {number} place @param {Map<number, Float32Array>} features */
function featuresOf(labelled, place, features) {
  return /** @type {Float32Array} */ (features.get(/** @type {number} */ (labelled.windows[place].id)));
}

/** @param {Float32Array[]} rows */
function joined(rows) {
  const width = rows[0]?.length ?? 0;
  const found = new Float32Array(rows.length * width);
  rows.forEach((row, i) => found.set(row, i * width));
  return found;
}

/**
 * @param {number[]} truth @param {number[]} answered @param {number} classes @param {number} federated of them
 * @returns {Score}
 */
function scoreOf(truth, answered, classes, federated) {
  const places = [...truth.keys()].filter((i) => truth[i] < federated);
  const matrix = confusion(places.map((i) => truth[i]), places.map((i) => answered[i]), classes);
  const right = matrix.reduce((sum, row, code) => sum + row[code], 0);
  return { right, windows: places.length, macroF1: places.length ? macroF1(matrix) : null };
}
