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
  return grid.map((time) => {
    const low = lowerBound(at, time - reach);
    let high = lowerBound(at, time + reach);
    while (high < at.length && at[high] <= time + reach) high++;
    const weights = weightsOf(
      at.slice(low, high).map((each) => each - time),
      reach,
      cutoffHz,
    );
    const result = [0, 0, 0];
    weights.forEach((weight, i) => {
      for (let axis = 0; axis < 3; axis++) result[axis] += weight * samples[low + i][axis];
    });
    return result;
  });
}

/**
 * Average what lies within one cell of a step.
 * @param {number[]} times @param {number[][]} values @param {number} rateHz @returns {[number[], number[][]]}
 */
function averaged(times, values, rateHz) {
  const at = [];
  const samples = [];
  for (let i = 0; i < times.length; ) {
    const cell = Math.floor(times[i] * (rateHz / CELL));
    let end = i + 1;
    while (end < times.length && Math.floor(times[end] * (rateHz / CELL)) === cell) end++;
    let late = 0;
    const sum = [0, 0, 0];
    for (let k = i; k < end; k++) {
      late += times[k] - times[i];
      for (let axis = 0; axis < 3; axis++) sum[axis] += values[k][axis];
    }
    at.push(times[i] + late / (end - i));
    samples.push(sum.map((each) => each / (end - i)));
    i = end;
  }
  return [at, samples];
}

/**
 * Solve for the weights of samples at `offsets` seconds from their grid point.
 * @param {number[]} offsets @param {number} reach @param {number} cutoffHz
 */
function weightsOf(offsets, reach, cutoffHz) {
  const signal = (/** @type {number} */ apart) => {
    const square = (apart / reach) ** 2;
    return sinc(2 * cutoffHz * apart) * Math.exp(-0.5 * square) + SLOW_PART * Math.exp(-4.5 * square);
  };
  const taper = offsets.map((each) => Math.max(Math.cos((Math.PI / 2) * (each / reach)) ** 2, 1e-6));
  const rows = offsets.map((one, i) => [
    ...offsets.map((other, k) => signal(one - other) + (i === k ? NOISE / taper[i] : 0)),
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
