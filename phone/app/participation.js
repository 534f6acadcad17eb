/** This phone in a federation: invited by a link, enrolled, approved, taking part, gone again. */

import { blockerOf } from "./conditions.js";
import { Agent, AGENT_LOCK } from "./protocol/agent.js";
import { beginEnrolment, ENROLMENT, readEnrolmentLink, sayLeft, storedEnrolment } from "./protocol/enrolment.js";
import * as keys from "./protocol/agent_state.js";
import { MASKED_NUMBERS, SUM } from "./protocol/private_sums.js";
import { OUTBOX } from "./protocol/upload.js";

const DATA_CHANGE_DELAY_MS = 10_000;
const SENT = "bytes_sent";
/** Of this app in several tabs: `ending` asks the others to stop, `changed` to look at what is kept, and go on. */
const TABS = "gaitway-participation";
/** The runtime's own files are cached by the worker; these are the federation's. */
const MEMBERSHIP_KEYS = [
  ...[ENROLMENT, keys.MEMORY, keys.MODEL, keys.FEATURE_MODEL, keys.BROADCAST, OUTBOX, SENT],
  ...[keys.PROGRAM, keys.ROUND_BROADCAST, keys.CLIENT, keys.ROUND, keys.CANDIDATES, MASKED_NUMBERS, SUM],
];

/** @typedef {import("./types.js").AgentState} AgentState */

/** @type {AgentState["name"][]} of which none tells that the phone was approved */
const WAITING_STATES = ["waiting_for_approval", "elsewhere"];

