/**
 * From a phone's samples to activities, in a browser: an exported model behind the pipeline of its training windows.
 *
 *     import * as ort from "./ort.wasm.min.mjs"; // onnxruntime-web
 *     import { Recognizer } from "./gaitway.js";
 *     const file = new Uint8Array(await (await fetch("model.onnx")).arrayBuffer());
 *     const recognizer = await Recognizer.load(file, ort, { units: { time: "ms", gyro: "deg/s" } });
 *     for (const answer of await recognizer.push(times, acc, gyro)) console.log(answer.label, answer.probability);
 *
 * Normalization is inside the model. Nothing leaves the page.
 */

import { LevelChecks } from "./level_checks.js";
import { readMetadata } from "./onnx_metadata.js";
import { WindowStream } from "./windows.js";

const STANDARD_GRAVITY = 9.80665;
export const UNITS = {
  time: { s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9 },
  acc: { "m/s2": 1, g: STANDARD_GRAVITY, mg: STANDARD_GRAVITY / 1000 },
  gyro: { "rad/s": 1, "deg/s": Math.PI / 180 },
};
const RESTART_S = 2;
const LAG_S = 30;

/** @typedef {"acc" | "gyro"} Sensor */

/**
 * @typedef {object} Answer What the model makes of one window.
 * @property {number} startS @property {number} endS when, in seconds on the samples' clock
 * @property {string} label @property {number} probability of the likeliest
 * @property {Record<string, number>} probabilities of each label
 * @property {number} [number] in its own unit, of a model that answers with a number: `label` has it in words, and there
 *   are no probabilities (NaN)
 * @property {number} delayS how much later than `endS` the newest sample was
 */

/**
 * @typedef {object} Options
 * @property {{time?: string, acc?: string, gyro?: string}} [units] by name; seconds, m/s2 and rad/s without them
 * @property {(words: string) => void} [onWarning] called once for each kind of trouble
 */

export class Recognizer {
  /**
   * @param {import("./onnx_metadata.js").Metadata} metadata
   * @param {(x: Float32Array) => Promise<ArrayLike<number>>} infer from a window (window × channels) to its logits
   * @param {Options} [options]
   */
  constructor(metadata, infer, { units = {}, onWarning = console.warn } = {}) {
    this.metadata = metadata;
    this.needsGyroscope = metadata.input.masked.length === 0;
    this.scale = {
      time: scaleOf("time", units.time ?? "s"),
      acc: scaleOf("acc", units.acc ?? "m/s2"),
      gyro: scaleOf("gyro", units.gyro ?? "rad/s"),
    };
    /** @type {Map<string, string>} What was said, by its kind. */
    this.warnings = new Map();
    this.infer = infer;
    this.onWarning = onWarning;
    this.checks = new LevelChecks();
    this.stream = new WindowStream(metadata.input);
    /** @type {Record<Sensor, number>} */
    this.newest = { acc: -Infinity, gyro: -Infinity };
    this.firstS = Infinity;
  }

  /**
   * Load an exported model with ONNX Runtime for the web, which is passed in.
   * @param {Uint8Array} file @param {any} ort @param {Options} [options] @returns {Promise<Recognizer>}
   */
  static async load(file, ort, options) {
    const metadata = readMetadata(file);
    const session = await ort.InferenceSession.create(file);
    const shape = [1, ...metadata.input.shape];
    const infer = async (/** @type {Float32Array} */ x) => {
      return (await session.run({ x: new ort.Tensor("float32", x, shape) })).logits.data;
    };
    return new Recognizer(metadata, infer, options);
  }

  /**
   * Take samples of both sensors, [x, y, z] each, in the units of the options; `gyro` is left out for models that were
   * trained without one. Await it before the next call.
   * @param {ArrayLike<number>} times @param {ArrayLike<ArrayLike<number>>} acc with gravity
   * @param {ArrayLike<ArrayLike<number>>} [gyro] @returns {Promise<Answer[]>} oldest first
   */
  async push(times, acc, gyro) {
    const answers = await this.pushSensor("acc", times, acc);
    return gyro ? answers.concat(await this.pushSensor("gyro", times, gyro)) : answers;
  }

