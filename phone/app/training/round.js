/**
 * A phone's local round with a program, one step after another: export/program/host.py, with the same order, seeds, rates
 * and stops. What it has come to can be kept after any step: `saved` is all that a later run needs.
 */

import { WireError } from "../protocol/errors.js";
import { noiseSeed } from "./draws.js";
import { drawsOf, orderOf, rateOfRound, rateSum } from "./schedule.js";
import { ARRAYS, checked, filled, sizeOf, zeros } from "./tensors.js";
import { DRAWS, changeWindows } from "./window_changes.js";

/** @typedef {import("./program.js").TrainingProgram} TrainingProgram */
/** @typedef {import("./manifest.generated.js").TensorType} TensorType */
/** @typedef {import("./schedule.js").Identity} Identity */
/** @typedef {import("./tensors.js").Tensors} Tensors */
/**
 * @typedef {object} TrainingExamples
 * @property {Float32Array} x (n, …) as the network takes it @property {Int32Array} y (n)
 * @property {import("../types.js").Normalization | null} [scale] by which x is normalized; none: as it was measured
 */
/** @typedef {{epoch: number, batch: number, steps: number, loss: number, count: number}} Progress loss: of the epoch */
/** @typedef {{values: Tensors, progress: Progress}} SavedRound */

const BUFFERS = "client/buffers/";
const MEMORY = "client/memory/";

export class ProgramRound {
  /**
   * Lay the broadcast over a client, null for a new one, and take up what was saved; throws a WireError where something is
   * not what the program takes.
   * @param {TrainingProgram} program @param {{client: Tensors | null, broadcast: Tensors, examples: TrainingExamples,
   *   identity: Identity, saved?: SavedRound | null}} of
   */
  static async begin(program, { client, broadcast, examples, identity, saved = null }) {
    const begun = new ProgramRound(program, checkedExamples(program, examples), identity);
    begun.values = await receive(program, client, broadcast, identity);
    if (program.manifest.sums_at.includes("before")) Object.assign(begun.values, await begun.sums("before"));
    if (saved) begun.resume(saved);
    else Object.assign(begun.values, zeros(begun.momenta));
    return begun;
  }

  /** @param {TrainingProgram} program @param {TrainingExamples} examples @param {Identity} identity */
  constructor(program, examples, identity) {
    const { manifest } = program;
    this.program = program;
    this.examples = examples;
    this.identity = identity;
    this.batchSize = manifest.x.shape[0];
    this.perEpoch = Math.ceil(examples.y.length / this.batchSize);
    this.epochs = manifest.phases.reduce((sum, { epochs }) => sum + epochs, 0);
    this.rate = rateOfRound(manifest.training, identity.round, manifest.rounds ?? 1);
    /** @type {Progress} */
    this.progress = { epoch: 0, batch: 0, steps: 0, loss: 0, count: 0 };
    /** @type {Tensors} */ this.values = {};
    /** @type {{epoch: number, rows: Int32Array, draws: Float32Array | null}} */
    this.order = { epoch: -1, rows: new Int32Array(0), draws: null };
  }

  get isDone() {
    return this.progress.epoch >= this.epochs;
  }

  /** All steps of the round. */
  get stepsAsked() {
    return this.epochs * this.perEpoch;
  }

  /** What of it the next step belongs to. */
  get phase() {
    const { phases } = this.program.manifest;
    let end = 0;
    return phases.find(({ epochs }) => this.progress.epoch < (end += epochs)) ?? phases[phases.length - 1];
  }

  get momenta() {
    return this.phase?.momenta ?? {};
  }

