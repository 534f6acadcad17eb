/** Teach me: lessons, the head that they give, and a person's own activities, on the phone alone. */

import { WINDOW_MS } from "../collection/motion.js";
import { labelledWindows } from "../learning/examples.js";
import { recognizeBy } from "../learning/heads.js";
import { methodOf, sharedSums } from "../protocol/versions.js";
import { BROADCAST } from "../protocol/agent_state.js";
import { HeadLearner, isNamed } from "./learned_head.js";
import { Lesson, LESSON_MS } from "./lesson.js";
import { PERSONAL, withActivity } from "./personal_activities.js";

/** The newest labelled windows, which are learnt from: twenty minutes. */
const MAX_WINDOWS = 1000;
const TICK_MS = 200;
/** After so long Recognize has the head solved with the federation's newest sums. */
const REFRESH_MS = 60_000;

/** @typedef {import("./learned_head.js").Taught} Taught */
/** @typedef {import("./personal_activities.js").PersonalActivity} PersonalActivity */
/** @typedef {import("../types.js").StoredWindow} StoredWindow */

export class Teacher {
  /**
   * @param {import("../collection/store.js").Store} store @param {import("../collection/recorder.js").Recorder} recorder
   * @param {import("../models.js").Models} models
   */
  constructor(store, recorder, models) {
    this.store = store;
    this.recorder = recorder;
    this.models = models;
    this.learner = new HeadLearner();
    /** @type {Lesson | null} */ this.lesson = null;
    /** @type {PersonalActivity[]} */ this.personal = [];
    /** @type {Taught | null} */ this.taught = null;
    this.message = "";
    this.problem = "";
    /** @type {Map<number, Float32Array>} */ this.features = new Map();
    /** @type {import("./learned_head.js").Shared | null} */ this.shared = null;
    this.network = "";
    this.stale = true;
    /** Whether windows were taught or taken back since the head was solved. */
    this.hasNewLabels = true;
    this.learntAtMs = -Infinity;
    this.isLearning = false;
    /** @type {Set<() => void>} */ this.watchers = new Set();
    store.watchers.add((change) => {
      this.stale = true;
      if (change !== "added" || this.lesson) this.hasNewLabels = true;
    });
    setInterval(() => this.tick(), TICK_MS);
  }

  /** The federation's activities, and the person's own behind them. */
  get activities() {
    return [...(this.models.plan?.labels ?? []), ...this.personal.map(({ name }) => name)];
  }

  /** Why nothing can be learnt here; empty where it can. */
  get unavailableReason() {
    const { plan } = this.models;
    if (!plan) return "Teach me needs a federation, whose sums it builds upon: join one first. You can record and label all the same.";
    if (plan.method.name !== "analytic") {
      return `This federation learns by ${plan.method.name}, which takes a round; Teach me is for the method analytic, whose heads are solved in a second.`;
    }
    return "";
  }

  /** Read what is kept. */
  async begin() {
    this.personal = (await this.store.get(PERSONAL)) ?? [];
  }

  /** Activities of the person's own that are learnt: those that Recognize names, and those that it does not yet. */
  get ownLearnt() {
    const { taught } = this;
    const codes = this.personal.map(({ name }) => taught?.activities.indexOf(name) ?? -1).filter((code) => taught?.learnt[code]);
    const names = (/** @type {boolean} */ wanted) =>
      codes.flatMap((code) => (taught && isNamed(taught, code) === wanted ? taught.activities[code] : []));
    return { named: names(true), unnamed: names(false) };
  }

  // ---- lessons

  /** Begin a lesson, by a tap; one that runs is cancelled. @param {string} activity */
  async start(activity) {
    if (this.lesson) await this.cancel();
    if (!this.recorder.running) await this.recorder.start();
    this.message = "";
    this.lesson = new Lesson(activity, Date.now()); // first: what is taken back begins no later than the label
    this.recorder.setLabel(activity);
    this.changed();
  }

  pause() {
    if (!this.lesson) return;
    this.recorder.setLabel(null);
    this.lesson.pause();
    this.changed();
  }

  resume() {
    if (!this.lesson) return;
    this.recorder.setLabel(this.lesson.activity);
    this.lesson.resume(Date.now());
    this.changed();
  }

  /** End the lesson; its windows have no label. */
  async cancel() {
    const { lesson } = this;
    if (!lesson) return;
    this.lesson = null;
    this.recorder.setLabel(null);
    this.message = "Not learnt, as you wished.";
    this.changed();
    await this.recorder.takeBack(lesson.activity, lesson.spans[0].fromMs);
    const now = Date.now();
    for (const { fromMs, toMs } of lesson.spans) await this.store.label(fromMs, Math.max(toMs, now), null);
  }

  tick() {
    const { lesson, recorder } = this;
    if (lesson) {
      lesson.advance(Date.now(), recorder.stream?.lastMs ?? -Infinity, recorder.levels[recorder.levels.length - 1] ?? 0);
      if (lesson.complete) {
        this.lesson = null;
        recorder.setLabel(null);
        this.message = `${LESSON_MS / 1000} s learnt. Choose the next one.`;
        this.lastTaught = lesson.activity;
      }
      this.changed();
    }
    if (this.stale && this.watchers.size && !this.isLearning) void this.learn();
  }

