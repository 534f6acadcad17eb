/**
 * Whether a classifier has learnt anything at all: gaitway/tasks/classification.py, which says why, with the same
 * thresholds and words.
 */

import { pairwiseSum, quoted, threeDecimals } from "./numbers.js";
import { columnSums, confusion, macroF1, mostFrequent, rowSums } from "./scores.js";

const CLASSES = 2;
const CLASS_WINDOWS = 5;
const WINDOWS = 20;
const LUCK = 1.645;
const MIN_RECALL_GAIN = 0.1;
export const METRIC = "macro_f1";
export const LABEL = "macro-F1";
export const TRIVIAL_ANSWER = "of always answering the most frequent class";

export class ClassSoundness {
  /**
   * @param {import("./scores.js").Confusion} matrix @param {readonly string[]} labels
   * @param {string} [part] which of the phone's windows they are
   */
  constructor(matrix, labels, part = "holdout") {
    this.part = part;
    this.matrix = matrix;
    this.labels = labels;
    this.rows = rowSums(matrix);
    this.columns = columnSums(matrix);
    /** Windows in the holdout. */
    this.examples = this.rows.reduce((total, count) => total + count, 0);
    /** Classes in the holdout. */
    this.classes = this.rows.filter((count) => count > 0).length;
    /** Macro-F1; null without windows. */
    this.score = this.examples ? macroF1(matrix) : null;
    /** That of always answering the holdout's most frequent class; null without windows. */
    this.trivial = this.examples ? macroF1(mostFrequent(matrix)) : null;
  }

  /**
   * Compare true and answered classes.
   * @param {ArrayLike<number>} truth (n) @param {ArrayLike<number>} answered (n) @param {readonly string[]} labels
   * @param {string} [part]
   */
  static of(truth, answered, labels, part = "holdout") {
    return new ClassSoundness(confusion(truth, answered, labels.length), labels, part);
  }

  /** Why these windows cannot tell a model that works from one that does not; empty if they can. */
  get undecidedReason() {
    if (!this.examples) return `there are no ${this.part} windows`;
    if (this.classes < CLASSES) return `all ${this.examples} ${this.part} windows are of one class`;
    if (this.examples < WINDOWS) return `there are ${this.examples} ${this.part} windows, fewer than ${WINDOWS}`;
    if (this.rows.filter((count) => count >= CLASS_WINDOWS).length < CLASSES) {
      return `fewer than ${CLASSES} classes have ${CLASS_WINDOWS} ${this.part} windows or more`;
    }
    return "";
  }

  /** Why the model does not work, in words; empty if it does, or if these windows cannot tell. */
  get failureReason() {
    if (this.undecidedReason) return "";
    if (this.columns.filter((count) => count > 0).length === 1) {
      const answer = this.labels[this.columns.findIndex((count) => count > 0)];
      return `it answers ${quoted(answer)} whatever it sees`;
    }
    if ((this.score ?? 0) <= (this.trivial ?? 0)) {
      return "it is not better than always answering the most frequent class";
    }
    const { found, needed } = this.recall();
    if (found > needed) return "";
    return (
      `it is hardly better than guessing: mean recall ${threeDecimals(found)}, where more than ` +
      `${threeDecimals(needed)} is asked for`
    );
  }

  /** Whether the model works; null where these windows cannot tell. */
  get works() {
    return this.undecidedReason ? null : !this.failureReason;
  }

  /** How many windows of how many classes. */
  get size() {
    return `${this.examples} ${this.part} windows of ${this.classes === 1 ? "1 class" : `${this.classes} classes`}`;
  }

  /** The figures in words; empty without windows. */
  get words() {
    if (this.score === null || this.trivial === null) return "";
    return `${LABEL} ${threeDecimals(this.score)} on ${this.size} against ${threeDecimals(this.trivial)} ${TRIVIAL_ANSWER}`;
  }

  /** Mean recall over the classes that count, and the one that it must exceed. */
  recall() {
    const counted = this.rows.map((_, code) => code).filter((code) => this.rows[code] >= CLASS_WINDOWS);
    const variance = counted.map((code) => {
      const share = this.columns[code] / this.examples;
      return (share * (1 - share)) / this.rows[code];
    });
    const recall = counted.map((code) => this.matrix[code][code] / this.rows[code]);
    const guess = 1 / counted.length;
    const luck = (LUCK * Math.sqrt(pairwiseSum(variance))) / counted.length;
    return { found: pairwiseSum(recall) / counted.length, needed: guess + Math.max(luck, MIN_RECALL_GAIN * (1 - guess)) };
  }
}