  /** Take the next step; `isDone` says whether there is one. */
  async step() {
    const { phase, program, progress, examples } = this;
    const { augmentation, seed } = program.manifest.training;
    if (this.order.epoch !== progress.epoch) {
      const isChanged = augmentation.rotation || augmentation.sensor_loss;
      const by = /** @type {const} */ ([seed, this.identity, progress.epoch]);
      const rows = await orderOf(examples.y.length, ...by);
      const draws = isChanged ? await drawsOf(examples.y.length, DRAWS, ...by) : null;
      this.order = { epoch: progress.epoch, rows, draws };
    }
    if (progress.batch === 0) [progress.loss, progress.count] = [0, 0];
    const first = progress.batch * this.batchSize;
    const rows = this.order.rows.subarray(first, first + this.batchSize);
    const lr = scalar(program.manifest.training.lr * phase.rate * this.rate);
    const batch = batchOf(program, examples, rows);
    if (this.order.draws) {
      const x = /** @type {Float32Array} */ (batch["batch/x"].data).subarray(0, (rows.length * examples.x.length) / examples.y.length);
      const draws = this.order.draws.subarray(first * DRAWS, (first + rows.length) * DRAWS);
      changeWindows(x, augmentation, draws, examples.scale ?? null);
    }
    const { loss, ...changed } = await program.run(phase.step, { ...this.values, ...batch, lr });
    Object.assign(this.values, changed);
    progress.loss += Number(loss.data[0]);
    progress.count += rows.length;
    progress.steps++;
    if (++progress.batch < this.perEpoch) return;
    [progress.epoch, progress.batch] = [progress.epoch + 1, 0];
    if (this.phase === phase) return;
    for (const name of Object.keys(phase.momenta)) delete this.values[name];
    Object.assign(this.values, zeros(this.momenta));
  }

  /** What the round has come to: parameters, buffers, the optimizer's state, and where it is. @returns {SavedRound} */
  get saved() {
    const names = [...this.keptNames(), ...Object.keys(this.momenta)];
    return { values: Object.fromEntries(names.map((name) => [name, this.values[name]])), progress: { ...this.progress } };
  }

  keptNames() {
    return Object.keys(this.program.manifest.client).filter((name) => !name.startsWith(MEMORY));
  }

  /** @param {SavedRound} saved */
  resume({ values, progress }) {
    const { client } = this.program.manifest;
    this.progress = { ...progress };
    const { epoch, batch, steps } = progress;
    const isStep = [epoch, batch, steps].every((each) => Number.isInteger(each) && each >= 0) && epoch <= this.epochs;
    if (!isStep || batch >= this.perEpoch || steps !== epoch * this.perEpoch + batch) {
      throw new WireError("the saved round stands where this one has no step: other windows, or another batch size");
    }
    const types = Object.fromEntries(this.keptNames().map((name) => [name, client[name]]));
    Object.assign(this.values, checked(values, { ...types, ...this.momenta }, "the saved round"));
  }

  /** The client as it is kept, and what travels, as far as the round has come. */
  async finish() {
    const { program, progress, perEpoch } = this;
    const { manifest } = program;
    const values = { ...this.values, ...(manifest.sums_at.includes("after") && (await this.sums("after"))) };
    const rates = rateSum(manifest.training, manifest.phases, perEpoch, progress.steps);
    const lrSum = scalar(manifest.training.lr * this.rate * rates);
    Object.assign(values, await program.run("upload", { ...values, lr_sum: lrSum }));
    return {
      client: checked(selected(values, Object.keys(manifest.client)), manifest.client, "the trained client"),
      upload: checked(selected(values, Object.keys(manifest.upload)), manifest.upload, "the upload"),
      loss: progress.loss / Math.max(progress.count, 1),
      steps: progress.steps,
    };
  }

  /** Sums over all examples, with the model as it is. @param {"before" | "after"} when @returns {Promise<Tensors>} */
  async sums(when) {
    const { program, examples } = this;
    const names = Object.keys(program.manifest.sums);
    let values = { ...this.values };
    for (const [name, value] of Object.entries(zeros(program.manifest.sums))) values[`sums/${name}`] = value;
    for (const rows of inOrder(examples.y.length, program.manifest.statistics_batch)) {
      const batch = batchOf(program, examples, rows, program.manifest.statistics_batch);
      values = { ...values, ...(await program.run("statistics", { ...values, ...batch })) };
    }
    return Object.fromEntries(names.map((name) => [`${when}/${name}`, values[`sums/${name}`]]));
  }
}

/**
 * Lay a broadcast over a client, null for a new one, with dropout's counters set for the round.
 * @param {TrainingProgram} program @param {Tensors | null} client @param {Tensors} broadcast @param {Identity} identity
 * @returns {Promise<Tensors>}
 */
