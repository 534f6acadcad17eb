/**
 * The samples of one live sensor between their arrival and their use: sorted, deduplicated, cut into runs at gaps and
 * where the rate changes. har_pipeline/streaming/sensor_buffer.py says why; late samples are dropped.
 */

import { cellStart, interpolateAt, reachS } from "./interpolation.js";
import { LowPass, lowerBound } from "./low_pass.js";

export const ROUNDING_S = 1e-6;
const REORDER_S = 0.1;
const RATE_SPAN_S = 2;
const PIECE_S = 10;
/** Of the grid's rate: below it a sensor is interpolated, for each `anti_alias` of a filter. */
const SLOW = { always: 0.9, downsampling: 1.1 };
const GAP_STEPS = 5;
const MIN_RATE_HZ = 5;
const MIN_STEPS = 8;
const PAUSE_S = 1;
const PAUSE_STEPS = 10;
const ANOTHER_RATE = 1.5;
const BURST = 3;
const BURST_STEPS = 1.5;
const BURSTS = 4;
const BURST_GROWTH = 1.25;
/** No sensor of a body measures more m/s² or rad/s; as float32, far larger ones would be infinite. */
const MAX_VALUE = 1e6;

export class SensorBuffer {
  /** @param {import("./low_pass.js").Filter} filter @param {number} gridHz the rate of the windows */
  constructor(filter, gridHz) {
    this.filter = filter;
    this.gridHz = gridHz;
    this.lowPass = new LowPass(filter);
    this.dropped = 0;
    /** @type {number[]} */ this.times = [];
    /** @type {number[][]} */ this.values = [];
    /** @type {[number, number[]][]} */ this.pending = [];
    this.horizon = -Infinity;
    /** @type {number[]} */ this.breaks = [];
    /** @type {number[]} */ this.rates = [];
    this.start = this.looked = this.piece = 0;
    this.pieceS = 0;
    this.openRateHz = 0;
    this.stampS = -Infinity;
    this.bursts = 0;
    this.burstStepS = Infinity;
  }

  /** Forget everything, as between two sessions. */
  clear() {
    this.times = [];
    this.values = [];
    this.pending = [];
    this.horizon = -Infinity;
    this.stampS = -Infinity;
    this.bursts = 0;
    this.burstStepS = Infinity;
    this.breaks = [];
    this.rates = [];
    this.openRun(0);
  }

  /** Time of the newest sample held; -Infinity when empty. */
  get newest() {
    if (this.pending.length) return this.pending[this.pending.length - 1][0];
    return this.times.length ? this.times[this.times.length - 1] : -Infinity;
  }

  /**
   * Take samples in seconds, m/s² or rad/s; those without a number or beyond MAX_VALUE, and late ones, are dropped and counted.
   * @param {ArrayLike<number>} times @param {ArrayLike<ArrayLike<number>>} values
   */
  add(times, values) {
    for (let i = 0; i < times.length; i++) {
      const row = [values[i][0], values[i][1], values[i][2]];
      const sound = Number.isFinite(times[i]) && row.every((each) => Math.abs(each) <= MAX_VALUE);
      if (!sound || times[i] < this.horizon) this.dropped++;
      else this.pending.push([times[i], row]);
    }
    if (!this.pending.length) return;
    this.pending.sort((one, other) => one[0] - other[0]); // stable
    this.horizon = Math.max(this.horizon, this.newest - REORDER_S);
    this.settle(lowerBound(this.pending.map((each) => each[0]), this.horizon));
    this.divide(false);
  }

  /** Make every pending sample final: nothing more comes. */
  settleAll() {
    this.settle(this.pending.length);
    this.divide(true);
  }

  /** Samples in the first run, its last time, and whether it is closed. @param {boolean} final */
  firstRun(final) {
    if (this.breaks.length) return { count: this.breaks[0], end: this.times[this.breaks[0] - 1], closed: true };
    let last = this.times.length - 1;
    // of a slow sensor, the last sample of a cell that no later one can change
    if (!final && last >= 0 && this.isSlow(this.rateHz)) last = Math.max(cellStart(this.times, last, this.rateHz) - 1, 0);
    return { count: this.times.length, end: this.times[last], closed: final };
  }

  /** Native rate of the first run; 0 while it is not yet measured, Infinity where a few samples are all. */
  get rateHz() {
    return this.rates.length ? this.rates[0] : this.openRateHz;
  }

  /** How far from a grid point samples of the first run still count. */
  get reachS() {
    return this.isSlow(this.rateHz) ? reachS(this.rateHz) : this.filter.half_width_s;
  }

  /** Filter the first run's samples to values at `grid`. @param {number[]} grid @param {number} count */
  at(grid, count) {
    if (!this.isSlow(this.rateHz)) return grid.map((time) => this.lowPass.at(this.times, this.values, time, count));
    const [times, values] = [this.times.slice(0, count), this.values.slice(0, count)];
    return interpolateAt(times, values, grid, this.rateHz, this.filter.cutoff_hz);
  }

  /** Forget the first `count` settled samples. @param {number} count */
  drop(count) {
    this.times = this.times.slice(count);
    this.values = this.values.slice(count);
    this.breaks = this.breaks.map((each) => each - count).filter((each) => each > 0);
    this.rates = this.rates.slice(this.rates.length - this.breaks.length);
    this.start -= count;
    this.looked -= count;
    this.piece -= count;
  }

