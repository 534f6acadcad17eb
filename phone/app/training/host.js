/**
 * What trains and answers with a federation's program: one round at a time, and windows through the network that serves.
 * It runs in a worker (worker.js), so that the page draws meanwhile; tests run it as it is.
 */

import { NotFiniteError, blamingModel } from "../protocol/errors.js";
import { decoded, encode } from "../protocol/safetensors.js";
import { yieldToEventLoop } from "../learning/yield_to_event_loop.js";
import { TrainingProgram } from "./program.js";
import { ProgramRound, measure, receive } from "./round.js";
import { checked, digestOf } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensors} Tensors */
/** @typedef {import("./round.js").TrainingExamples} TrainingExamples */
/** @typedef {import("./round.js").SavedRound} SavedRound */

/** @typedef {{sha256: string, file: Uint8Array, rounds: number}} ProgramSource bytes that were checked; the plan's rounds */

/**
 * @typedef {object} RoundJob
 * @property {ProgramSource} program @property {Uint8Array} broadcast as it came
 * @property {Tensors | null} client as its last round left it; null: a new one
 * @property {TrainingExamples} train @property {TrainingExamples} holdout
 * @property {import("./schedule.js").Identity} identity
 * @property {{saved: SavedRound, usedMs: number} | null} saved what this round had come to before
 * @property {number} budgetMs it may take, with what it took before
 */

/**
 * @typedef {object} RoundProgress
 * @property {number} steps @property {number} stepsAsked @property {number} epoch @property {number} usedMs
 * @property {SavedRound} [saved] after an epoch
 */

/**
 * @typedef {object} RoundResult
 * @property {Tensors} client as it is kept @property {Uint8Array} upload what travels
 * @property {number} loss of the last epoch @property {number} epochs whole ones
 * @property {number} steps @property {number} stepsAsked more than `steps` where the time was over
 * @property {boolean} usesPartialWork of the method
 * @property {number[][]} before confusion of the received model on the holdout @property {number[][]} after the trained one's
 * @property {Tensors | null} personal the network that the client serves with; null: devices have no use for it
 * @property {Tensors | null} shared that of the server's model; null: none, or nobody has trained it
 */

export class ProgramHost {
  /** @param {() => Promise<any>} loadRuntime ONNX Runtime for the web */
  constructor(loadRuntime) {
    this.loadRuntime = loadRuntime;
    /** @type {{key: string, program: Promise<TrainingProgram>} | null} */ this.loaded = null;
  }

  /** @param {ProgramSource} source @returns {Promise<TrainingProgram>} */
  async open({ sha256, file, rounds }) {
    const key = `${sha256} ${rounds}`;
    if (this.loaded?.key !== key) {
      const before = this.loaded?.program;
      const program = this.loadRuntime().then((ort) => TrainingProgram.load(ort, file, rounds));
      this.loaded = { key, program };
      program.catch(() => (this.loaded = null));
      await before?.then((each) => each.release()).catch(() => {});
    }
    return /** @type {{program: Promise<TrainingProgram>}} */ (this.loaded).program;
  }

  /**
   * Train a round until it is done, the time is over, or the signal ends it; throws an UnusableModelError where the
   * broadcast can't be used, or where training from it diverges.
   * @param {RoundJob} job @param {(progress: RoundProgress) => void | Promise<void>} onProgress after each step
   * @param {AbortSignal} signal @returns {Promise<RoundResult>}
   */
  async train(job, onProgress, signal) {
    const diverges = "training from the server's model diverges";
    return blamingModel(() => this.runRound(job, onProgress, signal), diverges, NotFiniteError);
  }

  /** @type {import("../types.js").TrainingHost["train"]} */
  async runRound(job, onProgress, signal) {
    const began = performance.now();
    const usedMs = () => performance.now() - began + (job.saved?.usedMs ?? 0);
    const program = await this.open(job.program);
    const { manifest } = program;
    const { train, holdout, identity, client } = job;
    const broadcast = await readBroadcast(job.broadcast, program);
    const before = await measure(program, await receive(program, client, broadcast, identity), holdout);
    const { saved = null } = job.saved ?? {};
    const round = await ProgramRound.begin(program, { client, broadcast, examples: train, identity, saved });
    while (!round.isDone && !(round.progress.steps && usedMs() >= job.budgetMs)) {
      await yieldToEventLoop();
      signal.throwIfAborted();
      await round.step();
      const { steps, epoch, batch } = round.progress;
      const kept = batch === 0 ? { saved: round.saved } : {};
      await onProgress({ steps, epoch, stepsAsked: round.stepsAsked, usedMs: usedMs(), ...kept });
    }
    const { client: trained, upload, loss, steps } = await round.finish();
    return {
      client: trained,
      upload: encode(Object.entries(upload).map(([name, value]) => [name.slice("upload/".length), value])),
      loss,
      steps,
      stepsAsked: round.stepsAsked,
      epochs: round.progress.epoch,
      usesPartialWork: manifest.uses_partial_work,
      before,
      after: await measure(program, trained, holdout),
      personal: Object.keys(manifest.served).length ? await program.run("serving", trained) : null,
      shared: await sharedNetwork(program, trained, broadcast),
    };
  }

  /**
   * The network that the server's model serves with, for a client; null: there is none, or nobody has trained it yet.
   * @param {ProgramSource} source @param {Uint8Array} broadcast @param {Tensors | null} client
   */
  async sharedNetwork(source, broadcast, client) {
    const program = await this.open(source);
    return sharedNetwork(program, client, await readBroadcast(broadcast, program));
  }

  /**
   * The logits of windows, one after another.
   * @param {ProgramSource} source @param {Tensors} network `served/…` and `input/…` @param {Float32Array} x (n, …)
   * @returns {Promise<Float32Array>} (n, C)
   */
  async logits(source, network, x) {
    const program = await this.open(source);
    const { shape } = program.manifest.graphs.model.inputs.x;
    const size = shape.reduce((product, side) => product * side, 1);
    const { classes } = program.manifest.training;
    const found = new Float32Array((x.length / size) * classes);
    for (let row = 0; row < x.length / size; row++) {
      if (row % 16 === 15) await yieldToEventLoop();
      const window = { shape, data: x.slice(row * size, (row + 1) * size) };
      const { logits } = await program.run("model", { ...network, x: window });
      const isSound = logits.data.every((/** @type {unknown} */ each) => Number.isFinite(each));
      if (!isSound) throw new Error("the model gives no number on the phone's own windows");
      found.set(/** @type {Float32Array} */ (logits.data), row * classes);
    }
    return found;
  }
}

/**
 * @param {TrainingProgram} program @param {Tensors | null} client @param {Tensors} broadcast
 * @returns {Promise<Tensors | null>}
 */
async function sharedNetwork(program, client, broadcast) {
  const { manifest } = program;
  if (!manifest.has_global_model || !Object.keys(manifest.served).length) return null;
  const values = client ?? (await program.run("initial", {}));
  const found = await program.run("global_model", { ...values, ...broadcast });
  const { untrained_sha256: untrained } = manifest;
  return untrained !== null && (await digestOf(found, manifest.served)) === untrained ? null : found;
}

/** @param {Uint8Array} file @param {TrainingProgram} program @returns {Promise<Tensors>} throws an UnusableModelError */
function readBroadcast(file, { manifest }) {
  return blamingModel(() => {
    const found = decoded(file, file.length);
    const named = Object.fromEntries(Object.entries(found).map(([name, value]) => [`broadcast/${name}`, value]));
    return checked(named, manifest.broadcast, "the broadcast");
  });
}
