/**
 * What a phone does one thing after the other: it sends the sums of its windows when they are due, or takes them out,
 * and takes up the versions that come of everybody's. Whatever fails is tried again; what must last is in the store
 * before it counts.
 */

import { BROADCAST, FEATURE_MODEL, withAnswered } from "./agent_state.js";
import { UNKNOWN, nextSequence, sumsAreDue, sumsUpdate, withdrawalIsDue, withdrawalUpdate } from "./contribution.js";
import { MAX_FILE_BYTES, ineligibleReason, missingData } from "./eligibility.js";
import { UnreachableError, WireError, messageOf } from "./errors.js";
import { releaseFor, withLeft, withoutWithdrawn } from "./releases.js";
import { sendUpdate } from "./upload.js";
import { adoptionReport, keptAfter, methodOf, newest, refreshAtMs, releaseReport, sharedSums, targetOf } from "./versions.js";
import { WakeUp } from "./wakeup.js";

const FIRST_PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;
const MAX_ATTEMPTS = 3;
/** After sums that could not be made, and a withdrawal that was refused. */
const LONG_PAUSE_MS = 600_000;

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./upload.js").PendingUpdate} PendingUpdate */
/** @typedef {import("./versions.js").Target} Target */

/** @typedef {{announcement: Announcement | null, connected: boolean}} ServerState what the server said last */

/**
 * @typedef {object} Means
 * @property {import("./server.js").Server} server @property {import("./connection.js").Connection} connection
 * @property {string} device @property {string} federation @property {CryptoKey} key @property {AbortSignal} signal
 */

export class ContributionWorker {
  /**
   * @param {import("./agent.js").Parts} parts @param {import("./server.js").Clock} clock
   * @param {import("./agent_state.js").StateStore} stateStore @param {ServerState} serverState @param {() => void} onChange
   */
  constructor({ store, learner, embedder }, clock, stateStore, serverState, onChange) {
    this.store = store;
    this.learner = learner;
    this.embedder = embedder;
    this.clock = clock;
    this.stateStore = stateStore;
    this.serverState = serverState;
    this.changed = onChange;
    this.wakeUp = new WakeUp();
    /** @type {Prepared | null} */ this.prepared = null;
    this.stale = true; // windows or labels have changed since they were prepared
    this.missing = "";
    /** @type {"" | "learning" | "adopting"} */ this.stage = "";
    this.detail = "";
    this.failures = { of: "", count: 0 };
    this.contributeAtMs = 0; // not before: the last try has failed
    this.wakesAtMs = Infinity;
  }

  /** @param {Means} means */
  async keep(means) {
    for (let pauseMs = FIRST_PAUSE_MS; ;) {
      await this.wakeUp.wait(means.signal);
      try {
        while (await this.step(means)) pauseMs = FIRST_PAUSE_MS;
      } catch (error) {
        means.signal.throwIfAborted();
        this.report(messageOf(error));
        await this.clock.wait(pauseMs * (0.5 + Math.random() / 2), means.signal);
        pauseMs = Math.min(MAX_PAUSE_MS, 2 * pauseMs);
        this.wakeUp.notify();
      } finally {
        this.stage = "";
        this.changed();
      }
    }
  }

  /** Do the next piece of work; false where there is none. @param {Means} means @returns {Promise<boolean>} */
  async step(means) {
    const a = this.serverState.announcement;
    if (!a) return false;
    await this.leaveWithdrawn(a);
    await this.dropDeleted();
    await this.prepare(a);
    const { memory, outbox } = this.stateStore.current;
    const may = a.continuous && this.clock.now() >= this.contributeAtMs && this.prepared;
    if (may && withdrawalIsDue(memory, this.prepared?.keys ?? [])) return this.withdraw(a, means);
    if (outbox.length && this.serverState.connected) return this.upload(outbox[0], means);
    if (ineligibleReason(a) || !this.serverState.connected) return false; // a server that is away is asked by the connection alone
    if (may && !outbox.length && sumsAreDue(a, memory, this.prepared?.keys ?? [])) return this.contribute(a, means);
    return this.adopt(a, means);
  }

