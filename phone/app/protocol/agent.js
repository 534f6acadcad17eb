/**
 * The phone as a device of its federation: follows the server, sends the sums of its windows when enough have changed or
 * trains the rounds that it is invited to, and takes up what comes of everybody's. What must survive a reload is in the store before anything follows from it.
 *
 * Three things run side by side: the stream (connection.js), one piece of work after the other
 * (device_worker.js), and what is said of it (status_sender.js).
 */

import { Connection } from "./connection.js";
import { approvalBackoff, continueEnrolment, storedEnrolment, waitForApproval } from "./enrolment.js";
import { EnrolError } from "./errors.js";
import { StateStore, announced } from "./agent_state.js";
import { checkOrder } from "./messages.js";
import { lastWasJudged, versionOf } from "./versions.js";
import { Backoff } from "./backoff.js";
import { CLOCK, Server } from "./server.js";
import { addedSequence, isPrivate } from "./private_sums.js";
import { publicKeyOf, toBase64, utf8 } from "./signing.js";
import { StatusSender } from "./status_sender.js";
import { deviceStatus, nameOf, reasonFor } from "./status.js";
import { ineligibleReason } from "./eligibility.js";
import { describePromises, requiredBy } from "./promises.js";
import { Tokens } from "./token.js";
import { isAbout } from "./upload.js";
import { DeviceWorker } from "./device_worker.js";

/** @typedef {import("../types.js").AgentState} AgentState */
/** @typedef {import("./messages.js").Announcement} Announcement */

/**
 * @typedef {object} Parts
 * @property {import("../types.js").Store} store
 * @property {import("../types.js").Learner} learner
 * @property {import("../types.js").Embedder} embedder
 * @property {import("../types.js").TrainingHost} host
 * @property {import("./round_worker.js").Conditions} [conditions]
 * @property {(state: AgentState) => void} [onState] called whenever it has changed
 * @property {import("./server.js").Clock} [clock]
 * @property {typeof fetch} [ask]
 * @property {LockManager} [locks] of the browser: of several tabs one alone takes part
 */

/** Held by the tab that takes part; with it nobody else writes what the agent keeps. */
export const AGENT_LOCK = "gaitway-agent";
/** Of what is remembered: what an earlier form of it says goes. */
const FORM = "2";

export class Agent {
  /** @param {Parts} parts */
  constructor({
    store,
    learner,
    embedder,
    host,
    conditions,
    onState = () => {},
    clock = CLOCK,
    ask = (...given) => fetch(...given),
    locks,
  }) {
    this.store = store;
    this.onState = onState;
    this.clock = clock;
    this.ask = ask;
    this.locks = locks;
    this.statusSender = new StatusSender(clock);
    this.stateStore = new StateStore(store);
    /** @type {import("./device_worker.js").ServerState} */
    this.serverState = { announcement: null, connected: false };
    this.work = new DeviceWorker({ store, learner, embedder, host, conditions }, clock, this.stateStore, this.serverState, () => this.changed());
    this.connectionError = "";
    this.untrusted = "";
    /** @type {Announcement | null} the last one, where its plan is refused */ this.refused = null;
    this.publicKey = "";
    this.approved = false;
    this.elsewhere = false;
    this.signal = new AbortController().signal;
    /** @type {Connection | null} */ this.connection = null;
    /** With the server, until the phone is approved and from then on. */
    this.backoff = approvalBackoff(clock, () => this.changed());
  }

  /** Take part until the signal; throws an EnrolError where only a new link helps. @param {AbortSignal} signal */
  async run(signal) {
    if (!this.locks) return this.runAlone(signal);
    this.elsewhere = true;
    this.changed();
    await this.locks
      .request(AGENT_LOCK, { signal }, () => {
        this.elsewhere = false;
        return this.runAlone(signal);
      })
      .catch((error) => {
        if (!signal.aborted) throw error;
      });
  }

  /** Windows or labels have changed; of what was deleted nothing more is sent, not even of an upload under way. */
  dataChanged() {
    this.work.stale = true;
    this.work.dropDeleted().catch(() => {}); // looked for again before anything is sent
    this.work.wakeUp.notify();
  }

  /**
   * Take part, or have the phone's sums taken out and send nothing more, as its person wishes. It is remembered before
   * anything follows from it, and done once the server is there. @param {boolean} takesPart
   */
  async setTakesPart(takesPart) {
    if (!this.approved) throw new Error("This phone does not take part here: it is not approved, or another tab does.");
    await this.stateStore.change(({ memory, outbox }) => {
      if (memory.takesPart === takesPart) return null;
      const left = takesPart ? outbox : outbox.filter((update) => update.withdraw);
      return { memory: { ...memory, takesPart }, outbox: left };
    });
    this.work.contributeAtMs = 0;
    this.changed();
    this.work.wakeUp.notify();
  }