  lastTaught = "";

  // ---- one's own activities

  /** @param {string} name */
  async add(name) {
    await this.keep(withActivity(this.personal, name, this.models.plan?.labels ?? []));
  }

  /** Its windows stay, without a label. @param {string} name */
  async remove(name) {
    if (this.lesson?.activity === name) await this.cancel();
    await this.recorder.takeBack(name);
    for (const { label, startMs } of await this.store.marks()) {
      const middleMs = startMs + WINDOW_MS / 2;
      if (label === name) await this.store.label(middleMs - 0.5, middleMs + 0.5, null);
    }
    await this.keep(this.personal.filter((each) => each.name !== name));
  }

  /** @param {string} name @param {string} label of the plan; empty: its windows are not sent */
  async countAs(name, label) {
    await this.keep(this.personal.map((each) => (each.name === name ? { name, countsAs: label } : each)));
  }

  /** @param {PersonalActivity[]} personal */
  async keep(personal) {
    await this.store.set(PERSONAL, personal);
    this.personal = personal;
    this.store.changed("labelled"); // what counts for the federation may be other windows now
    this.changed();
  }

  // ---- learning

  /** Solve the heads again of the windows that there are. */
  async learn() {
    this.isLearning = true;
    this.stale = this.hasNewLabels = false;
    this.learntAtMs = Date.now();
    try {
      this.problem = "";
      if (!this.unavailableReason) await this.learnNow();
    } catch (error) {
      console.info(error);
      this.problem = /** @type {Error} */ (error).message;
    } finally {
      this.isLearning = false;
      this.changed();
    }
  }

  async learnNow() {
    const plan = /** @type {import("../types.js").Plan} */ (this.models.plan);
    const network = await this.models.load(plan);
    const shared = await this.sharedOf(plan, network.orientationFree);
    const { activities } = this;
    const windows = (await this.store.windows()).map((window) => ({ ...window, label: window.personal ?? window.label }));
    const known = new Set(activities);
    const chosen = windows.filter(({ label }) => label !== null && known.has(label)).slice(-MAX_WINDOWS);
    const labelled = labelledWindows(chosen, activities);
    await this.embed(network.sha256, labelled.windows);
    this.taught = await this.learner.learn(labelled, this.features, activities, shared, WINDOW_MS / 1000);
  }

  /** @param {import("../types.js").Plan} plan @param {readonly number[]} orientationFree */
  async sharedOf(plan, orientationFree) {
    const kept = await this.store.get(BROADCAST);
    if (!kept) throw new Error("The federation's sums have not come yet: they come when the server is reached.");
    if (this.shared && this.shared.version === kept.sha256) return this.shared;
    const { shared, clients } = sharedSums(kept.file, plan);
    const found = { sums: shared, clients, method: methodOf(plan), version: kept.sha256, orientationFree };
    this.shared = found;
    return found;
  }

  /**
   * Have the features of windows; those that are known are not computed again.
   * @param {string} sha256 of the network, which is loaded @param {readonly StoredWindow[]} windows
   */
  async embed(sha256, windows) {
    if (sha256 !== this.network) [this.network, this.features] = [sha256, new Map()];
    const ids = new Set(windows.map(({ id }) => id));
    for (const id of this.features.keys()) if (!ids.has(id)) this.features.delete(id);
    const fresh = windows.filter(({ id }) => id !== undefined && !this.features.has(id));
    if (!fresh.length) return;
    const size = fresh[0].x.length;
    const x = new Float32Array(fresh.length * size);
    fresh.forEach((window, i) => x.set(window.x, i * size));
    const found = await this.models.embedder.embed(x);
    const width = found.length / fresh.length;
    fresh.forEach(({ id }, i) => this.features.set(/** @type {number} */ (id), found.slice(i * width, (i + 1) * width)));
  }

  /**
   * What a window is by the person's own head, where that is an activity of their own; else null, and the model in use
   * is asked. Solves the head first where it is out of date.
   * @param {Float32Array} x (128, 6), not normalized
   * @returns {Promise<[string, number][] | null>} activities and probabilities, likeliest first
   */
  async ownRanking(x) {
    const { plan } = this.models;
    if (!this.personal.length || !plan || this.unavailableReason) return null;
    const isOld = this.hasNewLabels || Date.now() - this.learntAtMs > REFRESH_MS;
    if (isOld && !this.isLearning) await this.learn();
    const { taught } = this;
    if (!taught || !taught.activities.some((_, code) => code >= plan.labels.length && isNamed(taught, code))) return null;
    const { sha256 } = await this.models.load(plan);
    if (sha256 !== this.network) return null; // solved of another network's features
    const { personal, activities } = taught;
    const { code, probabilities } = recognizeBy(await this.models.embedder.embed(x), personal);
    if (code < plan.labels.length || !isNamed(taught, code)) return null;
    const ranking = activities.map((name, i) => /** @type {[string, number]} */ ([name, probabilities[i]]));
    return ranking.sort((one, other) => other[1] - one[1]);
  }

  changed() {
    for (const watcher of this.watchers) watcher();
  }
}