  /** Forget samples before `time` within the first run, but one, or its cell and one. @param {number} time */
  dropBefore(time) {
    const limit = this.breaks.length ? this.breaks[0] : this.times.length;
    let count = lowerBound(this.times, time, limit) - 1;
    if (count > 0 && this.isSlow(this.rateHz)) count = cellStart(this.times, count, this.rateHz) - 1;
    if (count > 0) this.drop(count);
  }

  /**
   * Lay the first `count` pending samples to the final ones; those of one time are spread, or become their mean.
   * @param {number} count
   */
  settle(count) {
    const settled = this.pending.splice(0, count);
    for (let i = 0; i < settled.length; ) {
      let end = i + 1;
      while (end < settled.length && settled[end][0] === settled[i][0]) end++;
      const passedS = settled[i][0] - this.stampS;
      this.stampS = settled[i][0];
      if (this.isBurst(settled, i, end, passedS)) {
        this.burstStepS = Math.min(passedS / (end - i), BURST_GROWTH * this.burstStepS);
        for (; i < end; i++) {
          this.times.push(settled[i][0] - this.burstStepS * (end - 1 - i));
          this.values.push(settled[i][1]);
        }
        continue;
      }
      const sum = [0, 0, 0];
      for (let k = i; k < end; k++) settled[k][1].forEach((each, axis) => (sum[axis] += each));
      this.times.push(settled[i][0]);
      this.values.push(sum.map((each) => each / (end - i)));
      i = end;
    }
  }

  /**
   * Whether samples from `start` to `end`, all of one stamp, came in a burst, the fourth in a row at the earliest.
   * @param {[number, number[]][]} settled @param {number} start @param {number} end
   * @param {number} passedS the time since the stamp before
   */
  isBurst(settled, start, end, passedS) {
    if (end - start < 2 || passedS > PAUSE_S) {
      this.bursts = 0;
      this.burstStepS = Infinity;
      return false;
    }
    const first = settled[start][1];
    const differs = settled.slice(start, end).some(([, row]) => row.some((each, axis) => each !== first[axis]));
    if (differs && end - start >= BURST && passedS > BURST_STEPS / this.gridHz) this.bursts++;
    return this.bursts >= BURSTS;
  }

  /** @param {number} rateHz */
  isSlow(rateHz) {
    return rateHz < SLOW[this.filter.anti_alias ?? "always"] * this.gridHz;
  }

  /** @param {number} start */
  openRun(start) {
    this.start = this.looked = this.piece = start;
    this.pieceS = 0;
    this.openRateHz = 0;
  }

  /** @param {number} end */
  closeRun(end) {
    this.breaks.push(end);
    this.rates.push(this.openRateHz);
    this.openRun(end);
  }

  /** Cut the settled samples into runs, as far as their rates can be known. @param {boolean} final */
  divide(final) {
    while (this.start < this.times.length) {
      if (!this.openRateHz && !this.measure(final)) return;
      const end = lowerBound(this.times, this.pieceS + PIECE_S);
      let longestS = this.filter.max_gap_s;
      if (this.isSlow(this.openRateHz)) longestS = Math.max(longestS, GAP_STEPS / this.openRateHz);
      const last = Math.min(end, this.times.length - 1);
      let gap = this.looked;
      while (gap < last && this.times[gap + 1] - this.times[gap] <= longestS + ROUNDING_S) gap++;
      if (gap < last) {
        this.closeRun(gap + 1);
        continue;
      }
      this.looked = last;
      if (end === this.times.length) return;
      this.lookAtPiece(end);
    }
  }

  /** Measure the open run's rate over its first seconds; false while these have not come. @param {boolean} final */
  measure(final) {
    const startS = this.times[this.start];
    const end = lowerBound(this.times, startS + RATE_SPAN_S);
    if (end === this.times.length && !final) return false;
    this.openRateHz = nativeRate(this.times.slice(this.start, end));
    this.pieceS = startS;
    return true;
  }

  /** @param {number} end */
  lookAtPiece(end) {
    const rateHz = (end - this.piece) / (this.times[end] - this.pieceS);
    const change = rateHz / this.openRateHz;
    const slow = this.isSlow(rateHz) || this.isSlow(this.openRateHz);
    if (slow && !(1 / ANOTHER_RATE < change && change < ANOTHER_RATE)) this.closeRun(end);
    else {
      this.piece = end;
      this.pieceS = this.times[end];
    }
  }
}

/** The samples a second of increasing times, gaps left out. @param {number[]} times @returns {number} */
function nativeRate(times) {
  let steps = times.slice(1).map((time, i) => time - times[i]);
  steps = steps.filter((step) => step <= PAUSE_S);
  const mean = () => steps.reduce((sum, step) => sum + step, 0) / steps.length;
  for (let pass = 0; pass < 3; pass++) {
    if (steps.length < MIN_STEPS) return Infinity;
    const longest = PAUSE_STEPS * mean();
    steps = steps.filter((step) => step <= longest);
  }
  return Math.max(1 / mean(), MIN_RATE_HZ);
}
