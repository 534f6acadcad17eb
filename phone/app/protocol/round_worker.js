/**
 * What a phone does one thing after the other: it learns for the round that it is invited to, sends what it learnt, and
 * judges the model that comes of it. Whatever fails is tried again; what must last is in the store before it counts.
 */

import { WakeUp } from "./wakeup.js";
import { RefusedError, UnreachableError, WireError, messageOf } from "./errors.js";
import { LIGHT_MODEL, withAnswered, withDone, withoutDone } from "./agent_state.js";
import { releaseFor, withLeft, withoutWithdrawn } from "./releases.js";
import {
  adoptionReport,
  candidateOf,
  described,
  judgement,
  learnt,
  measured,
  releaseReport,
  targetOf,
} from "./rounds.js";
import { MAX_FILE_BYTES, missingData, ineligibleReason } from "./eligibility.js";
import { pendingUpdate, sendUpdate } from "./upload.js";

const FIRST_PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;
const ATTEMPTS = 3;
const MAX_PARCELS = 8;

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.js").Invitation} Invitation */
/** @typedef {import("./upload.js").PendingUpdate} PendingUpdate */

/**
 * @typedef {object} Heard what the server said last
 * @property {Announcement | null} announcement @property {Invitation | null} invitation it may come first
 * @property {boolean} connected
 */

/**
 * @typedef {object} Means
 * @property {import("./server.js").Server} server @property {import("./connection.js").Connection} connection
 * @property {string} device @property {string} federation @property {CryptoKey} key @property {AbortSignal} signal
 */

export class RoundWorker {
  /**
   * @param {import("./agent.js").Parts} parts @param {import("./server.js").Clock} clock
   * @param {import("./agent_state.js").StateStore} recollection @param {Heard} heard @param {() => void} onChange
   */
  constructor({ store, learner, embedder }, clock, recollection, heard, onChange) {
    this.store = store;
    this.learner = learner;
    this.embedder = embedder;
    this.clock = clock;
    this.recollection = recollection;
    this.heard = heard;
    this.changed = onChange;
    this.bell = new WakeUp();
    /** @type {import("../types.js").Prepared | null} */ this.prepared = null;
    this.stale = true; // windows or labels have changed since they were prepared
    this.missing = "";
    /** @type {"" | "learning" | "adopting"} */ this.stage = "";
    this.detail = "";
    this.failures = { of: "", count: 0 };
    /** The last broadcast: a round measures it, and it is judged then. */
    this.broadcast = { sha256: "", file: /** @type {Uint8Array} */ (new Uint8Array(0)) };
  }

  /** @param {Means} means */
  async keep(means) {
    for (let pauseMs = FIRST_PAUSE_MS; ;) {
      await this.bell.wait(means.signal);
      try {
        while (await this.step(means)) pauseMs = FIRST_PAUSE_MS;
      } catch (error) {
        means.signal.throwIfAborted();
        this.told(messageOf(error));
        await this.clock.wait(pauseMs * (0.5 + Math.random() / 2), means.signal);
        pauseMs = Math.min(MAX_PAUSE_MS, 2 * pauseMs);
        this.bell.ring();
      } finally {
        this.stage = "";
        this.changed();
      }
    }
  }

  /** Do the next piece of work; false where there is none. @param {Means} means @returns {Promise<boolean>} */
  async step(means) {
    const a = this.heard.announcement;
    if (!a) return false;
    await this.leaveWithdrawn(a);
    await this.dropDeleted();
    await this.prepare(a);
    const [parcel] = this.recollection.known.outbox;
    if (parcel && this.heard.connected) return this.upload(parcel, means);
    if (ineligibleReason(a) || !this.heard.connected) return false; // a server that is away is asked by the connection alone
    const mine = this.wanted();
    if (mine && this.prepared?.train.y.length) return this.learn(a, mine, means);
    return this.adopt(a, means);
  }