  /** The network is back, or the page in sight: try at once what waits. */
  retryNow() {
    this.backoff.retryNow();
    this.work.wakeUp.notify();
  }

  /** @param {AbortSignal} signal */
  async runAlone(signal) {
    const ended = new AbortController();
    this.signal = AbortSignal.any([signal, ended.signal]);
    this.work.detail = "";
    /** @type {Promise<void>[]} */
    let loops = [];
    try {
      const { federation, device, keys, serverKey, promises, server: url } = await this.approval();
      const who = { url, federation, device };
      const server = new Server(who, new Tokens({ ...who, key: keys.privateKey }, this), this);
      await this.stateStore.load([FORM, serverKey, federation, device].join(" "));
      await this.stateStore.change(({ memory }) => (memory.pinned ? null : { memory: { ...memory, pinned: promises } }));
      [this.approved, this.work.detail] = [true, ""];
      this.changed();
      const named = { serverKey: await publicKeyOf(serverKey), federation, device, session: this.statusSender.session };
      this.backoff = new Backoff(this.clock, () => this.changed());
      const connection = new Connection(server, named, this.listener(), this.clock, this.backoff);
      this.connection = connection;
      const identity = new Uint8Array(await crypto.subtle.exportKey("raw", keys.publicKey));
      this.publicKey = toBase64(identity);
      loops = [
        connection.keep(this.signal),
        this.work.keep({ server, connection, device, federation, key: keys.privateKey, identity, signal: this.signal }),
        this.statusSender.keep(
          server,
          { key: keys.privateKey, federation, device },
          () => this.status(),
          (reason) => this.statusFailed(reason),
          this.signal,
        ),
      ];
      await Promise.all(loops);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      ended.abort();
      await Promise.allSettled(loops); // whoever runs it next, or clears the store, meets nobody
      this.serverState.connected = false;
      this.connection = null;
    }
  }

  async approval() {
    const known = await storedEnrolment(this.store);
    if (!known) return continueEnrolment(this.store, this); // throws: there is no link yet
    if (known.serverKey) return known;
    try {
      const { clock, ask, signal } = this;
      const report = (/** @type {string} */ reason) => this.work.report(reason);
      return await waitForApproval(this.store, report, { clock, ask, signal }, this.backoff);
    } catch (error) {
      if (error instanceof EnrolError) this.work.report(error.message);
      throw error;
    }
  }

  get announcement() {
    return this.serverState.announcement;
  }

  get memory() {
    return this.stateStore.current.memory;
  }

  get outbox() {
    return this.stateStore.current.outbox;
  }

  // ---- what the connection tells

  /** @returns {import("./connection.js").Listener} */
  listener() {
    const setConnected = (/** @type {boolean} */ connected, /** @type {string} */ reason) => {
      [this.serverState.connected, this.connectionError] = [connected, reason];
      this.statusSender.repeat();
      this.changed();
      this.work.wakeUp.notify();
    };
    return {
      announced: (a) => this.announced(a),
      invited: (invitation) => this.invited(invitation),
      offered: (offer) => this.offered(offer),
      acknowledged: (answer) => this.acknowledged(answer),
      untrusted: (reason) => {
        this.untrusted = reason;
        this.changed();
      },
      connected: () => setConnected(true, ""),
      disconnected: (reason) => setConnected(false, reason),
    };
  }

  /** @param {Announcement} a */
  async announced(a) {
    await this.stateStore.change((state) => {
      const federation = this.connection?.who.federation ?? "";
      return announced(state, a, checkOrder(a, federation, state.memory.newest, this.clock.now()));
    });
    this.statusSender.answerPresenceCheck(a.presence_check, this.signal);
    await this.follow(a);
  }

  /** Go by an announcement, or refuse its plan. @param {Announcement} a */
  async follow(a) {
    const { refused } = this.memory;
    this.refused = refused ? a : null;
    if (refused) {
      this.serverState.announcement = null;
      this.changed();
      return;
    }
    await this.keepRevoked(a);
    const before = this.announcement;
    if (before?.epoch !== a.epoch) this.work.contributeAtMs = 0; // what has failed was another state of the server
    this.serverState.announcement = a;
    this.untrusted = "";
    if (JSON.stringify(before?.plan) !== JSON.stringify(a.plan)) [this.work.prepared, this.work.stale] = [null, true];
    this.changed();
    this.work.wakeUp.notify();
  }

  /** Keep a newer list of revoked identities; an older one, or one that isn't signed, changes nothing. @param {Announcement} a */
  async keepRevoked({ plan, revoked }) {
    if (!revoked || !plan.secure.voucher || revoked === this.memory.revoked || !this.connection) return;
    const { keyOf, readRevoked } = await import("../secure_sums/vouching.js");
    const { federation } = this.connection.who;
    const key = keyOf(plan.secure.voucher);
    const serialOf = (/** @type {string} */ text) => readRevoked(key, federation, utf8(text)).then(({ serial }) => serial, () => -1);
    const known = this.memory.revoked ? await serialOf(this.memory.revoked) : -1;
    if ((await serialOf(revoked)) > known) await this.stateStore.change(({ memory }) => ({ memory: { ...memory, revoked } }));
  }