  /** An update that waits is not sent where one of its windows was deleted: it is made again from the rest. */
  async dropDeleted() {
    /** @type {PendingUpdate[]} */
    const gone = [];
    for (const update of this.stateStore.current.outbox) {
      if (!(await this.store.has(update.windows))) gone.push(update);
    }
    if (!gone.length) return;
    await this.stateStore.change(({ memory, outbox }) => {
      return { memory: withUnknown(memory), outbox: outbox.filter((each) => !gone.includes(each)) };
    });
    this.stale = true;
    this.report("an update that waited is not sent: windows that it was made of have been deleted");
  }

  /** @param {Announcement} a */
  async prepare(a) {
    if (!this.stale || ineligibleReason(a)) return;
    this.stale = false;
    try {
      const windows = await this.store.windows();
      this.prepared = this.learner.prepare(windows, planOf(a));
      this.missing = missingData(windows, a.plan.labels, this.prepared.train.y.length);
    } catch (error) {
      this.stale = true;
      throw error;
    }
    this.changed();
  }

  /** Have what the server has of this phone taken out. @param {Announcement} a @param {Means} means */
  async withdraw(a, means) {
    const nowMs = this.clock.now();
    const sequence = nextSequence(this.stateStore.current.memory, nowMs);
    const update = await withdrawalUpdate(means, a, sequence, nowMs);
    await this.stateStore.change(({ memory }) => {
      const isDue = isOf(memory, a) && memory.sequence < sequence && withdrawalIsDue(memory, this.prepared?.keys ?? []);
      if (!isDue) return null;
      const sent = { kind: /** @type {const} */ ("withdrawn"), updateId: update.updateId, keys: [] };
      return { memory: { ...memory, sequence, sent }, outbox: [update] };
    });
    return true;
  }

  /** Send whole sums, and choose a head with them. @param {Announcement} a @param {Means} means */
  async contribute(a, means) {
    const { prepared } = this;
    const target = newest(a);
    if (!prepared || !target) return false;
    this.begin("learning");
    try {
      const { verdict, embeddings, heads, fixed } = await this.solved(a, target, prepared, means);
      const { labels } = a.plan;
      const classCounts = labels.map((_, code) => prepared.train.y.filter((each) => each === code).length);
      const metrics = heads.length ? this.learner.measure(heads, prepared.holdout, embeddings.holdout, labels) : {};
      const nowMs = this.clock.now();
      const sequence = nextSequence(this.stateStore.current.memory, nowMs);
      const sums = { fixed: /** @type {any} */ (fixed), classCounts, metrics, windows: prepared.ids };
      const update = await sumsUpdate(means, a, sums, sequence, nowMs);
      await this.stateStore.change(({ memory, outbox, kept }) => {
        const wanted = isOf(memory, a) && memory.takesPart && memory.sequence < sequence && !outbox.length;
        if (!wanted) return null;
        const sent = { kind: /** @type {const} */ ("sums"), updateId: update.updateId, keys: prepared.keys };
        const judged = a.plan.rollout.mode === "off" ? this.judged(a, target, verdict, memory, kept) : { memory };
        return { ...judged, memory: { ...judged.memory, sequence, sent }, outbox: [update] };
      });
      this.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (this.countFailure("sums", error)) this.pause(means.signal);
      throw error;
    }
  }

