/** One lesson: so many seconds of an activity during which samples come; paused and gone on with. */

export const LESSON_MS = 20_000;
/** Between two samples at the most; the sensors come sixty times a second. */
const FRESH_MS = 500;
/** Without a sample, after which the sensors are said to be silent. */
const LOST_AFTER_MS = 3000;
/** Shaking beside gravity, m/s², below which somebody hardly moves. */
const STILL = 0.15;
/** Before so much of it nothing is said of stillness. */
const STILL_AFTER_MS = 4000;

export class Lesson {
  /** @param {string} activity @param {number} nowMs */
  constructor(activity, nowMs) {
    this.activity = activity;
    this.paused = false;
    this.doneMs = 0;
    /** When it was labelled, in Unix milliseconds; the last one may be open. @type {{fromMs: number, toMs: number}[]} */
    this.spans = [{ fromMs: nowMs, toMs: nowMs }];
    this.beforeMs = nowMs;
    this.heardMs = nowMs;
    this.shaking = 0;
  }

  get complete() {
    return this.doneMs >= LESSON_MS;
  }

  /**
   * Let time pass. @param {number} nowMs @param {number} lastMs of the newest sample
   * @param {number} shaking now, m/s² beside gravity
   */
  advance(nowMs, lastMs, shaking) {
    const passedMs = Math.max(0, nowMs - this.beforeMs);
    this.beforeMs = nowMs;
    if (this.paused) return;
    this.spans[this.spans.length - 1].toMs = nowMs;
    this.heardMs = Math.max(this.heardMs, lastMs);
    if (nowMs - lastMs > FRESH_MS) return;
    this.doneMs = Math.min(LESSON_MS, this.doneMs + Math.min(passedMs, FRESH_MS));
    this.shaking = Math.max(this.shaking, shaking);
  }

  pause() {
    this.paused = true;
  }

  /** @param {number} nowMs */
  resume(nowMs) {
    this.paused = false;
    this.beforeMs = this.heardMs = nowMs;
    this.spans.push({ fromMs: nowMs, toMs: nowMs });
  }

  /** What looks wrong, in words; empty where nothing does. @param {number} nowMs */
  warning(nowMs) {
    if (this.paused) return "";
    if (nowMs - this.heardMs > LOST_AFTER_MS) {
      return (
        "No motion comes, and the countdown waits for it. On Android: Chrome's Settings → Site settings → Motion " +
        "sensors. On an iPhone: Settings → Apps → Safari → Motion & Orientation."
      );
    }
    if (this.doneMs > STILL_AFTER_MS && this.shaking < STILL) {
      return "Hardly any motion so far: right for sitting, standing or lying, too little for anything else.";
    }
    return "";
  }
}
