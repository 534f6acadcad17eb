/**
 * A day of the phone by minutes: how much it moved, what the model in use makes of it, and what it is labelled. As
 * edge_agent/storage/timeline.py, but what was recognized is computed when it is looked at, by the present model.
 */

import { WINDOW_MS } from "./collection/motion.js";
import { dayOf } from "./views/day.js";

const MINUTE_S = 60;
const MINUTE_MS = 60_000;
/** Windows of a minute that are looked at: a day takes seconds then. */
const LOOKED_AT = 6;
/** Below it a stretch is asked about: so much of what was recognized in it speaks for one activity. */
export const UNCERTAIN = 0.75;
/** Of one question, so that a label is not given to hours at once. */
const MAX_ASKED_MINUTES = 15;
const MAX_ASKED = 5;
/** Nobody looks at the view any more, after which nothing is computed for it. */
const LEFT_MS = 3000;

/** @typedef {import("./collection/store.js").Mark} Mark */
/** @typedef {{label: string | null, probability: number, movement: number}} Look at one window; label null: no model */
/** @typedef {{number: number, marks: Mark[]}} Minute number: since 1970 */
/** @typedef {import("./views/api.js").Stretch} Stretch */

/** The minutes in which windows begin, in order. @param {readonly Mark[]} marks by time @returns {Minute[]} */
export function minutesOf(marks) {
  /** @type {Minute[]} */
  const minutes = [];
  for (const mark of marks) {
    const number = Math.floor(mark.startMs / MINUTE_MS);
    const last = minutes[minutes.length - 1];
    if (last?.number === number) last.marks.push(mark);
    else minutes.push({ number, marks: [mark] });
  }
  return minutes;
}

/** The windows of a minute that are looked at, spread over it. @param {Minute} minute @returns {Mark[]} */
export function sampleOf({ marks }) {
  const step = Math.max(1, marks.length / LOOKED_AT);
  return Array.from({ length: Math.min(LOOKED_AT, marks.length) }, (_, i) => marks[Math.floor(i * step)]);
}

/** The standard deviation of the acceleration's magnitude. @param {Float32Array} x (n, 6) @returns {number} m/s² */
export function movementOf(x) {
  const n = x.length / 6;
  let [sum, squares] = [0, 0];
  for (let i = 0; i < x.length; i += 6) {
    const square = x[i] ** 2 + x[i + 1] ** 2 + x[i + 2] ** 2;
    sum += Math.sqrt(square);
    squares += square;
  }
  return Math.sqrt(Math.max(0, squares / n - (sum / n) ** 2));
}

/**
 * Join minutes that follow each other with the same recognized and the same given label.
 * @param {readonly Minute[]} minutes @param {ReadonlyMap<number, Look>} looks by a window's id @param {number} [longest] in minutes
 * @returns {Stretch[]}
 */
export function stretchesOf(minutes, looks, longest = Infinity) {
  /** @type {{key: string, minutes: Minute[]}[]} */
  const runs = [];
  for (const minute of minutes) {
    const key = JSON.stringify([recognizedIn([minute], looks).label, labelOf(minute.marks)]);
    const last = runs[runs.length - 1];
    const follows = last?.minutes[last.minutes.length - 1].number === minute.number - 1;
    if (last && follows && last.key === key && last.minutes.length < longest) last.minutes.push(minute);
    else runs.push({ key, minutes: [minute] });
  }
  return runs.map((run) => stretch(run.minutes, looks));
}

/**
 * The stretches whose label would help most: without one, the least certain first.
 * @param {readonly Minute[]} minutes @param {ReadonlyMap<number, Look>} looks @returns {Stretch[]}
 */
export function uncertainOf(minutes, looks) {
  return stretchesOf(minutes, looks, MAX_ASKED_MINUTES)
    .filter((each) => each.unlabelled && !each.label && each.movement !== null && (each.certainty ?? 0) < UNCERTAIN)
    .sort((one, other) => Number(!one.recognized) - Number(!other.recognized) || (one.certainty ?? 0) - (other.certainty ?? 0));
}

/** @param {Minute[]} minutes @param {ReadonlyMap<number, Look>} looks @returns {Stretch} */
function stretch(minutes, looks) {
  const marks = minutes.flatMap((each) => each.marks);
  const { label, certainty, movement } = recognizedIn(minutes, looks);
  return {
    from_s: minutes[0].number * MINUTE_S,
    to_s: (minutes[minutes.length - 1].number + 1) * MINUTE_S,
    recognized: label,
    certainty,
    movement,
    label: labelOf(marks),
    kept: marks.length,
    unlabelled: marks.filter((each) => each.label === null).length,
  };
}

/** @param {Minute[]} minutes @param {ReadonlyMap<number, Look>} looks */
function recognizedIn(minutes, looks) {
  const found = minutes.flatMap(({ marks }) => marks.flatMap(({ id }) => looks.get(id) ?? []));
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { label, probability } of found) if (label !== null) sums.set(label, (sums.get(label) ?? 0) + probability);
  const [best] = [...sums].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
  return {
    label: best?.[0] ?? "",
    certainty: best ? best[1] / found.length : null,
    movement: found.length ? found.reduce((sum, each) => sum + each.movement, 0) / found.length : null,
  };
}

