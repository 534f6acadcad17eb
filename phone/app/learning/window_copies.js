/**
 * Copies of the training windows that a phone's sums have besides them, where the plan asks for it: turned at random, and
 * without the gyroscope. federation/training/window_copies.py, with the same draws.
 */

import { Generator, seedFor } from "../training/draws.js";
import { CHANNELS } from "./normalization.js";
import { WINDOW } from "./examples.js";
import { yieldToEventLoop } from "./yield_to_event_loop.js";

/** @typedef {{x: Float32Array, y: Int32Array}} Summed windows (n, 128, 6), raw, and their classes (n) */
/** @typedef {{rotations: number, degrees: number, sensor_loss: boolean}} Changes the plan's, of its method */
/** @typedef {{seed: number, device: string}} DrawnBy the plan's seed, and whose windows they are */

const AXES = 3;
const SIZE = WINDOW * CHANNELS;
/** By no more than these is by any rotation. */
const ANY = 180;
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
      turn(all.x.subarray(copy * x.length + i * SIZE, copy * x.length + (i + 1) * SIZE), rotationOf(random, degrees));
    }
  }
  if (isLost) {
    for (let at = (parts - 1) * x.length; at < all.x.length; at += CHANNELS) all.x.fill(0, at + AXES, at + CHANNELS);
  }
  return all;
}

/**
 * The next random rotation by no more than so many degrees, row-major, of a unit quaternion.
 * @param {Generator} random @param {number} degrees
 */
function rotationOf(random, degrees) {
  const draws = [random.float32(), random.float32(), random.float32()];
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
  const [one, other] = [2 * Math.PI * second, 2 * Math.PI * third];
  return [inner * Math.sin(one), inner * Math.cos(one), outer * Math.sin(other), outer * Math.cos(other)];
}

/** @param {number[]} draws @param {number} degrees */
function smallQuaternion([first, second, third], degrees) {
  const height = 2 * first - 1;
  const half = (((degrees * Math.PI) / 180) * third) / 2;
  const across = Math.sqrt(1 - height ** 2) * Math.sin(half);
  const around = 2 * Math.PI * second;
  return [across * Math.cos(around), across * Math.sin(around), height * Math.sin(half), Math.cos(half)];
}

/** Turn both sensors of a window in its place, in float32. @param {Float32Array} x (128, 6) @param {Float32Array} m (3, 3) */
function turn(x, m) {
  for (let at = 0; at < x.length; at += AXES) {
    const [a, b, c] = x.subarray(at, at + AXES);
    for (let axis = 0; axis < AXES; axis++) {
      const row = AXES * axis;
      const sum = Math.fround(Math.fround(a * m[row]) + Math.fround(b * m[row + 1]));
      x[at + axis] = sum + Math.fround(c * m[row + 2]);
    }
  }
}