export class Participation {
  /**
   * @param {import("./collection/store.js").Store} store @param {import("./types.js").Learner} learner
   * @param {import("./types.js").Embedder} embedder @param {import("./types.js").TrainingHost} host
   */
  constructor(store, learner, embedder, host) {
    this.store = store;
    this.learner = learner;
    this.embedder = embedder;
    this.host = host;
    /** @type {import("./protocol/enrolment.js").EnrolmentLink | null} */ this.invitation = null;
    /** @type {{federation: string, device: string, approved: boolean} | null} */ this.membership = null;
    /** @type {AgentState | null} */ this.state = null;
    /** @type {Agent | null} */ this.agent = null;
    this.bytesSent = 0;
    /** What keeps this phone from taking part until somebody does something. */
    this.problem = "";
    /** @type {Set<() => void>} */ this.watchers = new Set();
    this.ending = new AbortController();
    /** @type {Promise<void>} */ this.running = Promise.resolve();
    this.changedMs = -Infinity;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.later = undefined;
    this.tabs = new BroadcastChannel(TABS);
    this.tabs.onmessage = ({ data }) => void (data === "ending" ? this.end() : this.begin());
    /** @type {Promise<unknown>} One after the other: begin, join, leave. */ this.turn = Promise.resolve();
    store.watchers.add((change) => this.dataChanged(change));
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.retryNow());
  }

  /** Look for the server now, however long it has been away. */
  retryNow() {
    this.agent?.retryNow();
  }

  /**
   * Windows or labels have changed. The agent looks at all of them again, so it hears of it some times a minute alone, but
   * at once of what was deleted: an update that waits may be of it.
   * @param {import("./collection/store.js").Change} change
   */
  dataChanged(change) {
    clearTimeout(this.later);
    const waitMs = change === "deleted" ? 0 : this.changedMs + DATA_CHANGE_DELAY_MS - Date.now();
    if (waitMs > 0) this.later = setTimeout(() => this.dataChanged(change), waitMs);
    else {
      this.changedMs = Date.now();
      this.agent?.dataChanged();
    }
  }

  /** Go on with what is kept: where the last visit ended, or what another tab has changed. */
  begin() {
    return this.inTurn(() => this.again());
  }

  /** @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  inTurn(work) {
    const done = this.turn.then(work);
    this.turn = done.catch(() => {});
    return done;
  }

  async again() {
    await this.end();
    [this.membership, this.state, this.agent, this.bytesSent, this.problem] = [null, null, null, 0, ""];
    this.changed();
    const known = await storedEnrolment(this.store);
    if (!known) return;
    const { federation, device, serverKey } = known;
    this.bytesSent = (await this.store.get(SENT)) ?? 0;
    this.membership = { federation, device, approved: serverKey !== "" };
    this.ending = new AbortController();
    const agent = new Agent({
      store: this.store,
      learner: this.learner,
      embedder: this.embedder,
      host: this.host,
      conditions: blockerOf,
      locks: navigator.locks,
      ask: (url, request) => this.counted(url, request),
      onState: (state) => this.setState(state),
    });
    this.agent = agent;
    this.state = agent.state();
    this.running = agent.run(this.ending.signal).catch((error) => {
      this.problem = error.message;
      this.changed();
    });
    this.changed();
  }

  /** Take a link, or a text that holds one; throws an Error in words. @param {string} text */
  invite(text) {
    this.problem = "";
    const link = readEnrolmentLink(text);
    if (this.membership && this.membership.approved) {
      throw new Error(
        `This phone is in the federation ${this.membership.federation} already: leave that one first, under Data.`,
      );
    }
    if (new URL(link.server).origin !== location.origin) {
      throw new Error(
        `This link is of ${link.server}. Open ${link.server}/phone/ on this phone, and give it the link there.`,
      );
    }
    this.invitation = link;
    this.changed();
  }

  dismiss() {
    this.invitation = null;
    this.changed();
  }

  /** Enrol with the link that was taken. */
  join() {
    return this.inTurn(() => this.enrol());
  }

  async enrol() {
    if (!this.invitation) return;
    if ((await storedEnrolment(this.store))?.serverKey) {
      throw new Error("This phone is in a federation already, by another tab of this browser: leave that one first.");
    }
    await this.end();
    await beginEnrolment(this.store, this.invitation);
    this.invitation = null;
    await this.again();
    this.tabs.postMessage("changed");
  }

  /** Have the phone's sums taken out and send nothing more, or take part again. @param {boolean} takesPart */
  async setTakesPart(takesPart) {
    if (!this.agent) throw new Error("This phone is in no federation: join one first.");
    await this.agent.setTakesPart(takesPart);
  }

  /** Require so much of any plan, besides what was promised; null: that alone. @param {number | null} minDevices */
  async setMinDevices(minDevices) {
    if (!this.agent) throw new Error("This phone is in no federation: join one first.");
    await this.agent.setRequires(minDevices === null ? null : { mode: "masked", minDevices });
  }

  /** Require no more than a refused plan promises. @param {string} shown */
  async acceptPlan(shown) {
    if (!this.agent) throw new Error("This phone is in no federation: join one first.");
    await this.agent.acceptPlan(shown);
  }

  /**
   * Leave the federation, tell the server if it can be reached, and forget key, model and what was not sent.
   * @returns {Promise<string>} why the server was not told; else empty
   */
  leave() {
    return this.inTurn(() => this.forget());
  }

  async forget() {
    this.tabs.postMessage("ending");
    await this.end();
    try {
      // once whichever tab took part has ended, and writes nothing any more
      return await navigator.locks.request(AGENT_LOCK, async () => {
        const untold = await sayLeft(this.store);
        for (const key of MEMBERSHIP_KEYS) await this.store.remove(key);
        return untold;
      });
    } finally {
      this.tabs.postMessage("changed");
      await this.again();
    }
  }

  async end() {
    this.ending.abort();
    await this.running;
  }

  /** @param {AgentState} state */
  setState(state) {
    this.state = state;
    if (this.membership && !this.membership.approved && !WAITING_STATES.includes(state.name)) {
      this.membership.approved = true;
      this.tabs.postMessage("changed");
    }
    this.changed();
  }

  /** Ask the server, and count what is sent. @param {RequestInfo | URL} url @param {RequestInit} [request] */
  async counted(url, request) {
    const body = request?.body;
    const size = typeof body === "string" ? body.length : body instanceof Uint8Array ? body.length : 0;
    if (size) {
      this.bytesSent += size;
      void this.store.set(SENT, this.bytesSent).catch(() => {});
    }
    return fetch(url, request);
  }

  changed() {
    for (const watcher of this.watchers) watcher();
  }
}
