/**
 * Anti-alias low-pass and resampling in one step, at the true times of the samples: har_pipeline/streaming/resample.py,
 * where the reasons are, one grid point after the other.
 */

const TABLE_STEPS = 16384;
const RIDGE = 1e-3;

/**
 * @typedef {object} Filter The `filter` of a model's input.
 * @property {string} name
 * @property {string} slower how slower sensors are interpolated
 * @property {number} cutoff_hz
 * @property {number} half_width_s
 * @property {number} kaiser_beta
 * @property {number} max_gap_s
 * @property {"always" | "downsampling"} [anti_alias] which sensors are low-passed; left out: always
 */

/** The modified Bessel function of the first kind and order 0. @param {number} x @returns {number} */
function bessel0(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > sum * 1e-17; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** Index of the first of sorted `times` that is not below `limit`. @param {number[]} times @param {number} limit */
export function lowerBound(times, limit, end = times.length) {
  let low = 0;
  let high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A windowed sinc with a local quadratic fit, for sensors that are about as fast as the grid, or faster. */
export class LowPass {
  /** @param {Filter} filter */
  constructor(filter) {
    this.halfWidthS = filter.half_width_s;
    this.table = new Float64Array(TABLE_STEPS + 1);
    for (let step = 0; step <= TABLE_STEPS; step++) {
      const share = step / TABLE_STEPS;
      const angle = 2 * Math.PI * filter.cutoff_hz * share * filter.half_width_s;
      const sinc = angle ? Math.sin(angle) / angle : 1;
      const kaiser = bessel0(filter.kaiser_beta * Math.sqrt(1 - share * share)) / bessel0(filter.kaiser_beta);
      this.table[step] = 2 * filter.cutoff_hz * sinc * kaiser;
    }
  }

  /**
   * Evaluate the filtered signal at `at`, which has a sample within half the kernel's width.
   * @param {number[]} times strictly increasing, in seconds
   * @param {number[][]} values [x, y, z] at each of them
   * @param {number} at @param {number} count how many of the samples belong to the run
   * @returns {[number, number, number]}
   */
  at(times, values, at, count) {
    const low = lowerBound(times, at - this.halfWidthS, count);
    let high = lowerBound(times, at + this.halfWidthS, count);
    while (high < count && times[high] <= at + this.halfWidthS) high++;
    const sinc = [];
    const taper = [];
    const offset = [];
    const s = [1, 0, 0];
    const m = [0, 0, 0, 0, 0];
    for (let i = low; i < high; i++) {
      const width = trapezoidWidth(times, i, count);
      const u = (times[i] - at) / this.halfWidthS;
      const h = this.table[Math.min(TABLE_STEPS, Math.round(Math.abs(u) * TABLE_STEPS))] * width;
      const c = Math.cos((Math.PI * u) / 2) ** 2 * width;
      sinc.push(h);
      taper.push(c);
      offset.push(u);
      for (let power = 0; power < 3; power++) s[power] -= h * u ** power;
      for (let power = 0; power < 5; power++) m[power] += c * u ** power;
    }
    const g = solveFit(m, s);
    /** @type {[number, number, number]} */
    const result = [0, 0, 0];
    for (let i = low; i < high; i++) {
      const u = offset[i - low];
      const weight = sinc[i - low] + taper[i - low] * (g[0] + g[1] * u + g[2] * u * u);
      for (let axis = 0; axis < 3; axis++) result[axis] += weight * values[i][axis];
    }
    return result;
  }
}

/**
 * The time that sample `i` covers: half the distance between its neighbours.
 * @param {number[]} times @param {number} i @param {number} count
 */
function trapezoidWidth(times, i, count) {
  if (count < 2) return 1;
  return (times[Math.min(i + 1, count - 1)] - times[Math.max(i - 1, 0)]) / 2;
}

/** Solve the symmetric 3 × 3 system of the fit by its cofactors. @param {number[]} m @param {number[]} s */
function solveFit([m0, m1, m2, m3, m4], s) {
  const r1 = m2 + RIDGE * m0;
  const r2 = m4 + RIDGE * m0;
  const c00 = r1 * r2 - m3 * m3;
  const c01 = m2 * m3 - m1 * r2;
  const c02 = m1 * m3 - r1 * m2;
  const c11 = m0 * r2 - m2 * m2;
  const c12 = m1 * m2 - m0 * m3;
  const c22 = m0 * r1 - m1 * m1;
  const determinant = m0 * c00 + m1 * c01 + m2 * c02;
  return [
    (c00 * s[0] + c01 * s[1] + c02 * s[2]) / determinant,
    (c01 * s[0] + c11 * s[1] + c12 * s[2]) / determinant,
    (c02 * s[0] + c12 * s[1] + c22 * s[2]) / determinant,
  ];
}
