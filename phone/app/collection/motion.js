/**
 * From `devicemotion` events to windows to store: the pipeline of the recognizer, hence that of har_pipeline, on a clock
 * of Unix milliseconds, with what a person wants to see meanwhile (rate, level, what looks wrong).
 */

import { DEVICE_MOTION_UNITS } from "../recognizer/device_motion.js";
import { UNITS } from "../recognizer/gaitway.js";
import { LevelChecks } from "../recognizer/level_checks.js";
import { WindowStream } from "../recognizer/windows.js";

/** What windows are cut as where no federation says otherwise: gaitway/input_spec.py, har_pipeline/settings.py. */
export const INPUT = /** @type {import("../recognizer/onnx_metadata.js").InputSpec} */ (
  /** @type {unknown} */ ({
    kind: "window",
    shape: [128, 6],
    rate_hz: 50,
    stride: 64,
    filter: {
      name: "low-pass, windowed sinc",
      slower: "",
      cutoff_hz: 22,
      half_width_s: 0.13,
      kaiser_beta: 5.65,
      max_gap_s: 0.1,
    },
  })
);
export const RATE_HZ = INPUT.rate_hz;
export const WINDOW = INPUT.shape[0];
export const CHANNELS = INPUT.shape[1];
export const STRIDE = INPUT.stride;
/** How long a window is, in milliseconds. */
export const WINDOW_MS = (1000 * WINDOW) / RATE_HZ;
/** From one window to the next of an unbroken stretch. */
export const STRIDE_MS = (1000 * STRIDE) / RATE_HZ;

const MS = UNITS.time.ms;
const DEG = UNITS.gyro[/** @type {"deg/s"} */ (DEVICE_MOTION_UNITS.gyro)];
/** Events that are taken together: a quarter of a second at 60 Hz. */
const CHUNK = 15;
const RATE_OVER_MS = 2000;

export class MotionStream {
  /**
   * @param {object} options
   * @param {number} options.offsetMs what makes Unix milliseconds of the events' time stamps
   * @param {string} options.session what the windows of this stretch are called together
   * @param {number} [options.sign] minus one where the calibration found gravity upside down
   * @param {(startMs: number) => string | null} [options.labelAt] what was done at a time
   */
  constructor({ offsetMs, session, sign = 1, labelAt = () => null }) {
    this.offsetMs = offsetMs;
    this.session = session;
    this.sign = sign;
    this.labelAt = labelAt;
    this.stream = new WindowStream(INPUT);
    this.checks = new LevelChecks();
    /** @type {number[]} */ this.times = [];
    /** @type {number[][]} */ this.acc = [];
    /** @type {number[][]} */ this.gyro = [];
    /** @type {number[]} */ this.recent = [];
    /** The newest acceleration, m/s². */
    this.latest = [0, 0, 0];
    this.lastMs = -Infinity;
  }

  /** Samples a second over the last two. */
  get rateHz() {
    const [first, last] = [this.recent[0], this.recent[this.recent.length - 1]];
    return this.recent.length > 1 ? (1000 * (this.recent.length - 1)) / (last - first) : 0;
  }

  /**
   * Take one event as `listenToMotion` gives it: milliseconds, m/s² with gravity, degrees a second.
   * @param {number} timeMs @param {number[]} acc @param {number[]} gyro
   * @returns {{windows: import("../types.js").StoredWindow[], warnings: string[]}}
   */
  push(timeMs, acc, gyro) {
    this.recent.push(timeMs);
    while (timeMs - this.recent[0] > RATE_OVER_MS) this.recent.shift();
    this.latest = acc.map((each) => this.sign * each);
    this.lastMs = timeMs + this.offsetMs;
    this.times.push(timeMs * MS);
    this.acc.push(this.latest);
    this.gyro.push(gyro.map((each) => each * DEG));
    return this.times.length < CHUNK ? { windows: [], warnings: [] } : this.advance();
  }

  /** End the stretch: the windows that still waited. @returns {import("../types.js").StoredWindow[]} */
  finish() {
    return [...this.advance().windows, ...this.stored(this.stream.flush())];
  }

  advance() {
    const { times, acc, gyro } = this;
    [this.times, this.acc, this.gyro] = [[], [], []];
    if (!times.length) return { windows: [], warnings: [] };
    const warnings = [...this.checks.add("acc", times, acc), ...this.checks.add("gyro", times, gyro)];
    const windows = [...this.stream.push("acc", times, acc), ...this.stream.push("gyro", times, gyro)];
    return { windows: this.stored(windows), warnings };
  }

  /** @param {import("../recognizer/windows.js").Window[]} windows @returns {import("../types.js").StoredWindow[]} */
  stored(windows) {
    return windows.map(({ x, startS }) => {
      const startMs = startS / MS + this.offsetMs;
      return { startMs, x, label: this.labelAt(startMs + WINDOW_MS / 2), session: this.session };
    });
  }
}
