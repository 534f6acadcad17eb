/**
 * The phone as a device of its federation: follows the server, sends the sums of its windows when enough have changed,
 * and takes up what comes of everybody's. What must survive a reload is in the store before anything follows from it.
 *
 * Three things run side by side: the stream (connection.js), one piece of work after the other
 * (contribution_worker.js), and what is said of it (status_sender.js).
 */

import { Connection } from "./connection.js";
import { approvalPatience, continueEnrolment, storedEnrolment, waitForApproval } from "./enrolment.js";
import { EnrolError } from "./errors.js";
import { StateStore, announced } from "./agent_state.js";
import { checkOrder } from "./messages.js";
import { lastWasJudged, versionOf } from "./versions.js";
import { Backoff } from "./backoff.js";
import { CLOCK, Server } from "./server.js";
import { publicKeyOf } from "./signing.js";
import { StatusSender } from "./status_sender.js";
import { deviceStatus, nameOf, wordsFor } from "./status.js";
import { ineligibleReason } from "./eligibility.js";
import { Tokens } from "./token.js";
import { isAbout } from "./upload.js";
import { ContributionWorker } from "./contribution_worker.js";

/** @typedef {import("../types.js").AgentState} AgentState */
/** @typedef {import("./messages.js").Announcement} Announcement */

