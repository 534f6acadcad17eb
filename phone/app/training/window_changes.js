/**
 * Windows changed at random where the plan asks for it: turned as if the phone lay otherwise, or without the gyroscope.
 * federation/training/window_changes.py, with the same draws. What is changed is what was measured.
 */

import { WINDOW } from "../learning/examples.js";
import { CHANNELS } from "../learning/normalization.js";
import { yieldToEventLoop } from "../learning/yield_to_event_loop.js";
import { Generator, seedFor } from "./draws.js";

/** @typedef {{x: Float32Array, y: Int32Array}} Summed windows (n, 128, 6), raw, and their classes (n) */
/** @typedef {{rotations: number, degrees: number, sensor_loss: boolean}} Changes the plan's, of its method */
/** @typedef {import("../protocol/messages.generated.js").Augmentation} Augmentation */
/** @typedef {import("../types.js").Normalization} Normalization */
/** @typedef {{seed: number, device: string}} DrawnBy the plan's seed, and whose windows they are */

const AXES = 3;
const SIZE = WINDOW * CHANNELS;
/** By no more than these is by any rotation. */
const ANY = 180;
/** Numbers from 0 to 1 for each example; a window takes five: if it is turned, three for how, if its gyroscope is lost. */
export const DRAWS = 7;
const LOST = 4;
/** Windows that are turned before the page has its turn. */
const SLICE = 256;
/** @type {WeakMap<Float32Array, {key: string, made: Promise<Summed>}>} by the windows that they are copies of */
const known = new WeakMap();

/**
 * Lay the copies behind the windows; of the same windows they are made once, and without copies nothing is.
 * @param {Summed} windows @param {Changes} changes @param {DrawnBy} by @returns {Promise<Summed>}
 */
export async function withCopies(windows, changes, by) {
  if (!windows.y.length || !(changes.rotations || changes.sensor_loss)) return windows;
  const key = JSON.stringify([changes, by]);
  let found = known.get(windows.x);
  if (found?.key !== key) {
    found = { key, made: copied(windows, changes, by) };
    known.set(windows.x, found);
    found.made.catch(() => known.delete(windows.x));
  }
  return found.made;
}

/** @param {Summed} windows @param {Changes} changes @param {DrawnBy} by @returns {Promise<Summed>} */
async function copied({ x, y }, { rotations, degrees, sensor_loss: isLost }, { seed, device }) {
  const parts = 1 + rotations + (isLost ? 1 : 0);
  const all = { x: new Float32Array(parts * x.length), y: new Int32Array(parts * y.length) };
  for (let part = 0; part < parts; part++) {
    all.x.set(x, part * x.length);
    all.y.set(y, part * y.length);
  }
  for (let copy = 1; copy <= rotations; copy++) {
    const random = new Generator(await seedFor(seed, "rotations", device, copy));
    for (let i = 0; i < y.length; i++) {
      if (i % SLICE === 0) await yieldToEventLoop();
      const draws = [random.float32(), random.float32(), random.float32()];
      turn(all.x.subarray(copy * x.length + i * SIZE, copy * x.length + (i + 1) * SIZE), rotationOf(draws, degrees), null);
    }
  }
  if (isLost) {
    for (let at = (parts - 1) * x.length; at < all.x.length; at += CHANNELS) all.x.fill(0, at + AXES, at + CHANNELS);
  }
  return all;
}

/**
 * Change a share of windows in their place.
 * @param {Float32Array} x (n, 128, 6) normalized by `scale`, raw where it is null @param {Augmentation} augmentation
 * @param {Float32Array} draws (n, DRAWS) from 0 to 1 @param {Normalization | null} scale
 */
export function changeWindows(x, { rotation = 0, degrees = ANY, sensor_loss: lossShare = 0 }, draws, scale) {
  for (let i = 0; i < x.length / SIZE; i++) {
    const window = x.subarray(i * SIZE, (i + 1) * SIZE);
    const own = draws.subarray(i * DRAWS, (i + 1) * DRAWS);
    if (own[0] < Math.fround(rotation)) turn(window, rotationOf([own[1], own[2], own[3]], degrees), scale);
    if (own[LOST] < Math.fround(lossShare)) loseGyroscope(window, scale);
  }
}

/** @param {Float32Array} window changed @param {Normalization | null} scale */
function loseGyroscope(window, scale) {
  for (let axis = AXES; axis < CHANNELS; axis++) {
    const nothing = scale ? -scale.mean[axis] / scale.std[axis] : 0;
    for (let at = axis; at < window.length; at += CHANNELS) window[at] = nothing;
  }
}

/**
 * The rotation of three draws, by no more than so many degrees, row-major, of a unit quaternion.
 * @param {number[]} draws @param {number} degrees
 */
function rotationOf(draws, degrees) {
  const [x, y, z, w] = degrees >= ANY ? anyQuaternion(draws) : smallQuaternion(draws, degrees);
  return Float32Array.of(
    ...[1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
    ...[2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
    ...[2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
  );
}

/** @param {number[]} draws */
function anyQuaternion([first, second, third]) {
  const [inner, outer] = [Math.sqrt(1 - first), Math.sqrt(first)];
  const [angle, otherAngle] = [2 * Math.PI * second, 2 * Math.PI * third];
  return [inner * Math.sin(angle), inner * Math.cos(angle), outer * Math.sin(otherAngle), outer * Math.cos(otherAngle)];
}

/** @param {number[]} draws @param {number} degrees */
function smallQuaternion([first, second, third], degrees) {
  const height = 2 * first - 1;
  const half = (((degrees * Math.PI) / 180) * third) / 2;
  const across = Math.sqrt(1 - height ** 2) * Math.sin(half);
  const around = 2 * Math.PI * second;
  return [across * Math.cos(around), across * Math.sin(around), height * Math.sin(half), Math.cos(half)];
}

/**
 * Turn both sensors of a window in its place, in float32.
 * @param {Float32Array} x (128, 6) @param {Float32Array} m (3, 3) @param {Normalization | null} scale
 */
function turn(x, m, scale) {
  const { fround } = Math;
  for (let at = 0; at < x.length; at += AXES) {
    const channel = at % CHANNELS;
    const [a, b, c] = x.subarray(at, at + AXES).map((value, i) => (scale ? raw(value, scale, channel + i) : value));
    for (let axis = 0; axis < AXES; axis++) {
      const row = AXES * axis;
      const value = fround(fround(fround(a * m[row]) + fround(b * m[row + 1])) + fround(c * m[row + 2]));
      x[at + axis] = scale ? fround(value - scale.mean[channel + axis]) / scale.std[channel + axis] : value;
    }
  }
}

/** @param {number} value @param {Normalization} scale @param {number} channel */
function raw(value, { mean, std }, channel) {
  return Math.fround(value * std[channel]) + mean[channel];
}