/** The label of most labelled windows. @param {Mark[]} marks */
function labelOf(marks) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { label } of marks) if (label !== null) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1])[0]?.[0] ?? "";
}

/**
 * What labelling a span changes, as spans with the label of before: what takes it back.
 * @param {readonly Mark[]} marks by time @param {number} fromMs @param {number} toMs
 * @returns {{fromMs: number, toMs: number, label: string | null}[]}
 */
export function labelsWithin(marks, fromMs, toMs) {
  /** @type {{fromMs: number, toMs: number, label: string | null}[]} */
  const spans = [];
  for (const { startMs, label } of marks) {
    const middle = startMs + WINDOW_MS / 2;
    if (middle < fromMs || middle >= toMs) continue;
    const last = spans[spans.length - 1];
    if (last && last.label === label) last.toMs = middle + 1;
    else spans.push({ fromMs: middle, toMs: middle + 1, label });
  }
  return spans;
}

/** Days as the view wants them; while they are asked for, windows are looked at. */
export class DayReader {
  /** @param {import("./main.js").App} app */
  constructor(app) {
    this.app = app;
    /** @type {Map<number, Look>} */ this.looks = new Map();
    /** By which model they were looked at. */
    this.model = "";
    this.isReading = false;
    this.askedMs = 0;
    /** @type {readonly Mark[] | null} */ this.marks = null;
    /** @type {Map<string, Mark[]>} */ this.days = new Map();
    /** What takes the last label back. @type {{label: string, spans: ReturnType<typeof labelsWithin>} | null} */ this.before = null;
  }

  /** @param {{day: string | null}} wanted @returns {import("./views/api.js").Day} */
  day({ day: wanted }) {
    const { app } = this;
    this.group();
    const days = [...this.days.keys()].reverse();
    if (!days.length) throw new Error("There are no windows yet: record some under Collect.");
    const day = wanted && this.days.has(wanted) ? wanted : days[0];
    const minutes = minutesOf(this.days.get(day) ?? []);
    this.askedMs = Date.now();
    void this.read(minutes);
    const asked = uncertainOf(minutes, this.looks);
    const { unavailableReason: reason } = app.models;
    return {
      day,
      days,
      movement: minutes.map((minute) => [minute.number * MINUTE_S, recognizedIn([minute], this.looks).movement ?? 0]),
      stretches: stretchesOf(minutes, this.looks),
      uncertain: asked.slice(0, MAX_ASKED),
      uncertain_more: Math.max(0, asked.length - MAX_ASKED),
      labels: [...app.activities(), ""],
      why_no_labels: "",
      problem: reason && `Nothing is recognized: ${reason}`,
    };
  }

  group() {
    const { marks } = this.app;
    if (marks === this.marks) return;
    this.marks = marks;
    this.days = new Map();
    for (const mark of marks) {
      const day = dayOf(mark.startMs / 1000);
      const found = this.days.get(day);
      if (found) found.push(mark);
      else this.days.set(day, [mark]);
    }
  }

  /** Look at some windows of each minute, the newest minutes first; what was looked at stays so. @param {Minute[]} minutes */
  async read(minutes) {
    if (this.isReading) return;
    this.isReading = true;
    try {
      const { name } = this.app.models;
      if (this.model !== name) [this.model, this.looks] = [name, new Map()];
      const wanted = [...minutes].reverse().flatMap(sampleOf).filter(({ id }) => !this.looks.has(id));
      if (!wanted.length) return;
      const samples = new Map((await this.app.store.windows()).map((each) => [/** @type {any} */ (each).id, each.x]));
      for (const { id } of wanted) {
        if (Date.now() - this.askedMs > LEFT_MS) return;
        const x = samples.get(id);
        if (x) this.looks.set(id, { ...(await this.recognized(x)), movement: movementOf(x) });
      }
    } finally {
      this.isReading = false;
    }
  }

  /** @param {Float32Array} x @returns {Promise<{label: string | null, probability: number}>} */
  async recognized(x) {
    if (this.app.models.unavailableReason) return { label: null, probability: 0 };
    try {
      const [[label, probability]] = (await this.app.recognition.rank(x)).ranking;
      return { label, probability };
    } catch {
      return { label: null, probability: 0 }; // its model has gone meanwhile
    }
  }

  /** @param {{activity: string, from_s?: number, to_s?: number, last_s?: number}} given */
  async label({ activity, from_s, to_s, last_s = 0 }) {
    const { store, recorder } = this.app;
    if (recorder.running) await recorder.work;
    const toMs = to_s === undefined ? Date.now() : 1000 * to_s;
    const fromMs = from_s === undefined ? toMs - 1000 * last_s : 1000 * from_s;
    const spans = labelsWithin(await store.marks(), fromMs, toMs);
    const windows = await store.label(fromMs, toMs, activity || null);
    if (windows) this.before = { label: activity, spans };
    await this.refreshed();
    return { activity, windows };
  }

  async undo() {
    const { before } = this;
    if (!before) throw new Error("There is no label to take back.");
    this.before = null;
    let windows = 0;
    for (const { fromMs, toMs, label } of before.spans) windows += await this.app.store.label(fromMs, toMs, label);
    await this.refreshed();
    return { activity: before.label, windows };
  }

  async refreshed() {
    this.app.marks = await this.app.store.marks();
  }
}
