/**
 * What a phone does for a continuous federation: it sends the sums of its windows when they are due, or takes them out,
 * and takes up the versions that come of everybody's.
 */

import { lacksGyroscope } from "../learning/examples.js";
import { restricted } from "../learning/ridge.js";
import { BROADCAST, FEATURE_MODEL, isOf, roundKey } from "./agent_state.js";
import { nextSequence, sumsAreDue, sumsUpdate, withdrawalIsDue, withdrawalUpdate } from "./contribution.js";
import { ineligibleReason } from "./eligibility.js";
import { WireError, blamingModel } from "./errors.js";
import { isInvited, isPrivate } from "./private_sums.js";
import { releaseFor } from "./releases.js";
import { adoptionReport, keptAfter, releaseReport } from "./versions.js";
import { hasNewWindows, methodOf, newest, planOf, refreshAtMs, sharedSums, targetOf } from "./versions.js";

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./device_worker.js").Means} Means */
/** @typedef {import("./versions.js").Target} Target */

export class ContributionWorker {
  /** @param {import("./device_worker.js").DeviceWorker} worker */
  constructor(worker) {
    this.worker = worker;
  }

  /** Whether something may be made now. */
  get isReady() {
    return this.worker.clock.now() >= this.worker.contributeAtMs && this.worker.prepared !== null;
  }

  /** Have the phone's sums taken out, if that is due. @param {Announcement} a @param {Means} means @returns {Promise<boolean>} */
  async takeOut(a, means) {
    if (isPrivate(a)) return false; // each sum is of those alone who add to it
    const isDue = withdrawalIsDue(this.worker.stateStore.current.memory, this.worker.prepared?.keys ?? []);
    return this.isReady && isDue ? this.withdraw(a, means) : false;
  }

  /** Send sums, or take up a version; false where neither is due. @param {Announcement} a @param {Means} means */
  async step(a, means) {
    const { memory, outbox } = this.worker.stateStore.current;
    if (isPrivate(a)) return (await this.joinSum(a, means)) || this.adopt(a, means);
    const isDue = !outbox.length && sumsAreDue(a, memory, this.worker.prepared?.keys ?? []);
    return this.isReady && isDue ? this.contribute(a, means) : this.adopt(a, means);
  }

  /** Answer what a round's sum asks of this phone next; false where nothing is asked. @param {Announcement} a @param {Means} means */
  async followSum(a, means) {
    const { invitation, followed } = this.worker.stateStore.current.memory;
    const kind = invitation?.sum?.kind;
    if (followed || !invitation || !kind || kind === "request" || ineligibleReason(a)) return false;
    const { answerSum } = await import("../secure_sums/sum_worker.js");
    return answerSum(this.worker, a, invitation, means);
  }

  /** Begin the sum that waits for this phone's keys, once a round. @param {Announcement} a @param {Means} means */
  async joinSum(a, means) {
    const { memory } = this.worker.stateStore.current;
    const { prepared } = this.worker;
    const { invitation } = memory;
    if (!prepared?.keys.length || !invitation || !this.isReady || !memory.takesPart || !isInvited(a, memory)) return false;
    if (memory.done?.includes(roundKey(invitation))) return false;
    this.worker.begin("learning");
    try {
      const { beginSum } = await import("../secure_sums/sum_worker.js");
      await beginSum(this.worker, a, invitation, await this.ownSums(a, prepared, means), means);
      this.worker.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (this.worker.countFailure("sums", error)) this.worker.pause(means.signal);
      throw error;
    }
  }

  /** The sums of the phone's windows, as they are added. @param {Announcement} a @param {Prepared} prepared @param {Means} means */
  async ownSums(a, prepared, means) {
    await this.loadNetwork(a, means);
    const plan = planOf(a);
    const method = methodOf(plan);
    const summed = await summedWindows(prepared.train, plan, means.device);
    const embeddings = await this.worker.embedder.embed(summed.x);
    const { gram, moment } = await this.worker.learner.sums(embeddings, summed.y, plan.labels.length, method.clip);
    return { sums: { gram, moment }, keys: prepared.keys, windows: prepared.ids };
  }

