/**
 * L-BFGS: D. C. Liu, J. Nocedal, 'On the limited memory BFGS method for large scale optimization', Mathematical
 * Programming 45 (1989), with backtracking to Armijo's condition, which is enough where the function is convex.
 */

import { yieldToEventLoop } from "./yield_to_event_loop.js";

const MEMORY = 10;
const SUFFICIENT = 1e-4;
const MIN_STEP = 1e-12;

/**
 * @typedef {object} Pair a step and the change of the gradient along it
 * @property {Float64Array} step
 * @property {Float64Array} change
 * @property {number} curvature their product
 */

/**
 * Minimize a smooth convex function; the page may draw between two steps.
 * @param {(at: Float64Array, gradient: Float64Array) => number} evaluate returns the value and fills in the gradient
 * @param {Float64Array} start not changed
 * @param {{tolerance?: number, iterations?: number}} [until] largest entry of the gradient, and steps at most
 * @returns {Promise<{at: Float64Array, value: number, iterations: number, converged: boolean}>}
 */
export async function minimize(evaluate, start, { tolerance = 1e-6, iterations = 500 } = {}) {
  let at = Float64Array.from(start);
  let gradient = new Float64Array(start.length);
  let value = evaluate(at, gradient);
  /** @type {Pair[]} */
  const pairs = [];
  for (let iteration = 0; iteration < iterations; iteration++) {
    if (largest(gradient) <= tolerance) return { at, value, iterations: iteration, converged: true };
    const direction = descent(gradient, pairs);
    const slope = dot(gradient, direction);
    let size = pairs.length ? 1 : Math.min(1, 1 / Math.sqrt(dot(gradient, gradient)));
    const next = new Float64Array(start.length);
    const nextGradient = new Float64Array(start.length);
    let nextValue = Infinity;
    for (; size > MIN_STEP; size /= 2) {
      for (let i = 0; i < at.length; i++) next[i] = at[i] + size * direction[i];
      nextValue = evaluate(next, nextGradient);
      if (nextValue <= value + SUFFICIENT * size * slope) break;
    }
    // rounding leaves nothing to gain
    if (!(nextValue <= value)) return { at, value, iterations: iteration, converged: false };
    remember(pairs, at, next, gradient, nextGradient);
    [at, gradient, value] = [next, nextGradient, nextValue];
    await yieldToEventLoop();
  }
  return { at, value, iterations, converged: largest(gradient) <= tolerance };
}

/** @param {Float64Array} gradient @param {readonly Pair[]} pairs @returns {Float64Array} */
function descent(gradient, pairs) {
  const direction = gradient.map((each) => -each);
  const weights = new Float64Array(pairs.length);
  for (let k = pairs.length - 1; k >= 0; k--) {
    weights[k] = dot(pairs[k].step, direction) / pairs[k].curvature;
    add(direction, pairs[k].change, -weights[k]);
  }
  const newest = pairs.at(-1);
  if (newest) {
    const scale = newest.curvature / dot(newest.change, newest.change);
    for (let i = 0; i < direction.length; i++) direction[i] *= scale;
  }
  pairs.forEach(({ step, change, curvature }, k) => {
    add(direction, step, weights[k] - dot(change, direction) / curvature);
  });
  return direction;
}

/**
 * @param {Pair[]} pairs @param {Float64Array} at @param {Float64Array} next
 * @param {Float64Array} gradient @param {Float64Array} nextGradient
 */
function remember(pairs, at, next, gradient, nextGradient) {
  const step = next.map((each, i) => each - at[i]);
  const change = nextGradient.map((each, i) => each - gradient[i]);
  const curvature = dot(step, change);
  if (!(curvature > 0)) return;
  pairs.push({ step, change, curvature });
  if (pairs.length > MEMORY) pairs.shift();
}

/** @param {Float64Array} to @param {Float64Array} from @param {number} factor */
function add(to, from, factor) {
  for (let i = 0; i < to.length; i++) to[i] += factor * from[i];
}

/** @param {Float64Array} one @param {Float64Array} other @returns {number} */
function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += one[i] * other[i];
  return sum;
}

/** @param {Float64Array} values @returns {number} */
function largest(values) {
  return values.reduce((found, each) => Math.max(found, Math.abs(each)), 0);
}