export async function receive(program, client, broadcast, { client: who, round }) {
  const { manifest } = program;
  const values = client ? { ...checked(client, manifest.client, "the client") } : await program.run("initial", {});
  for (const name of manifest.noise) {
    const { dtype, shape } = manifest.client[name];
    const short = name.startsWith(BUFFERS) ? name.slice(BUFFERS.length) : name;
    const seed = await noiseSeed(manifest.training.seed, who, round, short, dtype === "int32" ? 31 : 62);
    const { data } = filled({ dtype, shape }, 0);
    if (data instanceof BigInt64Array) data.fill(seed);
    else data.fill(Number(seed));
    values[name] = { shape, data };
  }
  Object.assign(values, checked(broadcast, manifest.broadcast, "the broadcast"));
  Object.assign(values, await program.run("receive", values));
  return Object.fromEntries(Object.entries(values).filter(([name]) => !name.startsWith("broadcast/")));
}

/**
 * The confusion matrix of a client's model on examples, by true (row) and answered class.
 * @param {TrainingProgram} program @param {Tensors} client @param {TrainingExamples} examples
 * @returns {Promise<number[][]>}
 */
export async function measure(program, client, examples) {
  const { evaluation_batch: size, training } = program.manifest;
  const { classes } = training;
  const matrix = Array.from({ length: classes }, () => new Array(classes).fill(0));
  const checked = checkedExamples(program, examples, 0);
  for (const rows of inOrder(checked.y.length, size)) {
    const batch = batchOf(program, checked, rows, size);
    const { "statistics/confusion": part } = await program.run("evaluate", { ...client, ...batch });
    if (!part) throw new WireError("the program's graph evaluate counts no classes; expected statistics/confusion");
    part.data.forEach((/** @type {number | bigint} */ count, /** @type {number} */ i) => {
      matrix[Math.floor(i / classes)][i % classes] += Number(count);
    });
  }
  return matrix;
}

/** @param {number} count @param {number} size of a batch @returns {Generator<Int32Array>} */
function* inOrder(count, size) {
  for (let first = 0; first < count; first += size) {
    yield Int32Array.from({ length: Math.min(size, count - first) }, (_, i) => first + i);
  }
}

/**
 * Gather a batch, padded with zeros to the program's size.
 * @param {TrainingProgram} program @param {TrainingExamples} examples @param {Int32Array} rows @param {number} [size]
 * @returns {Tensors}
 */
function batchOf({ manifest }, { x, y }, rows, size = manifest.x.shape[0]) {
  const width = sizeOf({ ...manifest.x, shape: manifest.x.shape.slice(1) });
  const batch = filled({ dtype: "float32", shape: [size, ...manifest.x.shape.slice(1)] }, 0);
  const classes = filled({ ...manifest.y, shape: [size] }, 0);
  const mask = filled({ dtype: "float32", shape: [size] }, 0);
  rows.forEach((row, i) => {
    batch.data.set(/** @type {any} */ (x.subarray(row * width, (row + 1) * width)), i * width);
    classes.data[i] = classes.data instanceof BigInt64Array ? BigInt(y[row]) : y[row];
    mask.data[i] = 1;
  });
  return { "batch/x": batch, "batch/y": classes, "batch/mask": mask };
}

/**
 * @param {TrainingProgram} program @param {TrainingExamples} examples @param {number} [min]
 * @returns {TrainingExamples}
 */
function checkedExamples({ manifest }, examples, min = 1) {
  const { x, y } = examples;
  const shape = manifest.x.shape.slice(1);
  if (y.length < min) throw new WireError("a round needs labelled windows, and there are none");
  if (manifest.x.dtype !== "float32" || x.length !== y.length * sizeOf({ dtype: "float32", shape })) {
    throw new WireError(`the program takes windows of shape [${shape}], and this phone's are others`);
  }
  if (!y.every((code) => code >= 0 && code < manifest.training.classes) || !(manifest.y.dtype in ARRAYS)) {
    throw new WireError(`the program learns ${manifest.training.classes} classes, and these windows have others`);
  }
  return examples;
}

/** @param {Tensors} values @param {readonly string[]} names */
function selected(values, names) {
  return Object.fromEntries(names.filter((name) => Object.hasOwn(values, name)).map((name) => [name, values[name]]));
}

/** @param {number} value @returns {import("../protocol/safetensors.js").Tensor} */
function scalar(value) {
  return { shape: [], data: Float32Array.of(value) };
}
