/**
 * Windows as one CSV file, and back: samples at 50 Hz, one row each, that `har_pipeline` reads with the description in
 * docs/phones.md. Rows that two windows share are written once, so a round trip gives the same windows bit for bit.
 */

import { CHANNELS, RATE_HZ, STRIDE, STRIDE_MS, WINDOW } from "./motion.js";

export const HEADER = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,activity,session";
const STEP_MS = 1000 / RATE_HZ;
const COLUMNS = HEADER.split(",").length;
/** Of a row's middle half belongs to one window alone, whose label is the row's. */
const EDGE = (WINDOW - STRIDE) / 2;
const MAX_TEXT = 64;
/** About 14 hours at 50 Hz. */
const MAX_ROWS = 3_000_000;
/** A number beyond it is no m/s² or rad/s of a sensor, and could be infinite as float32. */
const MAX_VALUE = 1e6;
/** Of a Date, in milliseconds. */
const MAX_TIME_MS = 8.64e15;
/** Two times are one where they differ by less: times are written to a thousandth of a millisecond. */
const MAX_DEVIATION_MS = 0.01;

/** @typedef {import("../types.js").StoredWindow} StoredWindow */

/** What an imported file lacks, in words. */
export class ImportFileError extends Error {}

/**
 * The lines of the file, in pieces.
 * @param {StoredWindow[]} windows by time @returns {Generator<string>}
 */
export function* linesOf(windows) {
  yield `${HEADER}\n`;
  for (const [number, stretch] of stretchesOf(windows).entries()) {
    const session = `${words(stretch[0].session)}/${number}`;
    for (const [k, window] of stretch.entries()) {
      const from = k === 0 ? 0 : EDGE;
      const to = k === stretch.length - 1 ? WINDOW : EDGE + STRIDE;
      let piece = "";
      for (let row = from; row < to; row++) {
        const numbers = Array.from(window.x.subarray(CHANNELS * row, CHANNELS * (row + 1)), shortest);
        const time = (stretch[0].startMs + k * STRIDE_MS + row * STEP_MS).toFixed(3);
        piece += `${time},${numbers.join(",")},${words(window.label ?? "")},${session}\n`;
      }
      yield piece;
    }
  }
}

/** Windows that follow one another without a gap, of one session. @param {StoredWindow[]} windows */
function stretchesOf(windows) {
  /** @type {Map<string, StoredWindow[]>} */
  const bySession = new Map();
  for (const window of windows) {
    const found = bySession.get(window.session);
    if (found) found.push(window);
    else bySession.set(window.session, [window]);
  }
  /** @type {StoredWindow[][]} */
  const stretches = [];
  for (const session of bySession.values()) {
    session.forEach((window, i) => {
      if (i && follows(session[i - 1], window)) stretches[stretches.length - 1].push(window);
      else stretches.push([window]);
    });
  }
  return stretches.sort((one, other) => one[0].startMs - other[0].startMs);
}

/** Whether a window begins a stride after another, and their shared samples are equal. */
function follows(/** @type {StoredWindow} */ before, /** @type {StoredWindow} */ window) {
  if (Math.abs(window.startMs - before.startMs - STRIDE_MS) > MAX_DEVIATION_MS) return false;
  const shared = before.x.subarray(CHANNELS * STRIDE);
  return shared.every((each, i) => each === window.x[i]);
}

/**
 * Read a file that `linesOf` wrote, or that has the same columns at the same rate.
 * @param {AsyncIterable<string>} pieces of text @returns {Promise<StoredWindow[]>}
 * @throws {ImportFileError} that says which line is wrong, and how
 */
export async function windowsOf(pieces) {
  const reader = new RowReader();
  for await (const line of linesIn(pieces)) reader.take(line);
  return reader.finish();
}

/** @param {AsyncIterable<string>} pieces @returns {AsyncGenerator<string>} */
async function* linesIn(pieces) {
  let rest = "";
  for await (const piece of pieces) {
    const lines = (rest + piece).split(/\r?\n/);
    rest = lines.pop() ?? "";
    if (rest.length > 4096)
      throw new ImportFileError("a line is longer than 4,096 characters; expected a CSV file of this app");
    yield* lines;
  }
  if (rest) yield rest;
}