  /** Have what the server has of this phone taken out. @param {Announcement} a @param {Means} means */
  async withdraw(a, means) {
    const nowMs = this.worker.clock.now();
    const sequence = nextSequence(this.worker.stateStore.current.memory, nowMs);
    const update = await withdrawalUpdate(means, a, sequence, nowMs);
    await this.worker.stateStore.change(({ memory }) => {
      const isDue = isOf(memory, a) && memory.sequence < sequence && withdrawalIsDue(memory, this.worker.prepared?.keys ?? []);
      if (!isDue) return null;
      const sent = { kind: /** @type {const} */ ("withdrawn"), updateId: update.updateId, keys: [] };
      return { memory: { ...memory, sequence, sent }, outbox: [update] };
    });
    return true;
  }

  /** Send whole sums, and choose a head with them. @param {Announcement} a @param {Means} means */
  async contribute(a, means) {
    const { prepared } = this.worker;
    const target = newest(a);
    if (!prepared || !target) return false;
    this.worker.begin("learning");
    try {
      const { verdict, embeddings, heads, fixed } = await this.solved(a, target, prepared, means);
      const { labels } = a.plan;
      const classCounts = labels.map((_, code) => prepared.train.y.filter((each) => each === code).length);
      const metrics = heads.length ? this.worker.learner.measure(heads, prepared.holdout, embeddings.holdout, labels) : {};
      const isJudged = a.plan.rollout.mode === "off"; // else devices use what is released
      const nowMs = this.worker.clock.now();
      const sequence = nextSequence(this.worker.stateStore.current.memory, nowMs);
      const sums = { fixed: /** @type {any} */ (fixed), classCounts, metrics, windows: prepared.ids };
      const update = await sumsUpdate(means, a, sums, sequence, nowMs);
      await this.worker.stateStore.change(({ memory, outbox, kept }) => {
        const wanted = isOf(memory, a) && memory.takesPart && memory.sequence < sequence && !outbox.length;
        if (!wanted) return null;
        const sent = { kind: /** @type {const} */ ("sums"), updateId: update.updateId, keys: prepared.keys };
        const judged = isJudged ? this.judged(a, target, verdict, memory, kept) : { memory };
        return { ...judged, memory: { ...judged.memory, sequence, sent }, outbox: [update] };
      });
      this.worker.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (this.worker.countFailure("sums", error)) this.worker.pause(means.signal);
      throw error;
    }
  }

  /** Take up a version that the server has published, or released. @param {Announcement} a @param {Means} means */
  async adopt(a, means) {
    const { prepared } = this.worker;
    const { kept, memory: before } = this.worker.stateStore.current;
    const isReleasing = a.plan.rollout.mode !== "off";
    const release = isReleasing ? await releaseFor(means.device, a, before.offer) : null;
    const nowMs = this.worker.clock.now();
    const isNew = prepared && hasNewWindows(a, prepared.recorded, before, nowMs);
    const target = targetOf(a, release, before, kept, nowMs) ?? (isNew ? newest(a) : null);
    if (!target || !prepared) {
      const isChanged = prepared && hasNewWindows(a, prepared.recorded, before, Infinity);
      if (isChanged || newest(a)?.key !== before.judged) this.worker.wakeAt(refreshAtMs(before), means.signal);
      return false;
    }
    this.worker.begin("adopting");
    try {
      const { verdict } = await this.solved(a, target, prepared, means);
      await this.worker.stateStore.change(({ memory, kept: now }) => {
        if (!isOf(memory, a)) return null;
        const judged = this.judged(a, target, verdict, memory, now);
        return { ...judged, memory: { ...judged.memory, adaptedTo: prepared.recorded } };
      });
      this.worker.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (this.worker.countFailure(target.key, error)) {
        const given = { judged: target.key, adaptedTo: prepared.recorded };
        await this.worker.stateStore.change(({ memory }) => ({ memory: { ...memory, ...given } }));
      }
      throw error;
    }
  }

