/**
 * Interpolation of a sensor that is slower than the grid, by local least squares over band-limited signals:
 * har_pipeline/streaming/interpolate.py, where the reasons are.
 */

import { lowerBound } from "./low_pass.js";

const CUTOFF = 0.42;
const REACH = 9;
const CELL = 0.25;
const NOISE = 1e-3;
const SLOW_PART = 1e3;
const SHIFTED = 0.4;
const CLOSE = 0.6;
const CLOSE_BAND = 0.1;
const SLOPE = 10;
const OVERSHOOT = 0.15;

/** How far from a grid point samples count, in seconds. @param {number} rateHz @returns {number} */
export function reachS(rateHz) {
  return (REACH + CELL) / rateHz;
}

/**
 * Evaluate the signal at each of `grid`, from samples of about `rateHz`.
 * @param {number[]} times strictly increasing, in seconds
 * @param {number[][]} values [x, y, z] at each of them
 * @param {number[]} grid @param {number} rateHz @param {number} highestHz where the band ends at the latest
 * @returns {number[][]}
 */
export function interpolateAt(times, values, grid, rateHz, highestHz) {
  const [at, samples] = averaged(times, values, rateHz);
  const reach = REACH / rateHz;
  const cutoffHz = Math.min(CUTOFF * rateHz, highestHz);
  const noise = noiseOf(at, rateHz);
  return grid.map((time) => {
    const low = lowerBound(at, time - reach);
    let high = lowerBound(at, time + reach);
    while (high < at.length && at[high] <= time + reach) high++;
    const weights = weightsOf(
      at.slice(low, high).map((each) => each - time),
      noise.slice(low, high),
      reach,
      cutoffHz,
    );
    const result = [0, 0, 0];
    weights.forEach((weight, i) => {
      for (let axis = 0; axis < 3; axis++) result[axis] += weight * samples[low + i][axis];
    });
    return result.map((each, axis) => withinRange(each, samples, low, high, axis));
  });
}

/**
 * The noise that is assumed of each sample: more where its stamp cannot be right.
 * @param {number[]} times @param {number} rateHz @returns {number[]}
 */
function noiseOf(times, rateHz) {
  return times.map((time, i) => {
    if (i === 0 || i === times.length - 1) return NOISE;
    const steps = [(time - times[i - 1]) * rateHz, (times[i + 1] - time) * rateHz];
    const least = Math.min(...steps);
    const close = Math.min(1, Math.max(0, (CLOSE - least) / CLOSE_BAND));
    const shifted = Math.max(0, (Math.max(...steps) - least) / 2 - SHIFTED) * close;
    return NOISE + (SLOPE * shifted) ** 2;
  });
}

/**
 * Keep a number within the range of samples low to high on an axis, and OVERSHOOT of it beyond.
 * @param {number} number @param {number[][]} samples @param {number} low @param {number} high @param {number} axis
 */
function withinRange(number, samples, low, high, axis) {
  let [lowest, highest] = [Infinity, -Infinity];
  for (let i = low; i < high; i++) {
    lowest = Math.min(lowest, samples[i][axis]);
    highest = Math.max(highest, samples[i][axis]);
  }
  const beyond = OVERSHOOT * (highest - lowest);
  return Math.min(Math.max(number, lowest - beyond), highest + beyond);
}

/**
 * The index of the first sample in the cell of sample `index`.
 * @param {number[]} times @param {number} index @param {number} rateHz @returns {number}
 */
export function cellStart(times, index, rateHz) {
  const cell = Math.floor(times[index] * (rateHz / CELL));
  while (index > 0 && Math.floor(times[index - 1] * (rateHz / CELL)) === cell) index--;
  return index;
}

/**
 * Average what lies within one cell of a step; a sample counts the less, the less its stamp can be right.
 * @param {number[]} times @param {number[][]} values @param {number} rateHz @returns {[number[], number[][]]}
 */
function averaged(times, values, rateHz) {
  const shares = noiseOf(times, rateHz).map((each) => NOISE / each);
  const at = [];
  const samples = [];
  for (let i = 0; i < times.length; ) {
    const cell = Math.floor(times[i] * (rateHz / CELL));
    let end = i + 1;
    while (end < times.length && Math.floor(times[end] * (rateHz / CELL)) === cell) end++;
    let [late, whole] = [0, 0];
    const sum = [0, 0, 0];
    for (let k = i; k < end; k++) {
      whole += shares[k];
      late += shares[k] * (times[k] - times[i]);
      for (let axis = 0; axis < 3; axis++) sum[axis] += shares[k] * values[k][axis];
    }
    at.push(times[i] + late / whole);
    samples.push(sum.map((each) => each / whole));
    i = end;
  }
  return [at, samples];
}

/**
 * Solve for the weights of samples at `offsets` seconds from their grid point.
 * @param {number[]} offsets @param {number[]} noise of each @param {number} reach @param {number} cutoffHz
 */
function weightsOf(offsets, noise, reach, cutoffHz) {
  const signal = (/** @type {number} */ apart) => {
    const square = (apart / reach) ** 2;
    return sinc(2 * cutoffHz * apart) * Math.exp(-0.5 * square) + SLOW_PART * Math.exp(-4.5 * square);
  };
  const taper = offsets.map((each) => Math.max(Math.cos((Math.PI / 2) * (each / reach)) ** 2, 1e-6));
  const rows = offsets.map((one, i) => [
    ...offsets.map((other, k) => signal(one - other) + (i === k ? noise[i] / taper[i] : 0)),
    signal(one),
  ]);
  const weights = solve(rows);
  const lacking = 1 - weights.reduce((sum, each) => sum + each, 0);
  const whole = taper.reduce((sum, each) => sum + each, 0);
  return weights.map((each, i) => each + (lacking * taper[i]) / whole);
}

/** @param {number} x */
function sinc(x) {
  return x ? Math.sin(Math.PI * x) / (Math.PI * x) : 1;
}

/**
 * Solve rows [matrix | right side], positive definite, by elimination without pivots; the rows are used up.
 * @param {number[][]} rows
 */
function solve(rows) {
  const count = rows.length;
  for (let i = 0; i < count; i++) {
    for (let k = i + 1; k < count; k++) {
      const factor = rows[k][i] / rows[i][i];
      for (let column = i; column <= count; column++) rows[k][column] -= factor * rows[i][column];
    }
  }
  /** @type {number[]} */
  const result = new Array(count).fill(0);
  for (let i = count - 1; i >= 0; i--) {
    let rest = rows[i][count];
    for (let k = i + 1; k < count; k++) rest -= rows[i][k] * result[k];
    result[i] = rest / rows[i][i];
  }
  return result;
}
