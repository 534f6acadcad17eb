/** Networks that a program serves with, on this phone's windows: which one is used, and what it makes of a window. */

import { evaluate, reportedGains } from "../learning/heads.js";
import { inFloat32, insideModel } from "../learning/normalization.js";
import { evenly } from "../learning/splits.js";

/** As a native device. */
const MAX_REPORTED_WINDOWS = 256;

/** @typedef {import("../types.js").NetworkModel} NetworkModel */
/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").TrainingHost} TrainingHost */
/** @typedef {import("./host.js").ProgramSource} ProgramSource */
/** @typedef {import("./tensors.js").Tensors} Tensors */

/**
 * Say which network is used from now on. @param {TrainingHost} host @param {ProgramSource} program
 * @param {{networks: NetworkModel[], present: import("../types.js").Model | null, prepared: import("../types.js").Prepared,
 *   plan: Plan} & import("../learning/heads.js").Rules} of
 * @returns {Promise<import("../types.js").Verdict>}
 */
export async function judgeNetworks(host, program, { networks, present, prepared, plan, ...rules }) {
  const { train, holdout } = prepared;
  const answers = new Map();
  const runnable = present && "values" in present && present.sha256 === program.sha256 ? [present] : [];
  for (const model of [...networks, ...runnable]) {
    const logits = await host.logits(program, { ...model.values, ...statisticsOf(plan) }, holdout.x);
    answers.set(model, answersOf(logits, plan.labels.length));
  }
  const question = { heads: networks, present, holdout, train, labels: plan.labels, isFar: false, ...rules };
  return evaluate({ ...question, answersOf: (model) => answers.get(model) });
}

/**
 * What a phone reports of its networks' gains over the shared one; null where it can't tell.
 * @param {TrainingHost} host @param {ProgramSource} program @param {Pick<NetworkModel, "head" | "values">[]} networks
 * @param {import("../types.js").Examples} holdout @param {Plan} plan
 */
export async function measuredGains(host, program, networks, { x, y, session }, plan) {
  const places = evenly(Int32Array.from(y.keys()), MAX_REPORTED_WINDOWS);
  const windows = places.length < y.length ? windowsAt(x, x.length / y.length, places) : x;
  /** @type {(readonly [NetworkModel["head"], Int32Array])[]} */
  const answers = [];
  for (const { head, values } of networks) {
    const logits = await host.logits(program, { ...values, ...statisticsOf(plan) }, windows);
    answers.push([head, answersOf(logits, plan.labels.length)]);
  }
  const some = { y: places.map((at) => y[at]), session: places.map((at) => session[at]) };
  return reportedGains(some, answers, plan.labels.length);
}

/**
 * The network with weights midway between two, as federation/aggregation/averaging.py: counters and other whole numbers are the
 * second's. @param {Tensors} one @param {Tensors} other @returns {Tensors}
 */
export function midway(one, other) {
  const between = Object.entries(other).map(([name, { shape, data }]) => {
    if (!(data instanceof Float32Array || data instanceof Float64Array)) return [name, other[name]];
    const begin = /** @type {Float32Array} */ (one[name].data);
    return [name, { shape, data: data.map((value, i) => (begin[i] + value) / 2) }];
  });
  return Object.fromEntries(between);
}

/**
 * Probabilities of a window's classes. @param {TrainingHost} host @param {ProgramSource} program @param {NetworkModel} model
 * @param {Float32Array} x (1, 128, 6) @param {Plan} plan @returns {Promise<Float64Array>}
 */
export async function probabilitiesOf(host, program, model, x, plan) {
  const logits = await host.logits(program, { ...model.values, ...statisticsOf(plan) }, x);
  const largest = Math.max(...logits);
  const powers = Float64Array.from(logits, (each) => Math.exp(each - largest));
  const sum = powers.reduce((total, each) => total + each, 0);
  return powers.map((each) => each / sum);
}

/** What the graph `model` normalizes by. @param {Plan} plan @returns {Tensors} */
function statisticsOf({ data }) {
  const { mean, std } = inFloat32(insideModel(data));
  return { "input/mean": { shape: [mean.length], data: mean }, "input/std": { shape: [std.length], data: std } };
}

/** The class of each row of logits (n × C). @param {Float32Array} logits @param {number} classes */
function answersOf(logits, classes) {
  return Int32Array.from({ length: logits.length / classes }, (_, row) => {
    const scores = logits.subarray(row * classes, (row + 1) * classes);
    return scores.indexOf(Math.max(...scores));
  });
}

/** @param {Float32Array} x (n × size) @param {number} size @param {Int32Array} places (m) */
function windowsAt(x, size, places) {
  const found = new Float32Array(places.length * size);
  places.forEach((at, i) => found.set(x.subarray(at * size, (at + 1) * size), i * size));
  return found;
}
