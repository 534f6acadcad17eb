/** Which examples make up which mini-batch of a round, and at which rate: federation/training/schedule.py. */

import { Generator, seedFor } from "./draws.js";

/** @typedef {import("../protocol/messages.generated.js").TrainingConfig} Training */
/** @typedef {import("./manifest.generated.js").PhaseEntry} Phase */
/** @typedef {{client: string, round: number}} Identity whose round it is, and which: what order and masks are drawn by */

/**
 * The order of an epoch's examples.
 * @param {number} examples @param {number} seed of the plan @param {Identity} identity @param {number} epoch
 */
export async function orderOf(examples, seed, { client, round }, epoch) {
  return new Generator(await seedFor(seed, "order", client, round, epoch)).permutation(examples);
}

/**
 * Numbers from 0 to 1 that an epoch's examples are changed by, `each` for one, in the epoch's order.
 * @param {number} examples @param {number} each @param {number} seed of the plan @param {Identity} identity
 * @param {number} epoch
 */
export async function drawsOf(examples, each, seed, { client, round }, epoch) {
  const random = new Generator(await seedFor(seed, "augmentation", client, round, epoch));
  return Float32Array.from({ length: examples * each }, () => random.float32());
}

/**
 * What a round's learning rates are multiplied by; the first of `rounds` is number 1.
 * @param {Training} training @param {number} round @param {number} rounds
 */
export function rateOfRound({ lr_schedule: schedule, lr_power: power }, round, rounds) {
  if (schedule === "constant") return 1;
  return (Math.min(Math.max(rounds - (round - 1), 1), rounds) / rounds) ** power;
}

/**
 * The sum of the phases' rates over the first `done` steps; of SGD with momentum each counts as far as a constant
 * gradient moves a parameter.
 * @param {Training} training @param {readonly Phase[]} phases @param {number} perEpoch steps @param {number} done
 */
export function rateSum(training, phases, perEpoch, done) {
  let [sum, left] = [0, done];
  for (const { rate, epochs, plain_sgd: isPlain } of phases) {
    const n = Math.min(left, epochs * perEpoch);
    const m = training.optimizer === "sgd" && !isPlain ? training.momentum : 0;
    sum += rate * ((n - (m * (1 - m ** n)) / (1 - m)) / (1 - m));
    left -= n;
  }
  return sum;
}