  /**
   * Take samples of one sensor.
   * @param {"acc" | "gyro"} sensor @param {ArrayLike<number>} times @param {ArrayLike<ArrayLike<number>>} values
   * @returns {Promise<Answer[]>}
   */
  async pushSensor(sensor, times, values) {
    if (times.length !== values.length) {
      throw new Error(`${sensor}: ${times.length} times and ${values.length} values; expected as many of both`);
    }
    if (sensor === "gyro" && !this.needsGyroscope) return [];
    const timesS = Array.from(times, (each) => each * this.scale.time);
    const rows = Array.from(values, (row) => Array.from(row, (each) => each * this.scale[sensor]));
    /** @type {import("./windows.js").Window[]} */
    const windows = [];
    for (let from = 0; from < timesS.length; ) {
      let to = from + 1;
      while (to < timesS.length && timesS[to - 1] - timesS[to] <= RESTART_S) to++;
      windows.push(...this.pushStretch(sensor, timesS.slice(from, to), rows.slice(from, to)));
      from = to;
    }
    return this.answers(windows);
  }

  /** End the recording: return the answers that still waited for later samples. @returns {Promise<Answer[]>} */
  async flush() {
    const windows = this.stream.flush();
    const answers = await this.answers(windows);
    this.begin();
    return answers;
  }

  begin() {
    this.stream = new WindowStream(this.metadata.input);
    this.newest = { acc: -Infinity, gyro: -Infinity };
    this.firstS = Infinity;
  }

  /**
   * @param {Sensor} sensor @param {number[]} timesS @param {number[][]} rows
   * @returns {import("./windows.js").Window[]}
   */
  pushStretch(sensor, timesS, rows) {
    /** @type {import("./windows.js").Window[]} */
    let windows = [];
    if (this.newest[sensor] - timesS[0] > RESTART_S) {
      this.warn("clock", "the sensor's clock went back: answers begin anew from there");
      windows = this.stream.flush();
      this.begin();
    }
    for (const time of timesS) {
      if (!Number.isFinite(time)) continue;
      this.newest[sensor] = Math.max(this.newest[sensor], time);
      this.firstS = Math.min(this.firstS, time);
    }
    for (const words of this.checks.add(sensor, timesS, rows)) this.warn(words, words);
    windows.push(...this.stream.push(sensor, timesS, rows));
    if (!this.needsGyroscope) {
      const masked = rows.map((row) => row.map((each) => (Number.isFinite(each) ? 0 : each)));
      windows.push(...this.stream.push("gyro", timesS, masked));
    } else if (this.newest[sensor] - Math.max(this.other(sensor), this.firstS) > LAG_S) {
      const silent = sensor === "acc" ? "gyroscope" : "accelerometer";
      this.warn("silent", `no sample of the ${silent} came for ${LAG_S} s, and this model needs both sensors`);
      this.begin();
    }
    if (this.stream.dropped) {
      this.warn("dropped", "samples without a number, beyond 1,000,000, or later than 0.1 s after others, are left out");
    }
    return windows;
  }

  /** @param {Sensor} sensor */
  other(sensor) {
    return this.newest[sensor === "acc" ? "gyro" : "acc"];
  }

  /** @param {import("./windows.js").Window[]} windows @returns {Promise<Answer[]>} */
  async answers(windows) {
    const { labels, input } = this.metadata;
    const newest = Math.max(this.newest.acc, this.newest.gyro);
    const answers = [];
    for (const { x, startS } of windows) {
      const logits = Array.from(await this.infer(x));
      const endS = startS + input.shape[0] / input.rate_hz;
      const when = { startS, endS, delayS: Math.max(0, newest - endS) };
      if (labels.length === 1) {
        const { center = 0, spread = 1 } = this.metadata.task;
        const number = center + spread * logits[0];
        const label = `${labels[0]}: ${Number(number.toPrecision(4))}`;
        answers.push({ ...when, label, number, probability: NaN, probabilities: {} });
        continue;
      }
      const highest = Math.max(...logits);
      const powers = logits.map((each) => Math.exp(each - highest));
      const sum = powers.reduce((total, each) => total + each, 0);
      const best = logits.indexOf(highest);
      answers.push({
        ...when,
        label: labels[best],
        probability: powers[best] / sum,
        probabilities: Object.fromEntries(labels.map((label, i) => [label, powers[i] / sum])),
      });
    }
    return answers;
  }

  /** @param {string} kind @param {string} words */
  warn(kind, words) {
    if (this.warnings.has(kind)) return;
    this.warnings.set(kind, words);
    this.onWarning(words);
  }
}

/** @param {"time" | "acc" | "gyro"} what @param {string} unit @returns {number} */
function scaleOf(what, unit) {
  /** @type {Record<string, number>} */
  const known = UNITS[what];
  if (!Object.hasOwn(known, unit)) {
    throw new Error(`the unit of ${what} is ${unit}; known: ${Object.keys(known).join(", ")}`);
  }
  return known[unit];
}
