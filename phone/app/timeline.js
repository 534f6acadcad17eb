/**
 * A day of the phone by minutes: how much it moved, what the model in use makes of it, and what it is labelled. As
 * edge_agent/storage/timeline.py, but what was recognized is computed when it is looked at, by the present model.
 */

import { WINDOW_MS } from "./collection/motion.js";

export const MINUTE_MS = 60_000;
/** Windows of a minute that are looked at: a day takes seconds then. */
const LOOKED_AT = 6;
/** Below it a stretch is asked about: so much of what was recognized in it speaks for one activity. */
export const UNCERTAIN = 0.75;
/** Of one question, so that a label is not given to hours at once. */
const MAX_ASKED_MINUTES = 15;

/** @typedef {import("./collection/store.js").Mark} Mark */
/** @typedef {{label: string | null, probability: number, movement: number}} Look at one window; label null: no model */
/** @typedef {{number: number, marks: Mark[]}} Minute number: since 1970 */
/**
 * @typedef {object} Stretch Minutes that follow each other and look alike.
 * @property {number} fromMs @property {number} toMs
 * @property {string | null} recognized @property {number} certainty 0 where nothing was recognized
 * @property {number | null} movement m/s², null where nothing was looked at yet
 * @property {string | null} label of most labelled windows @property {number} unlabelled windows
 */

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
    .filter((each) => each.unlabelled && each.label === null && each.movement !== null && each.certainty < UNCERTAIN)
    .sort((one, other) => Number(one.recognized === null) - Number(other.recognized === null) || one.certainty - other.certainty);
}

/** @param {Minute[]} minutes @param {ReadonlyMap<number, Look>} looks @returns {Stretch} */
function stretch(minutes, looks) {
  const marks = minutes.flatMap((each) => each.marks);
  const { label, certainty, movement } = recognizedIn(minutes, looks);
  return {
    fromMs: minutes[0].number * MINUTE_MS,
    toMs: (minutes[minutes.length - 1].number + 1) * MINUTE_MS,
    recognized: label,
    certainty,
    movement,
    label: labelOf(marks),
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
    label: best?.[0] ?? null,
    certainty: best ? best[1] / found.length : 0,
    movement: found.length ? found.reduce((sum, each) => sum + each.movement, 0) / found.length : null,
  };
}

/** The label of most labelled windows. @param {Mark[]} marks */
function labelOf(marks) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { label } of marks) if (label !== null) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1])[0]?.[0] ?? null;
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