  /** An update that waits is not sent where one of its windows was deleted: its round is learnt again from the rest. */
  async dropDeleted() {
    /** @type {PendingUpdate[]} */
    const gone = [];
    for (const parcel of this.recollection.known.outbox) {
      if (!(await this.store.has(parcel.windows ?? [NaN]))) gone.push(parcel);
    }
    if (!gone.length) return;
    await this.recollection.change(({ memory, outbox }) => {
      return { memory: withoutDone(memory, gone), outbox: outbox.filter((one) => !gone.includes(one)) };
    });
    this.stale = true;
    this.told("an update that waited is not sent: windows that it was made of have been deleted");
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

  /** The invitation that the announcement collects for, and that is not answered yet. @returns {Invitation | null} */
  wanted() {
    const { announcement: a, invitation: mine } = this.heard;
    const { memory } = this.recollection.known;
    const invited =
      a?.state === "collecting" && mine?.instance === a.instance && mine.epoch === a.epoch && mine.round === a.round;
    if (!mine || !invited) return null;
    return memory.done.some(({ round, base }) => round === mine.round && base === mine.model.sha256) ? null : mine;
  }

  /** @param {Announcement} a @param {Invitation} mine @param {Means} means */
  async learn(a, mine, means) {
    const { prepared } = this;
    if (!prepared) return false;
    this.begin("learning");
    const name = `${mine.round} ${mine.model.sha256}`;
    try {
      await this.loadLightModel(a, means);
      const found = await learnt(this, planOf(a), prepared.train);
      const metrics = await this.measure(a, mine, prepared, means);
      const same = () => this.wanted()?.model.sha256 === mine.model.sha256 && this.wanted()?.round === mine.round;
      if (!same()) return true;
      const names = { federation: means.federation, device: means.device };
      const said = described(a, mine, found.classCounts, metrics);
      const about = { ...names, ...said, windows: prepared.ids, createdS: this.clock.now() / 1000 };
      const parcel = await pendingUpdate(means.key, about, found.bytes);
      await this.recollection.change(({ memory, outbox }) => {
        if (!same() || !isOf(memory, a)) return null;
        const next = [...outbox, parcel].slice(-MAX_PARCELS);
        return { memory: withDone(memory, mine.round, mine.model.sha256), outbox: next };
      });
      this.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      await this.failed(name, error, (memory) => withDone(memory, mine.round, mine.model.sha256));
      throw error;
    }
  }

  /**
   * What the manifest says of the round's model. One that cannot be had, or read, hinders nothing: what was learnt is not of it.
   * @param {Announcement} a @param {Invitation} mine @param {import("../types.js").Prepared} prepared
   * @param {Means} means @returns {Promise<Record<string, number>>}
   */
  async measure(a, mine, prepared, means) {
    try {
      const model = candidateOf(await this.download(mine.model, means), a, mine.round - 1);
      return await measured(this, planOf(a), prepared, model);
    } catch (error) {
      if (error instanceof WireError || error instanceof RefusedError) return {};
      throw error;
    }
  }

  /** @param {PendingUpdate} parcel @param {Means} means */
  async upload(parcel, { server, connection, signal }) {
    this.changed();
    const answer = await sendUpdate(parcel, {
      server,
      open: (payload) => connection.open("acknowledgement", payload),
      clock: this.clock,
      onRetry: (reason) => this.told(`the server takes the update later: ${reason}`),
      isWanted: () => this.recollection.known.outbox.includes(parcel),
      signal,
    });
    if (answer) await this.settle(parcel, answer);
    this.detail = "";
    return true;
  }

  /** @param {PendingUpdate} parcel @param {import("./messages.js").Acknowledgement} answer */
  async settle(parcel, { status, reason }) {
    const answered = /** @type {"accepted" | "refused"} */ (status);
    await this.recollection.change(({ memory, outbox }) => {
      if (!outbox.includes(parcel)) return null;
      const noted = { round: parcel.round, answer: answered, reason, atMs: this.clock.now() };
      return { memory: withAnswered(memory, noted), outbox: outbox.filter((one) => one !== parcel) };
    });
    this.changed();
  }

  /** Judge the model that the server would have the phone use. @param {Announcement} a @param {Means} means */
  async adopt(a, means) {
    const { prepared } = this;
    const { kept } = this.recollection.known;
    const release =
      a.plan.rollout.mode === "off" ? null : await releaseFor(means.device, a, this.recollection.known.memory.offer);
    const target = targetOf(a, release, this.recollection.known.memory, kept);
    if (!target || !prepared) return false; // without a labelled window the gate asks what others have measured
    this.begin("adopting");
    try {
      await this.loadLightModel(a, means);
      const file = await this.download(target.pointer, means);
      const candidate = candidateOf(file, a, target.round);
      const found = candidate && (await judgement(this, planOf(a), prepared, candidate, target, kept));
      await this.recollection.change(({ memory }) => {
        if (!isOf(memory, a)) return null;
        const said = found && { verdict: found.verdict, adoption: adoptionReport(a, target, found.verdict) };
        const released = found && release && releaseReport(a, release, found.verdict);
        return {
          memory: { ...memory, judged: target.key, ...said, ...(released && { release: released }) },
          ...(found && found.kept !== kept && { kept: found.kept }),
        };
      });
      this.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      await this.failed(target.key, error, (memory) => ({ ...memory, judged: target.key }));
      throw error;
    }
  }

  /** @param {Announcement} a */
  async leaveWithdrawn(a) {
    const before = this.recollection.known.kept;
    const kept = withoutWithdrawn(before, a.release);
    if (kept === before) return;
    await this.recollection.change(({ memory }) => {
      return { memory: withLeft(memory, before?.release ?? 0, kept?.release ?? 0, a.release), kept };
    });
    this.changed();
  }

  /**
   * Count what failed for another reason than the network, and give it up after some tries.
   * @param {string} of @param {unknown} error
   * @param {(memory: import("./agent_state.js").Memory) => import("./agent_state.js").Memory} givenUp
   */
  async failed(of, error, givenUp) {
    if (!this.heard.connected || error instanceof UnreachableError) return;
    this.failures = { of, count: this.failures.of === of ? this.failures.count + 1 : 1 };
    if (this.failures.count >= ATTEMPTS) await this.recollection.change(({ memory }) => ({ memory: givenUp(memory) }));
  }

  /** Have the light model in the store, and behind the embedder. @param {Announcement} a @param {Means} means */
  async loadLightModel(a, { server, signal }) {
    const pointer = /** @type {import("./messages.generated.js").BlobPointer} */ (a.feature_model);
    let kept = await this.store.get(LIGHT_MODEL);
    if (kept?.sha256 !== pointer.sha256) {
      kept = { sha256: pointer.sha256, file: await server.blob(pointer, MAX_FILE_BYTES, signal) };
      await this.store.set(LIGHT_MODEL, kept);
    }
    await this.embedder.load(kept.file, kept.sha256, planOf(a));
  }

  /** A broadcast, once for a round. @param {import("./messages.generated.js").BlobPointer} pointer @param {Means} means */
  async download(pointer, { server, signal }) {
    if (this.broadcast.sha256 !== pointer.sha256) {
      this.broadcast = { sha256: pointer.sha256, file: await server.blob(pointer, MAX_FILE_BYTES, signal) };
    }
    return this.broadcast.file;
  }

  /** @param {"learning" | "adopting"} stage */
  begin(stage) {
    this.stage = stage;
    this.changed();
  }

  /** @param {string} detail for the person */
  told(detail) {
    this.detail = detail;
    this.changed();
  }
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
