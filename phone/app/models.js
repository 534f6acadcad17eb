/** The model in use, why it is, and what its owner may do about it. */

import { recognize } from "./learning/learner.js";
import { nameOf } from "./learning/heads.js";
import { BROADCAST, FEATURE_MODEL, PROGRAM } from "./protocol/agent_state.js";
import { solveVersion } from "./protocol/contribution_worker.js";
import { ENROLMENT } from "./protocol/enrolment.js";
import { withLeft } from "./protocol/releases.js";
import { capital } from "./views/labels.js";
import { normalized } from "./learning/normalization.js";
import { probabilitiesOf } from "./training/network_models.js";

/** While it is recorded, windows are normalized by those of some seconds ago. */
const PREPARED_MS = 10_000;

/** What each model is, for the person. @type {Record<Model["head"], string>} */
const MEANING = {
  shared: "learnt from everybody's windows",
  shared_any_orientation: "learnt from everybody's windows, by what is the same however the phone is turned",
  adapted: "learnt from everybody's windows, and a little from this phone's own as that names them, without labels",
  personalized: "everybody's windows, and this phone's own weigh as all others together",
  personalized_any_orientation:
    "everybody's windows and this phone's own, by what is the same however the phone is turned",
  shared_network: "what the rounds of all devices have made together",
  personal_network: "what all devices have made, trained further on this phone's own windows",
  midway_network: "halfway between what all devices have made and what this phone made of it",
};

/**
 * @typedef {import("./types.js").Model} Model
 * @typedef {import("./protocol/agent_state.js").KeptModel} KeptModel
 */

export class Models {
  /**
   * @param {import("./collection/store.js").Store} store @param {import("./types.js").Embedder} embedder
   * @param {import("./learning/learner.js").Learner} learner @param {import("./types.js").TrainingHost} host
   * @param {import("./participation.js").Participation} participation
   */
  constructor(store, embedder, learner, host, participation) {
    this.store = store;
    this.embedder = embedder;
    this.learner = learner;
    this.host = host;
    this.participation = participation;
    /** @type {{prepared: import("./types.js").Prepared, windows: import("./types.js").StoredWindow[]} | null} */
    this.cache = null;
    this.cacheMs = -Infinity;
    /** @type {{message: string, model: Model | null} | null} */ this.done = null;
    store.watchers.add((change) => {
      if (change !== "added" || Date.now() - this.cacheMs > PREPARED_MS) this.cache = null;
    });
  }

  /** @returns {Model | null} */
  get model() {
    return this.participation.state?.model ?? null;
  }

  /** @returns {import("./types.js").Plan | null} */
  get plan() {
    return this.participation.state?.plan ?? null;
  }

  /** Why nothing can be recognized; empty where it can. */
  get unavailableReason() {
    if (!this.participation.membership) return "A model comes with a federation: join one first.";
    if (this.participation.state?.name === "elsewhere") {
      return "This app takes part in another tab of this browser: use that one, or close it.";
    }
    if (this.model && this.plan) return "";
    if (this.participation.state?.verdict) return "The federation's last model was not taken: Take part says why.";
    if (this.participation.state?.isContinuous === false)
      return "The federation's model has not come yet: it comes with a round, of this phone or of others.";
    return "The federation's model has not come yet: it comes when somebody has sent sums, or with your own labels.";
  }

  /** What else is to be known of the model in use; empty where nothing is. */
  get caution() {
    const prepared = this.participation.agent?.work.prepared ?? this.cache?.prepared;
    if (!this.model || !prepared || prepared.train.y.length) return "";
    return (
      "This phone has no labelled windows to check it with. Label some minutes under Collect, and the next one is " +
      "checked here."
    );
  }

  /** What the model in use is called. */
  get name() {
    return this.model ? `the ${nameOf(this.model)}` : "no model";
  }

  get description() {
    return this.model ? `${capital(this.name)}: ${MEANING[this.model.head]}.` : this.unavailableReason;
  }

  /** Why it is used, or why the last one was not. */
  get reason() {
    const { state } = this.participation;
    return state?.verdict?.why ?? state?.verdict?.reason ?? "";
  }

