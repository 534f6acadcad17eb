/**
 * Whether a phone's axes, signs and units are those that models expect: it lies flat, screen up, for two seconds.
 * edge_agent/sensors/sensor_logger/message.py has the same limits and the reasons.
 */

import { listenToMotion } from "../recognizer/device_motion.js";

const MIN_SAMPLES = 50;
const NEAR_GRAVITY = [9.0, 10.6];
const RANGE_IN_G = [0.5, 2.0];
const FLAT = 8.5;
/** Deviation of an axis in m/s² above which the phone does not lie still; sensors round to 0.1. */
const STILL = 0.4;

/**
 * @typedef {object} Verdict
 * @property {boolean} ok
 * @property {boolean} reversed gravity points the wrong way: right after the signs are turned, or the screen is down
 * @property {string} words for the person
 * @property {number[]} gravity mean acceleration, m/s²
 */

/**
 * Judge samples that were taken while the phone lay flat with its screen up.
 * @param {number[][]} acc [x, y, z] in m/s² with gravity @param {number[][]} gyro degrees a second
 * @returns {Verdict}
 */
export function judge(acc, gyro) {
  const rows = acc.filter((row) => row.every(Number.isFinite));
  const gravity = [0, 1, 2].map((axis) => mean(rows.map((row) => row[axis])));
  const size = Math.hypot(...gravity);
  const says = (/** @type {string} */ words, ok = false, reversed = false) => ({ ok, reversed, words, gravity });
  if (rows.length < MIN_SAMPLES) {
    return says(
      `Only ${rows.length} samples came; expected at least ${MIN_SAMPLES}. Keep this page visible and try again.`,
    );
  }
  if (rows.every((row) => row.every((each) => each === 0))) {
    return says(
      "The sensors give zeros. On Android, Chrome has a switch for it: Settings → Site settings → Motion sensors; " +
        "allow this site, reload the page, and try again.",
    );
  }
  const spread = [0, 1, 2].map((axis) => Math.sqrt(mean(rows.map((row) => (row[axis] - gravity[axis]) ** 2))));
  if (Math.max(...spread) > STILL) return says("The phone moved. Lay it on a table, screen up, and do not touch it.");
  if (size < NEAR_GRAVITY[0] || size > NEAR_GRAVITY[1]) {
    const like =
      size >= RANGE_IN_G[0] && size <= RANGE_IN_G[1] ? "that looks like g, not m/s²" : "no phone at rest measures that";
    return says(
      `Gravity measures ${size.toFixed(2)} where 9.81 m/s² is expected: ${like}. This browser cannot be used.`,
    );
  }
  const found = `x ${gravity[0].toFixed(1)}, y ${gravity[1].toFixed(1)}, z ${gravity[2].toFixed(1)} m/s²`;
  if (gravity[2] <= -FLAT) {
    return says(`Gravity points the wrong way (${found}). If the screen is up, the signs must be turned.`, false, true);
  }
  if (gravity[2] < FLAT) return says(`Lay the phone flat, screen up (gravity is ${found}; expected z 9.8).`);
  const turns = gyro.some((row) => row.every(Number.isFinite));
  if (!turns) return says(`Gravity is right (${found}), but no gyroscope came; models that need one will not work.`);
  return says(`Right: gravity is ${found}.`, true);
}

/** @param {number[]} numbers */
function mean(numbers) {
  return numbers.reduce((sum, each) => sum + each, 0) / Math.max(1, numbers.length);
}

/**
 * Collect the sensors for some seconds.
 * @param {Window & typeof globalThis} page @param {number} sign @param {number} forMs
 * @returns {Promise<{acc: number[][], gyro: number[][]}>}
 */
export function measure(page, sign, forMs) {
  /** @type {number[][]} */
  const acc = [];
  /** @type {number[][]} */
  const gyro = [];
  const stop = listenToMotion(page, (_, acceleration, rotation) => {
    acc.push(acceleration.map((each) => sign * each));
    gyro.push(rotation);
  });
  return new Promise((resolve) => {
    page.setTimeout(() => {
      stop();
      resolve({ acc, gyro });
    }, forMs);
  });
}
