/**
 * Recording while the page is visible: sensors on, screen kept on, windows labelled and kept, in stretches between
 * whatever interrupts them.
 */

import { askForMotion, listenToMotion } from "../recognizer/device_motion.js";
import { MotionStream } from "./motion.js";

/** Silence after which something must be wrong: sensors come sixty times a second. */
const SILENT_MS = 3000;
const GRAVITY = 9.80665;
const LEVELS = 120;

/**
 * @typedef {object} Change of the label: what is done from a time on.
 * @property {number} fromMs @property {string | null} label
 */

export class Recorder {
  /**
   * @param {import("./store.js").Store} store
   * @param {Window & typeof globalThis} page
   */
  constructor(store, page = window) {
    this.store = store;
    this.page = page;
    /** @type {MotionStream | null} */ this.stream = null;
    /** @type {Change[]} */ this.changes = [];
    /** @type {Set<string>} What looks wrong, in words. */ this.warnings = new Set();
    /** Shaking over the last seconds, m/s² beside gravity, about five numbers a second. @type {number[]} */
    this.levels = [];
    /** @type {Set<(windows: import("../types.js").StoredWindow[]) => void>} */ this.listeners = new Set();
    this.work = Promise.resolve();
    /** @type {WakeLockSentinel | null} */ this.wakeLock = null;
    /** @type {() => void} */ this.unlisten = () => {};
    this.startedMs = 0;
    this.wantsToRun = false;
    page.document.addEventListener("visibilitychange", () => this.seen());
  }

  get running() {
    return this.wantsToRun;
  }

  /** The present label. */
  get label() {
    return this.changes.length ? this.changes[this.changes.length - 1].label : null;
  }

  /** Samples a second; 0 while none come. */
  get rateHz() {
    return this.stream && !this.silent ? this.stream.rateHz : 0;
  }

  /** Whether no sample comes although it records. */
  get silent() {
    if (!this.running) return false;
    const last = Math.max(this.startedMs, this.stream?.lastMs ?? 0);
    return Date.now() - last > SILENT_MS;
  }

  /** Begin; a tap must have called it, for iOS asks only then. Throws an Error in words. */
  async start() {
    await askForMotion(this.page);
    this.warnings.clear();
    this.wantsToRun = true;
    this.sign = ((await this.store.get("calibration"))?.sign ?? 1) === -1 ? -1 : 1;
    this.listen();
    await this.keepAwake();
  }

  /** End, and keep what still waited. */
  async stop() {
    this.wantsToRun = false;
    this.setLabel(null);
    this.endStretch();
    await this.wakeLock?.release().catch(() => {});
    this.wakeLock = null;
    await this.work;
  }

  /** From now on this is done; null: nothing that has a name. @param {string | null} label */
  setLabel(label) {
    const now = Date.now();
    this.changes = [...this.changes.filter((each) => each.fromMs > now - 3_600_000), { fromMs: now, label }];
  }

  /**
   * What was done from a time on was not that: a window that ends later, but lies mostly within, has no label either.
   * When this returns, windows that came before are in the store. @param {string} label @param {number} fromMs
   */
  async takeBack(label, fromMs = -Infinity) {
    this.changes = this.changes.map((each) => (each.label === label && each.fromMs >= fromMs ? { ...each, label: null } : each));
    await this.work;
  }

  /** @param {number} ms @returns {string | null} */
  labelAt(ms) {
    return this.changes.findLast((each) => each.fromMs <= ms)?.label ?? null;
  }

  listen() {
    const offsetMs = Date.now() - this.page.performance.now();
    this.startedMs = Date.now();
    const session = new Date(this.startedMs).toISOString();
    const stream = new MotionStream({ offsetMs, session, sign: this.sign, labelAt: (ms) => this.labelAt(ms) });
    this.stream = stream;
    let shaking = 0;
    let count = 0;
    this.unlisten = listenToMotion(this.page, (time, acc, gyro) => {
      const { windows, warnings } = stream.push(time, acc, gyro);
      shaking = Math.max(shaking, Math.abs(Math.hypot(...acc) - GRAVITY) || 0);
      if (++count % 12 === 0) {
        this.levels = [...this.levels.slice(1 - LEVELS), shaking];
        shaking = 0;
      }
      for (const words of warnings) this.warnings.add(words);
      this.keep(windows);
    });
  }

  /** The sensors pause with the page: what came before ends there. */
  endStretch() {
    this.unlisten();
    this.unlisten = () => {};
    if (this.stream) this.keep(this.stream.finish());
    this.stream = null;
  }

  async seen() {
    if (!this.running) return;
    if (this.page.document.visibilityState === "hidden") this.endStretch();
    else if (!this.stream) {
      this.listen();
      await this.keepAwake();
    }
  }

  async keepAwake() {
    this.wakeLock = (await this.page.navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
  }

  /** @param {import("../types.js").StoredWindow[]} windows */
  keep(windows) {
    if (!windows.length) return;
    for (const listener of this.listeners) listener(windows);
    this.work = this.work
      .then(() => this.store.addWindows(windows))
      .catch((error) => void this.warnings.add(error.message));
  }
}