/**
 * @typedef {object} Parts
 * @property {import("../types.js").Store} store
 * @property {import("../types.js").Learner} learner
 * @property {import("../types.js").Embedder} embedder
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
    this.speaker = new StatusSender(clock);
    this.recollection = new StateStore(store);
    /** @type {import("./contribution_worker.js").Heard} */
    this.heard = { announcement: null, connected: false };
    this.work = new ContributionWorker({ store, learner, embedder }, clock, this.recollection, this.heard, () => this.changed());
    this.connectionError = "";
    this.untrusted = "";
    this.approved = false;
    this.elsewhere = false;
    this.signal = new AbortController().signal;
    /** @type {Connection | null} */ this.connection = null;
    /** With the server, until the phone is approved and from then on. */
    this.patience = approvalPatience(clock, () => this.changed());
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
    this.work.bell.ring();
  }

  /**
   * Take part, or have the phone's sums taken out and send nothing more, as its person wishes. It is remembered before
   * anything follows from it, and done once the server is there. @param {boolean} takesPart
   */
  async wish(takesPart) {
    if (!this.approved) throw new Error("This phone does not take part here: it is not approved, or another tab does.");
    await this.recollection.change(({ memory, outbox }) => {
      if (memory.takesPart === takesPart) return null;
      const left = takesPart ? outbox : outbox.filter((parcel) => parcel.withdraw);
      return { memory: { ...memory, takesPart }, outbox: left };
    });
    this.work.contributeAtMs = 0;
    this.changed();
    this.work.bell.ring();
  }

  /** The network is back, or the page in sight: try at once what waits. */
  hurry() {
    this.patience.hurry();
    this.work.bell.ring();
  }

  /** @param {AbortSignal} signal */
  async runAlone(signal) {
    const ended = new AbortController();
    this.signal = AbortSignal.any([signal, ended.signal]);
    this.work.detail = "";
    /** @type {Promise<void>[]} */
    let loops = [];
    try {
      const { federation, device, keys, serverKey, server: url } = await this.approval();
      const who = { url, federation, device };
      const server = new Server(who, new Tokens({ ...who, key: keys.privateKey }, this), this);
      await this.recollection.load([FORM, serverKey, federation, device].join(" "));
      [this.approved, this.work.detail] = [true, ""];
      this.changed();
      const named = { serverKey: await publicKeyOf(serverKey), federation, device, session: this.speaker.session };
      this.patience = new Backoff(this.clock, () => this.changed());
      const connection = new Connection(server, named, this.listener(), this.clock, this.patience);
      this.connection = connection;
      loops = [
        connection.keep(this.signal),
        this.work.keep({ server, connection, device, federation, key: keys.privateKey, signal: this.signal }),
        this.speaker.keep(
          server,
          () => this.status(),
          (reason) => this.notSaid(reason),
          this.signal,
        ),
      ];
      await Promise.all(loops);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      ended.abort();
      await Promise.allSettled(loops); // whoever runs it next, or clears the store, meets nobody
      this.heard.connected = false;
      this.connection = null;
    }
  }

  async approval() {
    const known = await storedEnrolment(this.store);
    if (!known) return continueEnrolment(this.store, this); // throws: there is no link yet
    if (known.serverKey) return known;
    try {
      const { clock, ask, signal } = this;
      const told = (/** @type {string} */ reason) => this.work.told(reason);
      return await waitForApproval(this.store, told, { clock, ask, signal }, this.patience);
    } catch (error) {
      if (error instanceof EnrolError) this.work.told(error.message);
      throw error;
    }
  }

  get announcement() {
    return this.heard.announcement;
  }

  get memory() {
    return this.recollection.known.memory;
  }

  get outbox() {
    return this.recollection.known.outbox;
  }

  // ---- what the connection tells

  /** @returns {import("./connection.js").Listener} */
  listener() {
    const heard = (/** @type {boolean} */ connected, /** @type {string} */ reason) => {
      [this.heard.connected, this.connectionError] = [connected, reason];
      this.speaker.repeat();
      this.changed();
      this.work.bell.ring();
    };
    return {
      announced: (a) => this.announced(a),
      offered: (offer) => this.offered(offer),
      acknowledged: (answer) => this.acknowledged(answer),
      untrusted: (reason) => {
        this.untrusted = reason;
        this.changed();
      },
      connected: () => heard(true, ""),
      disconnected: (reason) => heard(false, reason),
    };
  }

  /** @param {Announcement} a */
  async announced(a) {
    await this.recollection.change((known) => {
      const federation = this.connection?.who.federation ?? "";
      return announced(known, a, checkOrder(a, federation, known.memory.newest, this.clock.now()));
    });
    const before = this.announcement;
    if (before?.epoch !== a.epoch) this.work.contributeAtMs = 0; // what has failed was another state of the server
    this.heard.announcement = a;
    this.untrusted = "";
    if (JSON.stringify(before?.plan) !== JSON.stringify(a.plan)) [this.work.prepared, this.work.stale] = [null, true];
    this.speaker.heard(a.presence_check, this.signal);
    this.changed();
    this.work.bell.ring();
  }

  /** @param {import("./messages.js").Offer} offer */
  async offered(offer) {
    await this.recollection.change(({ memory }) => ({ memory: { ...memory, offer } }));
    this.work.bell.ring();
  }

  /** @param {import("./messages.js").Acknowledgement} answer */
  async acknowledged(answer) {
    const parcel = this.outbox.find((one) => isAbout(one, answer));
    if (parcel && (answer.status === "accepted" || answer.status === "refused")) await this.work.settle(parcel, answer, this.signal);
    this.work.bell.ring();
  }

  // ---- what is said

  changed() {
    this.onState(this.state());
    this.speaker.bell.ring();
  }

  /** @returns {AgentState} */
  state() {
    const now = this.standing();
    return {
      name: this.elsewhere ? "elsewhere" : this.approved ? nameOf(now) : "waiting_for_approval",
      connected: this.heard.connected,
      retry: this.patience.retry,
      version: this.announcement ? (versionOf(this.announcement) ?? 0) : 0,
      takesPart: this.memory.takesPart,
      examples: now.examples,
      reason: this.approved ? wordsFor(now) : this.work.detail,
      plan: this.memory.plan,
      model: this.recollection.known.kept?.model ?? null,
      verdict: this.memory.verdict,
      uploads: this.memory.uploads,
    };
  }

  standing() {
    const { memory, connectionError, untrusted } = this;
    const { announcement: a, connected } = this.heard;
    const { stage, detail, missing, prepared } = this.work;
    const examples = prepared?.train.y.length ?? 0;
    const obstacle = a ? ineligibleReason(a) : "";
    const judged = !prepared || (a !== null && lastWasJudged(a, memory));
    const over = a?.state === "stopped" || (a?.state === "finished" && (judged || Boolean(obstacle)));
    const waiting = this.outbox.length;
    const finished = over && !waiting && !stage;
    return {
      announcement: a,
      memory,
      connected,
      connectionError,
      untrusted,
      finished,
      obstacle,
      missing,
      examples,
      stage,
      waiting,
      detail,
    };
  }

  /** What is to be said now; null while nobody listens. */
  status() {
    return this.heard.connected && this.announcement ? deviceStatus(this.standing()) : null;
  }

  /** @param {string} reason */
  notSaid(reason) {
    this.connectionError = reason;
    this.onState(this.state());
  }
}
