/**
 * How long a phone waits for a server that does not answer: seconds at first, up to an hour once it seems to be gone for
 * good. Whoever holds the phone may cut a wait short.
 */

const MIN_MS = 500;
const MAX_MS = 30_000;
/** Without an answer for so long a server seems to be gone. */
const UNREACHABLE_AFTER_MS = 600_000;
const MAX_UNREACHABLE_WAIT_MS = 3_600_000;

/** @typedef {{sinceMs: number, nextMs: number}} Retry since when nobody has answered, and when it is tried again */

export class Backoff {
  /**
   * @param {import("./server.js").Clock} clock @param {() => void} onChange of `retry`
   * @param {{minMs?: number, maxMs?: number}} [options] of a server that is not gone
   */
  constructor(clock, onChange, { minMs = MIN_MS, maxMs = MAX_MS } = {}) {
    this.clock = clock;
    this.onChange = onChange;
    this.minMs = minMs;
    this.maxMs = maxMs;
    this.waitMs = minMs;
    /** @type {number | null} */ this.sinceMs = null;
    /** Of a server that seems to be gone, while it waits. @type {Retry | null} */ this.retry = null;
    /** @type {AbortController | null} */ this.waiting = null;
  }

  /** The server is there; what else there is to wait for is waited for as before. */
  answered() {
    this.sinceMs = null;
    this.waitMs = Math.min(this.waitMs, this.maxMs);
  }

  /** All is well: the next waits are short ones. */
  reset() {
    this.answered();
    this.waitMs = this.minMs;
  }

  /** Wait for the next try. @param {AbortSignal | undefined} signal @param {number} [minWaitMs] */
  async wait(signal, minWaitMs = 0) {
    const now = this.clock.now();
    this.sinceMs ??= now;
    const isUnreachable = now - this.sinceMs >= UNREACHABLE_AFTER_MS;
    const ms = Math.max(this.waitMs, minWaitMs) * (0.5 + Math.random() / 2);
    this.waitMs = Math.min(isUnreachable ? MAX_UNREACHABLE_WAIT_MS : this.maxMs, 2 * this.waitMs);
    const cutShort = new AbortController();
    this.waiting = cutShort;
    if (isUnreachable) this.setRetry({ sinceMs: this.sinceMs, nextMs: now + ms });
    try {
      await this.clock.wait(ms, signal ? AbortSignal.any([signal, cutShort.signal]) : cutShort.signal);
    } catch (error) {
      signal?.throwIfAborted();
      if (!cutShort.signal.aborted) throw error;
    } finally {
      this.waiting = null;
      if (isUnreachable) this.setRetry(null);
    }
  }

  /** Do not wait for the next try: the network, or the person, is back. */
  retryNow() {
    this.waiting?.abort();
  }

  /** @param {Retry | null} retry */
  setRetry(retry) {
    this.retry = retry;
    this.onChange();
  }
}