  /** Take up a version that the server has published, or released. @param {Announcement} a @param {Means} means */
  async adopt(a, means) {
    const { prepared } = this;
    const { kept, memory: before } = this.stateStore.current;
    const isReleasing = a.plan.rollout.mode !== "off";
    const release = isReleasing ? await releaseFor(means.device, a, before.offer) : null;
    const target = targetOf(a, release, before, kept, this.clock.now());
    if (!target || !prepared) {
      if (newest(a)?.key !== before.judged) this.wakeAt(refreshAtMs(before), means.signal);
      return false;
    }
    this.begin("adopting");
    try {
      const { verdict } = await this.solved(a, target, prepared, means);
      await this.stateStore.change(({ memory, kept: now }) => {
        return isOf(memory, a) ? this.judged(a, target, verdict, memory, now) : null;
      });
      this.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (this.countFailure(target.key, error)) {
        await this.stateStore.change(({ memory }) => ({ memory: { ...memory, judged: target.key } }));
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
    const said = {
      verdict,
      judged: key,
      refreshed: { version, atMs: this.clock.now() },
      adoption: adoptionReport(a, target, verdict),
      ...(release && { release: releaseReport(a, release, verdict) }),
    };
    return { memory: { ...memory, ...said }, kept: keptAfter(verdict, release, kept) };
  }

  /**
   * The heads of a version, the sums of the phone's own windows, and which head is used.
   * @param {Announcement} a @param {Target} target @param {Prepared} prepared @param {Means} means
   */
  async solved(a, target, prepared, means) {
    const plan = planOf(a);
    const columns = await this.loadNetwork(a, means);
    const broadcast = await this.download(target, means);
    return solveVersion(this, { plan, broadcast, columns, prepared, present: this.stateStore.current.kept?.model ?? null });
  }

  /** @param {PendingUpdate} update @param {Means} means */
  async upload(update, { server, connection, signal }) {
    this.changed();
    const answer = await sendUpdate(update, {
      server,
      open: (payload) => connection.open("acknowledgement", payload),
      clock: this.clock,
      onRetry: (reason) => this.report(`the server takes the update later: ${reason}`),
      isWanted: () => this.stateStore.current.outbox.includes(update),
      signal,
    });
    this.detail = "";
    if (answer) await this.settle(update, answer, signal);
    return true;
  }

  /** @param {PendingUpdate} update @param {import("./messages.js").Acknowledgement} answer @param {AbortSignal} signal */
  async settle(update, { status, reason }, signal) {
    const answered = /** @type {"accepted" | "refused"} */ (status);
    const isKept = update.withdraw && answered === "refused";
    await this.stateStore.change(({ memory, outbox }) => {
      if (!outbox.includes(update)) return null;
      const version = Math.max(0, update.round - 1);
      const noted = { version, withdraw: update.withdraw, answer: answered, reason, atMs: this.clock.now() };
      const known = isKept ? withUnknown(memory) : memory;
      return { memory: withAnswered(known, noted), outbox: outbox.filter((each) => each !== update) };
    });
    if (isKept) {
      this.report(`the server refuses to take this phone's sums out: ${reason}`);
      this.pause(signal);
    }
    this.changed();
  }

  /** @param {Announcement} a */
  async leaveWithdrawn(a) {
    const before = this.stateStore.current.kept;
    const kept = withoutWithdrawn(before, a.release);
    if (kept === before) return;
    await this.stateStore.change(({ memory }) => {
      return { memory: withLeft(memory, before?.release ?? 0, kept?.release ?? 0, a.release), kept };
    });
    this.changed();
  }

  /** Whether something has failed so often, for another reason than the network, that it is left for now. @param {string} of @param {unknown} error */
  countFailure(of, error) {
    if (!this.serverState.connected || error instanceof UnreachableError) return false;
    this.failures = { of, count: this.failures.of === of ? this.failures.count + 1 : 1 };
    return this.failures.count >= MAX_ATTEMPTS;
  }

  /** Leave contributions for a while; each phone for its own. @param {AbortSignal} signal */
  pause(signal) {
    this.contributeAtMs = this.clock.now() + LONG_PAUSE_MS * (0.5 + Math.random());
    this.failures = { of: "", count: 0 };
    this.wakeAt(this.contributeAtMs, signal);
  }

  /** Look again at that time, in Unix milliseconds. @param {number} atMs @param {AbortSignal} signal */
  wakeAt(atMs, signal) {
    const now = this.clock.now();
    if (atMs <= now || (this.wakesAtMs > now && this.wakesAtMs <= atMs)) return;
    this.wakesAtMs = atMs;
    const woken = this.clock.wait(atMs - now, signal).then(() => this.wakeUp.notify());
    woken.catch(() => {}); // the app has ended
  }

  /** Have the network in the store, and behind the embedder. @param {Announcement} a @param {Means} means */
  async loadNetwork(a, { server, signal }) {
    const pointer = /** @type {import("./messages.generated.js").BlobPointer} */ (a.feature_model);
    let kept = await this.store.get(FEATURE_MODEL);
    if (kept?.sha256 !== pointer.sha256) {
      kept = { sha256: pointer.sha256, file: await server.blob(pointer, MAX_FILE_BYTES, signal) };
      await this.store.set(FEATURE_MODEL, kept);
    }
    return { sha256: kept.sha256, ...(await this.embedder.load(kept.file, kept.sha256, planOf(a))) };
  }

  /** A version's broadcast, which is kept: heads can be solved again without the server. @param {Target} target @param {Means} means */
  async download({ pointer, version }, { server, signal }) {
    let kept = await this.store.get(BROADCAST);
    if (kept?.sha256 !== pointer.sha256) {
      kept = { sha256: pointer.sha256, version, file: await server.blob(pointer, MAX_FILE_BYTES, signal) };
      await this.store.set(BROADCAST, kept);
    } else if (kept.version !== version) {
      kept = { ...kept, version };
      await this.store.set(BROADCAST, kept);
    }
    return /** @type {Broadcast} */ (kept);
  }

  /** @param {"learning" | "adopting"} stage */
  begin(stage) {
    this.stage = stage;
    this.changed();
  }

  /** @param {string} detail for the person */
  report(detail) {
    this.detail = detail;
    this.changed();
  }
}

/** @typedef {{sha256: string, version: number, file: Uint8Array}} Broadcast */

/**
 * @typedef {object} Version what its heads are solved of
 * @property {Plan} plan @property {Broadcast} broadcast @property {{sha256: string} & import("../types.js").Columns} columns
 * @property {Prepared} prepared @property {import("../types.js").Model | null} present
 */

/**
 * Solve a version's heads together with the phone's own windows, and choose one.
 * @param {{learner: import("../types.js").Learner, embedder: import("../types.js").Embedder}} by its network is loaded
 * @param {Version} version
 */
export async function solveVersion({ learner, embedder }, { plan, broadcast, columns, prepared, present }) {
  const { labels, training } = plan;
  const method = methodOf(plan);
  const { shared, clients } = sharedSums(broadcast.file, plan);
  const { train, holdout, unlabelled } = prepared;
  const embeddings = {
    train: await embedder.embed(train.x),
    holdout: await embedder.embed(holdout.x),
    unlabelled: await embedder.embed(unlabelled),
  };
  if (embeddings.train.length !== train.y.length * training.feature_dim) {
    const came = embeddings.train.length / train.y.length;
    throw new WireError(`the network's embeddings have ${came} numbers, and the plan says ${training.feature_dim}`);
  }
  const fixed = train.y.length ? await learner.sums(embeddings.train, train.y, labels.length, method.clip) : null;
  const { orientationFree, gravity, sha256 } = columns;
  const exchange = { shared, clients, own: fixed, method, orientationFree, version: broadcast.version, sha256 };
  const choice = { exchange, present, prepared, embeddings, labels, gravity };
  return { ...(await learner.choose(choice)), embeddings, fixed };
}

/** @param {import("./agent_state.js").Memory} memory */
function withUnknown(memory) {
  return { ...memory, sent: UNKNOWN };
}

/**
 * Whether what is remembered is of an announcement's instance and epoch.
 * @param {import("./agent_state.js").Memory} memory @param {Announcement} a
 */
function isOf({ instance, epoch }, a) {
  return instance === a.instance && epoch === a.epoch;
}

/** @param {Announcement} a @returns {Plan} */
export function planOf(a) {
  return /** @type {Plan} */ (/** @type {unknown} */ (a.plan));
}