  /**
   * Require of a plan what the person asks for, besides what was promised; null: that alone.
   * @param {Partial<import("./promises.js").Promises> | null} requires
   */
  setRequires(requires) {
    return this.reconsidered((memory) => ({ ...memory, requires }));
  }

  /** Require no more than what the refused plan promises. @param {string} shown what the person has seen of its promises */
  acceptPlan(shown) {
    return this.reconsidered((memory) => {
      const { refused } = memory;
      if (!refused || describePromises(refused.promises) !== shown) {
        throw new Error("The server has changed its plan since. Look at what it promises now.");
      }
      return { ...memory, pinned: refused.promises, requires: null };
    });
  }

  /** @param {(memory: import("./agent_state.js").Memory) => import("./agent_state.js").Memory} change of what is required */
  async reconsidered(change) {
    if (!this.approved) throw new Error("This phone does not take part here: it is not approved, or another tab does.");
    const a = this.refused ?? this.announcement;
    await this.stateStore.change((state) => {
      const memory = change(state.memory);
      return a ? announced({ ...state, memory }, a, memory.newest) : { memory };
    });
    if (a) await this.follow(a);
    this.changed();
    this.work.wakeUp.notify();
  }

  /** @param {import("./messages.js").Invitation} invitation */
  async invited(invitation) {
    await this.stateStore.change(({ memory }) => {
      const voucher = invitation.voucher || memory.voucher;
      return { memory: { ...memory, invitation, voucher, followed: false } };
    });
    this.changed();
    this.work.wakeUp.notify();
  }

  /** @param {import("./messages.js").Offer} offer */
  async offered(offer) {
    await this.stateStore.change(({ memory }) => ({ memory: { ...memory, offer } }));
    this.work.wakeUp.notify();
  }

  /** @param {import("./messages.js").Acknowledgement} answer */
  async acknowledged(answer) {
    const update = this.outbox.find((each) => isAbout(each, answer));
    if (update && (answer.status === "accepted" || answer.status === "refused")) await this.work.settle(update, answer, this.signal);
    this.work.wakeUp.notify();
  }

  // ---- what is said

  changed() {
    this.onState(this.state());
    this.statusSender.wakeUp.notify();
  }

  /** @returns {AgentState} */
  state() {
    const now = this.phoneState();
    return {
      name: this.elsewhere ? "elsewhere" : this.approved ? nameOf(now) : "waiting_for_approval",
      connected: this.serverState.connected,
      retry: this.backoff.retry,
      version: this.announcement ? (versionOf(this.announcement) ?? 0) : 0,
      takesPart: this.memory.takesPart,
      examples: now.examples,
      reason: this.approved ? reasonFor(now) : this.work.detail,
      plan: this.memory.plan,
      model: this.stateStore.current.kept?.model ?? null,
      verdict: this.memory.verdict,
      uploads: this.memory.uploads,
      isContinuous: (this.announcement ?? this.refused)?.continuous ?? true,
      required: this.memory.pinned || this.memory.requires ? describePromises(requiredBy(this.memory)) : "",
      requires: this.memory.requires ?? null,
      publicKey: this.publicKey,
      offered: this.memory.refused ? describePromises(this.memory.refused.promises) : "",
      progress: this.work.rounds.progress,
    };
  }

  phoneState() {
    const { memory, connectionError, untrusted } = this;
    const { announcement: a, connected } = this.serverState;
    const { stage, detail, missing, prepared } = this.work;
    const examples = prepared?.train.y.length ?? 0;
    const ineligible = a ? ineligibleReason(a) : "";
    const judged = !prepared || (a !== null && lastWasJudged(a, memory));
    const over = a?.state === "stopped" || (a?.state === "finished" && (judged || Boolean(ineligible)));
    const waiting = this.outbox.length;
    const finished = over && !waiting && !stage;
    const adds = a !== null && a.continuous && isPrivate(a);
    return {
      sums: adds ? addedSequence(a, memory, prepared?.keys ?? []) : 0,
      announcement: a,
      memory,
      connected,
      connectionError,
      untrusted,
      finished,
      ineligibleReason: ineligible,
      missing,
      examples,
      stage,
      waiting,
      detail,
    };
  }

  /** What is to be said now; null while nobody listens. */
  status() {
    return this.serverState.connected && (this.announcement || this.refused) ? deviceStatus(this.phoneState()) : null;
  }

  /** @param {string} reason */
  statusFailed(reason) {
    this.connectionError = reason;
    this.onState(this.state());
  }
}
