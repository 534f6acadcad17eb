/**
 * A program's graphs at work behind ONNX Runtime for the web: export/program/runtime.py. `run` takes a graph's inputs out of
 * a record of tensors and returns what the graph makes of them, so that a round is a handful of such calls.
 */

import { WireError, messageOf } from "../protocol/errors.js";
import { readProgram } from "./archive.js";
import { OUTPUT } from "./manifest.generated.js";
import { ARRAYS } from "./tensors.js";

/** @typedef {import("./manifest.generated.js").GraphEntry} GraphEntry */
/** @typedef {import("./tensors.js").Tensors} Tensors */

export class TrainingProgram {
  /** @param {any} ort onnxruntime-web, its paths set @param {import("./archive.js").ProgramFile} file */
  constructor(ort, { manifest, graphs }) {
    this.ort = ort;
    this.manifest = manifest;
    this.graphs = graphs;
    /** @type {Map<string, Promise<any>>} a graph is loaded when it is first run, and kept */
    this.sessions = new Map();
  }

  /**
   * Read a program; throws a WireError where it is none that may be run.
   * @param {any} ort @param {Uint8Array} file whose sha256 was checked @param {number} rounds of the plan, as it is now
   */
  static async load(ort, file, rounds) {
    const { manifest, graphs } = await readProgram(file);
    return new TrainingProgram(ort, { manifest: { ...manifest, rounds }, graphs });
  }

  /**
   * What a graph makes of values: those that it computes, and those that it passes on.
   * @param {string} graph @param {Tensors} values @returns {Promise<Tensors>}
   */
  async run(graph, values) {
    const entry = this.manifest.graphs[graph];
    const named = (/** @type {string} */ name) => {
      if (Object.hasOwn(values, name)) return values[name];
      throw new WireError(`the program's graph ${graph} needs ${name}, which is not there`);
    };
    /** @type {Tensors} */
    const found = {};
    for (const [name, source] of Object.entries(entry.passed)) found[name] = named(source);
    if (entry.file === null) return found;
    const session = await this.session(graph);
    /** @type {Record<string, any>} */
    const feeds = {};
    for (const [name, { dtype }] of Object.entries(entry.inputs)) {
      const { shape, data } = named(name);
      if (!(data instanceof ARRAYS[dtype])) throw new WireError(`the program's graph ${graph} takes ${name} as ${dtype}`);
      feeds[name] = new this.ort.Tensor(dtype, data, shape);
    }
    const computed = await session.run(feeds, Object.keys(entry.outputs).map((name) => OUTPUT + name));
    for (const name of Object.keys(entry.outputs)) {
      const { dims, data } = computed[OUTPUT + name];
      found[name] = { shape: [...dims], data };
    }
    return found;
  }

  /** @param {string} name @returns {Promise<any>} */
  session(name) {
    let found = this.sessions.get(name);
    if (!found) {
      const options = { graphOptimizationLevel: "extended", executionProviders: ["wasm"] };
      found = this.ort.InferenceSession.create(this.graphs.get(name), options).catch((/** @type {unknown} */ error) => {
        throw new WireError(`the program's graph ${name} cannot be loaded: ${messageOf(error)}`);
      });
      this.sessions.set(name, /** @type {Promise<any>} */ (found));
    }
    return /** @type {Promise<any>} */ (found);
  }

  /** Give its memory back. */
  async release() {
    const sessions = await Promise.allSettled(this.sessions.values());
    this.sessions.clear();
    for (const session of sessions) if (session.status === "fulfilled") await session.value.release();
  }
}