  /**
   * What is remembered of a version once its heads were judged.
   * @param {Announcement} a @param {Target} target @param {import("../types.js").Verdict} verdict
   * @param {import("./agent_state.js").Memory} memory @param {import("./agent_state.js").KeptModel | null} kept
   */
  judged(a, target, verdict, memory, kept) {
    const { rollout: release, version, key } = target;
    const changes = {
      verdict,
      judged: key,
      refreshed: { version, atMs: this.worker.clock.now() },
      adoption: adoptionReport(a, target, verdict),
      ...(release && { release: releaseReport(a, release, verdict) }),
    };
    return { memory: { ...memory, ...changes }, kept: keptAfter(verdict, release, kept) };
  }

  /**
   * The heads of a version, the sums of the phone's own windows, and which head is used.
   * @param {Announcement} a @param {Target} target @param {Prepared} prepared @param {Means} means
   */
  async solved(a, target, prepared, means) {
    const plan = planOf(a);
    const columns = await this.loadNetwork(a, means);
    const { version } = target;
    const broadcast = { ...(await this.worker.file(BROADCAST, target.pointer, means, { version })), version };
    const present = this.worker.stateStore.current.kept?.model ?? null;
    const rules = { isReleased: target.rollout > 0 };
    const of = { plan, device: means.device, broadcast, columns, prepared, present, rules };
    return this.worker.usingModel(a, target.pointer, () => solveVersion(this.worker, of));
  }

  /** Have the network in the store, and behind the embedder. @param {Announcement} a @param {Means} means */
  async loadNetwork(a, means) {
    const pointer = /** @type {import("./messages.generated.js").BlobPointer} */ (a.feature_model);
    const { file, sha256 } = await this.worker.file(FEATURE_MODEL, pointer, means);
    return { sha256, ...(await this.worker.embedder.load(file, sha256, planOf(a))) };
  }
}

/** @typedef {{sha256: string, version: number, file: Uint8Array}} Broadcast */

/**
 * @typedef {object} Version what its heads are solved of
 * @property {Plan} plan @property {string} device whose windows they are @property {Broadcast} broadcast @property {{sha256: string} & import("../types.js").Columns} columns
 * @property {Prepared} prepared @property {import("../types.js").Model | null} present
 * @property {import("../learning/heads.js").Rules} [rules]
 */

/**
 * What a phone sums over: its training windows and, where the plan asks for them, changed copies.
 * @param {import("../types.js").Examples} train @param {Plan} plan @param {string} device whose windows they are
 */
async function summedWindows(train, plan, device) {
  const method = methodOf(plan);
  if (!method.rotations && !method.sensor_loss) return train;
  const { withCopies } = await import("../training/window_changes.js"); // few federations need it
  return withCopies(train, method, { seed: plan.training.seed, device });
}

/**
 * Solve a version's heads together with the phone's own windows, and choose one.
 * @param {{learner: import("../types.js").Learner, embedder: import("../types.js").Embedder}} by its network is loaded
 * @param {Version} version
 */
export async function solveVersion({ learner, embedder }, { plan, device, broadcast, columns, prepared, present, rules }) {
  const { labels, training } = plan;
  const method = methodOf(plan);
  const { shared: all, clients } = await blamingModel(() => sharedSums(broadcast.file, plan));
  const { train, holdout, unlabelled } = prepared;
  const { acceleration = [] } = columns;
  const lacks = acceleration.length > 0 && lacksGyroscope(train.y.length ? train.x : unlabelled);
  const shared = lacks ? restricted(all, acceleration) : all;
  const summed = await summedWindows(train, plan, device);
  const ofAll = await embedder.embed(summed.x);
  const embeddings = {
    train: ofAll.subarray(0, train.y.length * training.feature_dim),
    holdout: await embedder.embed(holdout.x),
    unlabelled: await embedder.embed(unlabelled),
  };
  if (ofAll.length !== summed.y.length * training.feature_dim) {
    const numbers = ofAll.length / summed.y.length;
    throw new WireError(`the network's embeddings have ${numbers} numbers, and the plan says ${training.feature_dim}`);
  }
  const fixed = train.y.length ? await learner.sums(ofAll, summed.y, labels.length, method.clip) : null;
  const { orientationFree, gravity, sha256 } = columns;
  const exchange = { shared, clients, own: fixed, method, orientationFree, version: broadcast.version, sha256 };
  const choice = { exchange, present, prepared, embeddings, labels, gravity, rules };
  return { ...(await learner.choose(choice)), embeddings, fixed };
}
