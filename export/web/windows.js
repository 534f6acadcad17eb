/**
 * From samples of both sensors, in any chunks, to windows on one grid: har_pipeline/streaming/stream.py for a live
 * device. A segment is where a run of the accelerometer and a run of the gyroscope overlap.
 */

import { ROUNDING_S, SensorBuffer } from "./sensor_buffer.js";

/**
 * @typedef {object} Window
 * @property {Float32Array} x (window × 6) in m/s² and rad/s, row after row
 * @property {number} startS the time of its first row, on the samples' clock
 */

export class WindowStream {
  /** @param {import("./onnx_metadata.js").InputSpec} input what the model takes */
  constructor(input) {
    this.rateHz = input.rate_hz;
    this.length = input.shape[0];
    this.stride = input.stride;
    this.sensors = {
      acc: new SensorBuffer(input.filter, input.rate_hz),
      gyro: new SensorBuffer(input.filter, input.rate_hz),
    };
    /** @type {number | null} */ this.beginS = null;
    this.next = this.origin = this.windowStart = 0;
    /** @type {number[][]} */ this.rows = [];
  }

  /** Samples left out so far. */
  get dropped() {
    return this.sensors.acc.dropped + this.sensors.gyro.dropped;
  }

  /**
   * Take samples of one sensor, and return the windows that they complete, oldest first.
   * @param {"acc" | "gyro"} sensor @param {ArrayLike<number>} times in seconds
   * @param {ArrayLike<ArrayLike<number>>} values [x, y, z] in m/s² with gravity, or rad/s
   * @returns {Window[]}
   */
  push(sensor, times, values) {
    this.sensors[sensor].add(times, values);
    return this.advance(false);
  }

  /** End the session: return the windows that were still waiting. @returns {Window[]} */
  flush() {
    const both = Object.values(this.sensors);
    both.forEach((sensor) => sensor.settleAll());
    const finished = this.advance(true);
    both.forEach((sensor) => sensor.clear());
    this.beginS = null;
    return finished;
  }

  /** @param {boolean} final */
  advance(final) {
    /** @type {Window[]} */
    const finished = [];
    while (Object.values(this.sensors).every((sensor) => sensor.times.length)) {
      if (this.beginS === null && !this.findSegment(final)) break;
      finished.push(...this.extendSegment(final));
      if (this.beginS !== null) break;
    }
    return finished;
  }

  /**
   * Begin a segment where the first runs of both sensors overlap; drop runs that end before the other begins.
   * @param {boolean} final
   */
  findSegment(final) {
    const sensors = Object.values(this.sensors);
    while (sensors.every((sensor) => sensor.times.length && sensor.rateHz)) {
      const start = Math.max(...sensors.map((sensor) => sensor.times[0]));
      const early = sensors.find((sensor) => sensor.firstRun(final).end < start);
      if (!early) {
        this.beginS = start;
        this.next = this.origin = this.windowStart = 0;
        this.rows = [];
        return true;
      }
      const run = early.firstRun(final);
      if (!run.closed) return false;
      early.drop(run.count);
    }
    return false;
  }

  /**
   * Compute every grid point of the segment that no later sample can change; end it if a run ended.
   * @param {boolean} final
   */
  extendSegment(final) {
    const beginS = /** @type {number} */ (this.beginS);
    const both = Object.values(this.sensors).map((sensor) => ({
      sensor,
      reach: sensor.reachS,
      ...sensor.firstRun(final),
    }));
    const limit = Math.min(
      ...both.map(({ end, closed, reach }) => (closed ? end + ROUNDING_S : end - reach - ROUNDING_S)),
    );
    const stop = Math.max(this.next, Math.floor((limit - beginS) * this.rateHz) + 1);
    const grid = Array.from({ length: stop - this.next }, (_, i) => beginS + (this.next + i) / this.rateHz);
    const [acc, gyro] = both.map(({ sensor, count }) => (grid.length ? sensor.at(grid, count) : []));
    acc.forEach((row, i) => this.rows.push([...row, ...gyro[i]]));
    const finished = this.cutWindows(beginS);
    this.next = stop;
    const nextS = beginS + stop / this.rateHz;
    for (const { sensor, count, end, closed, reach } of both) {
      if (closed && nextS > end + ROUNDING_S) {
        sensor.drop(count);
        this.beginS = null;
      } else sensor.dropBefore(nextS - reach - 2 / this.rateHz);
    }
    return finished;
  }

  /** @param {number} beginS */
  cutWindows(beginS) {
    /** @type {Window[]} */
    const finished = [];
    while (this.windowStart - this.origin + this.length <= this.rows.length) {
      const at = this.windowStart - this.origin;
      const x = Float32Array.from(this.rows.slice(at, at + this.length).flat());
      finished.push({ x, startS: beginS + this.windowStart / this.rateHz });
      this.windowStart += this.stride;
    }
    const used = Math.min(this.windowStart - this.origin, this.rows.length);
    this.rows = this.rows.slice(used);
    this.origin += used;
    return finished;
  }
}
