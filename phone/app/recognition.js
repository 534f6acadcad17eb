/** Each new window to an answer, by the model in use or the person's own head; the answers of the last minutes. */

import { WINDOW_MS } from "./collection/motion.js";

const HISTORY_MS = 6 * 60_000;
/** An answer that is older says nothing of what the person does now. */
const CURRENT_MS = 10_000;

/**
 * @typedef {object} Answer
 * @property {number} middleMs @property {number} endMs of the window
 * @property {string} label @property {number} probability of the likeliest
 * @property {[string, number][]} ranking labels and their probabilities, likeliest first
 * @property {string} by what recognized it
 */

export class Recognition {
  /**
   * @param {import("./collection/recorder.js").Recorder} recorder
   * @param {import("./models.js").Models} models @param {import("./teaching/teacher.js").Teacher} teacher
   */
  constructor(recorder, models, teacher) {
    this.recorder = recorder;
    this.models = models;
    this.teacher = teacher;
    /** @type {Answer[]} */ this.history = [];
    /** What went wrong with the last window. */
    this.problem = "";
    this.work = Promise.resolve();
    this.waiting = 0;
    recorder.listeners.add((windows) => windows.forEach((window) => this.take(window)));
  }

  /** Why there is no answer, in words; empty where there is. */
  get unavailableReason() {
    return this.models.unavailableReason;
  }

  /** What the person does now: the answer that every page shows; null where nothing is measured. @returns {Answer | null} */
  get current() {
    const last = this.history[this.history.length - 1];
    return last && this.recorder.running && Date.now() - last.endMs < CURRENT_MS ? last : null;
  }

  get modelName() {
    return this.models.name;
  }

  /** @param {import("./types.js").StoredWindow} window */
  take(window) {
    if (this.unavailableReason || this.waiting > 5) return; // a phone that cannot keep up leaves windows out
    this.waiting++;
    this.work = this.work
      .then(() => this.answer(window))
      .then(
        () => (this.problem = ""),
        (error) => (this.problem = `The model does not run here: ${error.message}`),
      )
      .then(() => void this.waiting--);
  }

  /** @param {import("./types.js").StoredWindow} window */
  async answer(window) {
    const { ranking, by } = await this.rank(window.x);
    const [[label, probability]] = ranking;
    const endMs = window.startMs + WINDOW_MS;
    this.history = this.history.filter((each) => each.endMs > endMs - HISTORY_MS);
    this.history.push({ middleMs: window.startMs + WINDOW_MS / 2, endMs, label, probability, ranking, by });
  }

  /**
   * What a window is: an activity of the person's own where their head says so, else what the model in use says.
   * @param {Float32Array} x (128, 6), not normalized
   * @returns {Promise<{ranking: [string, number][], by: string}>} likeliest first
   */
  async rank(x) {
    const own = await this.teacher.ownRanking(x);
    if (own) return { ranking: own, by: "your model, of Teach me" };
    return { ranking: await this.models.ranking(x), by: this.modelName };
  }
}
