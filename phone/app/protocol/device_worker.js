/**
 * What a phone does one thing after the other, whatever its federation: it sends what waits, leaves models that were
 * withdrawn, and then does what a continuous federation (contribution_worker.js) or a round (round_worker.js) asks of it.
 * Whatever fails is tried again; what must last is in the store before it counts.
 */

import { isOf, withAnswered } from "./agent_state.js";
import { UNKNOWN } from "./contribution.js";
import { ContributionWorker } from "./contribution_worker.js";
import { MAX_FILE_BYTES, ineligibleReason, missingData } from "./eligibility.js";
import { UnreachableError, UnusableModelError, messageOf } from "./errors.js";
import { requiredBy } from "./promises.js";
import { withLeft, withoutWithdrawn } from "./releases.js";
import { RoundWorker } from "./round_worker.js";
import { sha256 } from "./signing.js";
import { sendUpdate } from "./upload.js";
import { planOf } from "./versions.js";
import { WakeUp } from "./wakeup.js";

const FIRST_PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;
const MAX_ATTEMPTS = 3;
/** After work that has failed for good, and a withdrawal that was refused. */
const LONG_PAUSE_MS = 600_000;
/** Characters of a refusal's reason. */
const MAX_REASON = 500;

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.generated.js").BlobPointer} BlobPointer */
/** @typedef {import("./upload.js").PendingUpdate} PendingUpdate */

/** @typedef {{announcement: Announcement | null, connected: boolean}} ServerState what the server said last */

/**
 * @typedef {object} Means
 * @property {import("./server.js").Server} server @property {import("./connection.js").Connection} connection
 * @property {string} device @property {string} federation @property {CryptoKey} key
 * @property {Uint8Array<ArrayBuffer>} identity the phone's public key @property {AbortSignal} signal
 */

export class DeviceWorker {
  /**
   * @param {import("./agent.js").Parts} parts @param {import("./server.js").Clock} clock
   * @param {import("./agent_state.js").StateStore} stateStore @param {ServerState} serverState @param {() => void} onChange
   */
  constructor({ store, learner, embedder, host, conditions }, clock, stateStore, serverState, onChange) {
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
    this.contributions = new ContributionWorker(this);
    this.rounds = new RoundWorker(this, host, conditions);
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
    if (a.continuous && (await this.contributions.takeOut(a, means))) return true;
    if (await this.contributions.followSum(a, means)) return true;
    const { outbox } = this.stateStore.current;
    if (outbox.length && this.serverState.connected) return this.upload(outbox[0], means);
    if (ineligibleReason(a) || !this.serverState.connected) return false; // a server that is away is asked by the connection alone
    return a.continuous ? this.contributions.step(a, means) : this.rounds.step(a, means);
  }

  /**
   * An update that waits is not sent where one of its windows was deleted, or where the server would see it as such and
   * this phone requires secure sums: it is made again from the rest, if at all.
   */
  async dropDeleted() {
    /** @type {PendingUpdate[]} */
    const gone = [];
    for (const update of this.stateStore.current.outbox) {
      if (this.isTooClear(update) || !(await this.store.has(update.windows))) gone.push(update);
    }
    if (!gone.length) return;
    await this.stateStore.change(({ memory, outbox }) => {
      return { memory: withUnknown(memory), outbox: outbox.filter((each) => !gone.includes(each)) };
    });
    this.stale = true;
    this.report("an update that waited is not sent: windows of it were deleted, or this phone requires more privacy");
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

  /** Whether the server would see an update as such, where this phone requires secure sums. @param {PendingUpdate} update */
  isTooClear({ sum, withdraw }) {
    return !sum && !withdraw && requiredBy(this.stateStore.current.memory).mode === "masked";
  }

  /** @param {PendingUpdate} update */
  isWanted(update) {
    const { memory, outbox } = this.stateStore.current;
    return outbox.includes(update) && !memory.refused && !this.isTooClear(update);
  }

  /** @param {PendingUpdate} update @param {Means} means */
  async upload(update, { server, connection, signal }) {
    this.changed();
    const answer = await sendUpdate(update, {
      server,
      open: (payload) => connection.open("acknowledgement", payload),
      clock: this.clock,
      onRetry: (reason) => this.report(`the server takes the update later: ${reason}`),
      isWanted: () => this.isWanted(update),
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
      const left = outbox.filter((each) => each !== update);
      // of a secure sum, whose last message that is, the others are no news
      if (update.sum && update.sum !== "opened" && answered === "accepted") return { outbox: left };
      const version = update.sequence === null && !update.sum ? update.round : Math.max(0, update.round - 1);
      const noted = { version, withdraw: update.withdraw, answer: answered, reason, atMs: this.clock.now() };
      const known = isKept ? withUnknown(memory) : memory;
      return { memory: withAnswered(known, noted), outbox: left };
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

  /**
   * A file of the server's, kept under a key: it is there after a reload. One that is damaged there is downloaded again.
   * @param {string} key @param {BlobPointer} pointer @param {Means} means @param {{version?: number}} [also] kept with it
   * @returns {Promise<{sha256: string, file: Uint8Array, version?: number}>}
   */
  async file(key, pointer, { server, signal }, also = {}) {
    const before = await this.store.get(key);
    const isWhole = before?.sha256 === pointer.sha256 && (await sha256(before.file)) === pointer.sha256;
    const file = isWhole ? before.file : await server.blob(pointer, MAX_FILE_BYTES, signal);
    const kept = { sha256: pointer.sha256, file, ...also };
    if (!isWhole || before.version !== kept.version) await this.store.set(key, kept);
    return kept;
  }

  /**
   * Do what needs a model of the server's. If the model can't be used at all, the status says so from then on, until
   * another one can be used.
   * @template T @param {Announcement} a @param {BlobPointer} model @param {() => Promise<T>} work @returns {Promise<T>}
   */
  async usingModel(a, model, work) {
    try {
      const found = await work();
      await this.noteUse(a, model, "");
      return found;
    } catch (error) {
      if (error instanceof UnusableModelError) await this.noteUse(a, model, error.message.slice(0, MAX_REASON));
      throw error;
    }
  }

  /** @param {Announcement} a @param {BlobPointer} model @param {string} reason why it can't be used; empty: it can */
  noteUse({ instance, epoch }, { sha256: model }, reason) {
    return this.stateStore.change(({ memory }) => {
      const isNews = reason || (memory.unusable && memory.unusable.model !== model);
      if (!isNews || !isOf(memory, { instance, epoch })) return null;
      return { memory: { ...memory, unusable: reason ? { instance, epoch, model, reason } : null } };
    });
  }

  /**
   * Whether something has failed so often, for another reason than the network, that it is left for now; a model that
   * can't be used is left at once.
   * @param {string} of @param {unknown} error
   */
  countFailure(of, error) {
    if (error instanceof UnusableModelError) return true;
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

/** @param {import("./agent_state.js").Memory} memory */
function withUnknown(memory) {
  return { ...memory, sent: UNKNOWN };
}
