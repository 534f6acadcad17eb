/**
 * Whether samples are in the units that they are said to be in, by their levels: the coarsest of the checks of
 * har_pipeline/signals/checks.py, with its limits, on the first samples of each sensor.
 */

const MIN_SAMPLES = 256;
const MIN_RATE_HZ = 5;
const MAX_RATE_HZ = 2000;
/** Half of all accelerations are larger, half smaller than a number in here, if they are in m/s² with gravity. */
const IN_MOTION = [5, 16];
/** rad/s: one sample in twenty turns faster only if it is in degrees. */
const ROTATION = 20;

/** @typedef {{sizes: number[], firstS: number, zero: boolean}} Seen of one sensor */

export class LevelChecks {
  constructor() {
    /** @type {Record<string, Seen>} */
    this.seen = {};
  }

  /**
   * Take note of samples in seconds, m/s² or rad/s; return what is odd, once enough have come.
   * @param {"acc" | "gyro"} sensor @param {number[]} timesS @param {number[][]} rows @returns {string[]}
   */
  add(sensor, timesS, rows) {
    const seen = (this.seen[sensor] ??= { sizes: [], firstS: timesS[0], zero: true });
    for (let i = 0; i < rows.length && seen.sizes.length < MIN_SAMPLES; i++) {
      const size = Math.hypot(...rows[i]);
      if (!Number.isFinite(size)) continue;
      seen.zero &&= size === 0;
      if (seen.sizes.push(size) === MIN_SAMPLES) return judge(sensor, seen, timesS[i]);
    }
    return [];
  }
}

/** @param {"acc" | "gyro"} sensor @param {Seen} seen @param {number} lastS @returns {string[]} */
function judge(sensor, { sizes, firstS, zero }, lastS) {
  if (zero) return [`the ${sensor === "acc" ? "accelerometer" : "gyroscope"} gives zeros: is it switched off?`];
  const found = [];
  const rateHz = (sizes.length - 1) / (lastS - firstS);
  if (!(rateHz >= MIN_RATE_HZ && rateHz <= MAX_RATE_HZ)) {
    const words = `${rateHz.toPrecision(3)} samples a second; ${MIN_RATE_HZ} to ${MAX_RATE_HZ} were expected`;
    found.push(`${words}: check the unit of time`);
  }
  const sorted = sizes.slice().sort((one, other) => one - other);
  const median = sorted[sorted.length >> 1];
  if (sensor === "acc" && !(median >= IN_MOTION[0] && median <= IN_MOTION[1])) {
    const guess = median > 0.5 && median < 2 ? "that looks like g" : "check its unit, and that gravity is included";
    found.push(`|acceleration| is ${median.toPrecision(3)} for the most part, expected 9.81 m/s²; ${guess}`);
  }
  const turning = sorted[Math.floor(0.95 * sorted.length)];
  if (sensor === "gyro" && turning > ROTATION) {
    found.push(`it turns by ${turning.toPrecision(3)} rad/s; that looks like degrees: set the gyroscope's unit to deg/s`);
  }
  return found;
}