class RowReader {
  constructor() {
    this.number = 0;
    /** @type {StoredWindow[]} */ this.windows = [];
    this.session = "";
    this.startMs = 0;
    /** @type {number[]} */ this.values = [];
    /** @type {string[]} */ this.labels = [];
  }

  /** @param {string} session @param {number} startMs */
  begin(session, startMs) {
    this.session = session;
    this.startMs = startMs;
    this.values = [];
    this.labels = [];
  }

  /** @param {string} line */
  take(line) {
    this.number++;
    if (this.number === 1) {
      if (line.replace(/^\ufeff/, "") !== HEADER) {
        throw new ImportFileError(`the file begins with ${JSON.stringify(line.slice(0, 60))}; expected ${HEADER}`);
      }
      return;
    }
    if (!line) return;
    if (this.number > MAX_ROWS)
      throw new ImportFileError(`the file has more than ${MAX_ROWS.toLocaleString("en")} rows`);
    const cells = line.split(",");
    if (cells.length !== COLUMNS) throw this.wrong(`${cells.length} columns; expected ${COLUMNS}`);
    const [timeMs, ...numbers] = cells.slice(0, 1 + CHANNELS).map((cell) => (cell.trim() ? Number(cell) : NaN));
    if (!Number.isFinite(timeMs) || !numbers.every(Number.isFinite)) throw this.wrong("a number is missing or is none");
    if (Math.abs(timeMs) > MAX_TIME_MS || numbers.some((each) => Math.abs(each) > MAX_VALUE)) {
      throw this.wrong("a number is too large for a time or for a sensor");
    }
    const [label, session] = cells.slice(1 + CHANNELS);
    if (Math.max(label.length, session.length) > MAX_TEXT)
      throw this.wrong(`a text is longer than ${MAX_TEXT}`);
    const dueMs = this.startMs + this.labels.length * STEP_MS;
    if (this.labels.length && session === this.session && Math.abs(timeMs - dueMs) < MAX_DEVIATION_MS) {
      this.append(numbers, label);
      return;
    }
    if (this.labels.length && session === this.session && timeMs > dueMs - STEP_MS && timeMs < dueMs + STEP_MS / 2) {
      throw this.wrong(
        `a row ${(timeMs - dueMs + STEP_MS).toFixed(2)} ms after the last; expected samples at ${RATE_HZ} Hz`,
      );
    }
    this.cut();
    this.begin(session, timeMs);
    this.append(numbers, label);
  }

  /** @param {number[]} numbers @param {string} label */
  append(numbers, label) {
    this.values.push(...numbers);
    this.labels.push(label);
  }

  /** Make windows of the rows so far. */
  cut() {
    for (let from = 0; from + WINDOW <= this.labels.length; from += STRIDE) {
      const x = Float32Array.from(this.values.slice(CHANNELS * from, CHANNELS * (from + WINDOW)));
      const label = mostFrequent(this.labels.slice(from + EDGE, from + EDGE + STRIDE));
      const session = this.session.replace(/\/\d+$/, "");
      this.windows.push({ startMs: this.startMs + from * STEP_MS, x, label: label || null, session });
    }
  }

  /** @returns {StoredWindow[]} by time */
  finish() {
    if (!this.number) throw new ImportFileError(`the file is empty; expected ${HEADER}`);
    this.cut();
    if (!this.windows.length)
      throw new ImportFileError(`the file has no stretch of ${WINDOW} rows (${WINDOW / RATE_HZ} s)`);
    return this.windows.sort((one, other) => one.startMs - other.startMs);
  }

  /** @param {string} words */
  wrong(words) {
    return new ImportFileError(`line ${this.number}: ${words}`);
  }
}

/** @param {string[]} texts */
function mostFrequent(texts) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const text of texts) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].reduce((best, each) => (each[1] > best[1] ? each : best))[0];
}

/** The shortest decimal that is this float32. @param {number} value */
function shortest(value) {
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

/** A text without what separates cells. @param {string} text */
function words(text) {
  return text.replace(/[,"\r\n]/g, " ");
}