  /** What its owner may do. @returns {{label: string, run: () => Promise<string>}[]} */
  get choices() {
    const agent = this.participation.agent;
    const kept = agent?.stateStore.current.kept;
    if (!kept) return [];
    const { before, model } = kept;
    const choices = "values" in model ? [] : [{ label: "Learn from this phone's windows", run: () => this.personalize() }];
    if (before) choices.push({ label: `Go back to the ${nameOf(before.model)}`, run: () => this.use(before) });
    return choices;
  }

  /** Do one of the choices. @param {string} label */
  async carryOut(label) {
    const message = (await this.choices.find((choice) => choice.label === label)?.run()) ?? "";
    this.done = { message: capital(message), model: this.model };
    return { words: this.done.message };
  }

  /** What came of the last choice, as long as its model is in use. */
  get lastResult() {
    return this.done && this.done.model === this.model ? this.done.message : "";
  }

  /**
   * @param {Float32Array} x (128, 6), not normalized
   * @returns {Promise<[string, number][]>} labels and probabilities, likeliest first
   */
  async ranking(x) {
    const { model, plan } = this;
    if (!model || !plan) throw new Error(this.unavailableReason);
    if (!("values" in model)) await this.load(plan);
    const { prepared, windows } = await this.preparation(plan);
    const normalization = this.learner.normalizationOf(prepared, windows, plan);
    if ("values" in model) return this.networkRanking(model, normalization ? normalized(x, normalization) : x, plan);
    const { probabilities } = await recognize(x, { model, normalization }, this.embedder, plan.labels);
    return Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  }

  /**
   * @param {import("./types.js").NetworkModel} model @param {Float32Array} x normalized @param {import("./types.js").Plan} plan
   * @returns {Promise<[string, number][]>}
   */
  async networkRanking(model, x, plan) {
    const program = await this.store.get(PROGRAM);
    if (program?.sha256 !== model.sha256) throw new Error("the program that runs the model has not come yet");
    const source = { sha256: program.sha256, file: program.file, rounds: plan.rounds.rounds };
    const found = await probabilitiesOf(this.host, source, model, x, plan);
    return plan.labels.map((label, code) => /** @type {[string, number]} */ ([label, found[code]])).sort((one, other) => other[1] - one[1]);
  }

  /** Have the network behind the embedder, and say what it says of its columns. @param {import("./types.js").Plan} plan */
  async load(plan) {
    const kept = await this.store.get(FEATURE_MODEL);
    if (!kept) throw new Error("the network has not come yet");
    return { sha256: kept.sha256, ...(await this.embedder.load(kept.file, kept.sha256, plan)) };
  }

  /** @param {import("./types.js").Plan} plan */
  async preparation(plan) {
    if (!this.cache) {
      this.cacheMs = Date.now();
      const windows = await this.store.windows();
      this.cache = { windows, prepared: this.learner.prepare(windows, plan) };
    }
    return this.cache;
  }

  /**
   * Solve the heads of the last version with all windows that there are, now, and use the likeliest. Nothing is sent.
   */
  async personalize() {
    const { model, plan } = this;
    const kept = this.participation.agent?.stateStore.current.kept;
    const broadcast = await this.store.get(BROADCAST);
    if (!model || "values" in model || !plan || !kept || !broadcast) throw new Error(this.unavailableReason);
    const columns = await this.load(plan);
    this.cache = null; // of all windows that there are
    const { prepared } = await this.preparation(plan);
    const { device } = await this.store.get(ENROLMENT);
    const { verdict } = await solveVersion(this, { plan, device, broadcast, columns, prepared, present: model });
    if (verdict.model && verdict.model !== model) {
      await this.use({ model: verdict.model, release: kept.release, before: shortened(kept) });
    }
    return verdict.reason;
  }

  /** Use a model from now on, until the federation has another one that is better. @param {KeptModel} kept */
  async use(kept) {
    const agent = this.participation.agent;
    if (!agent) throw new Error(this.unavailableReason);
    await agent.stateStore.change(({ memory, kept: before }) => {
      const order = agent.announcement?.release ?? null;
      return { memory: withLeft(memory, before?.release ?? 0, kept.release, order), kept };
    });
    agent.changed();
    return `In use: the ${nameOf(kept.model)}.`;
  }
}

/** Two models back are enough. @param {KeptModel} kept @returns {KeptModel} */
function shortened(kept) {
  return { ...kept, before: kept.before && { ...kept.before, before: null } };
}
