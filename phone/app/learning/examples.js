/**
 * What a phone learns from: its stored windows that have one of the plan's labels, and when they were recorded.
 * As edge_agent/storage/window_store.py has it for a native device.
 */

import { CHANNELS, normalized } from "./normalization.js";

/** @typedef {import("../types.js").StoredWindow} StoredWindow */
/** @typedef {import("../types.js").Examples} Examples */
/** @typedef {import("../types.js").Normalization} Normalization */

/**
 * @typedef {object} LabelledWindows n windows in the order in which they are stored
 * @property {readonly StoredWindow[]} windows
 * @property {Int32Array} y (n) index into the plan's labels
 * @property {Float64Array} startS (n) in seconds; sessions whose clocks overlapped are moved apart
 * @property {Int32Array} session (n) number of the session, by first appearance
 */

/** Samples of a window that a phone stores. */
export const WINDOW = 128;
const RATE_HZ = 50;
/** At least, in seconds, between two sessions whose clocks overlapped; longer than any window. */
const SESSION_SPACING_S = 60;

/**
 * Whether a phone has no gyroscope; of no window nobody can tell.
 * @param {Float32Array} x (n, 128, 6) as it was measured @returns {boolean}
 */
export function lacksGyroscope(x) {
  return x.length > 0 && x.every((value, at) => at % CHANNELS < CHANNELS / 2 || value === 0);
}

/**
 * Read off a plan's data section how its windows are cut; throws where a phone's are cut otherwise.
 * @param {{pipeline: Record<string, any>}} data @returns {{windowS: number, rateHz: number}}
 */
export function windowSettings({ pipeline }) {
  const { window = WINDOW, rate_hz: rateHz = RATE_HZ, anti_alias: antiAlias = "always" } = pipeline;
  if (antiAlias !== "always") {
    throw new Error(`the plan's windows are anti-aliased when ${antiAlias}; a phone's always are`);
  }
  if (window !== WINDOW || rateHz !== RATE_HZ) {
    const own = `${WINDOW} at ${RATE_HZ} Hz`;
    throw new Error(`the plan's windows have ${window} samples at ${rateHz} Hz; a phone's have ${own}`);
  }
  return { windowS: window / rateHz, rateHz };
}

/**
 * Take the windows that have one of the labels.
 * @param {readonly StoredWindow[]} windows @param {readonly string[]} labels @returns {LabelledWindows}
 */
export function labelledWindows(windows, labels) {
  const codes = new Map(labels.map((label, code) => [label, code]));
  const found = windows.filter(({ label }) => label !== null && codes.has(label));
  /** @type {Map<string, number>} */
  const numbers = new Map();
  for (const { session } of found) if (!numbers.has(session)) numbers.set(session, numbers.size);
  const session = Int32Array.from(found, (each) => /** @type {number} */ (numbers.get(each.session)));
  return {
    windows: found,
    y: Int32Array.from(found, ({ label }) => /** @type {number} */ (codes.get(/** @type {string} */ (label)))),
    startS: oneAfterAnother(
      Float64Array.from(found, ({ startMs }) => startMs / 1000),
      session,
    ),
    session,
  };
}

/**
 * Lay the windows at some places together, normalized where the phone does that itself.
 * @param {LabelledWindows} from @param {Int32Array} at (n) @param {Normalization | null} normalization
 * @returns {Examples}
 */
export function examplesAt(from, at, normalization) {
  const size = at.length ? from.windows[at[0]].x.length : 0;
  const x = new Float32Array(at.length * size);
  at.forEach((place, i) => {
    const window = from.windows[place].x;
    x.set(normalization ? normalized(window, normalization) : window, i * size);
  });
  return {
    x,
    y: Int32Array.from(at, (i) => from.y[i]),
    startS: Float64Array.from(at, (i) => from.startS[i]),
    session: Int32Array.from(at, (i) => from.session[i]),
  };
}

/**
 * Move sessions whose clocks overlap apart; others stay where they are. A clock that was set back would else let a
 * split in time take two recordings for one.
 * @param {Float64Array} startS (n) @param {Int32Array} session (n) @returns {Float64Array} (n)
 */
export function oneAfterAnother(startS, session) {
  /** @type {Map<number, {first: number, last: number}>} */
  const spans = new Map();
  startS.forEach((start, i) => {
    const span = spans.get(session[i]);
    if (!span) spans.set(session[i], { first: start, last: start });
    else {
      span.first = Math.min(span.first, start);
      span.last = Math.max(span.last, start);
    }
  });
  const sorted = [...spans].sort(([a, one], [b, two]) => one.first - two.first || one.last - two.last || a - b);
  /** @type {Map<number, number>} */
  const shifts = new Map();
  let end = -Infinity;
  for (const [number, { first, last }] of sorted) {
    const shift = first <= end ? end + SESSION_SPACING_S - first : 0;
    shifts.set(number, shift);
    end = last + shift;
  }
  return startS.map((start, i) => start + /** @type {number} */ (shifts.get(session[i])));
}
