/** Wakes whoever waits for something to have changed; notified while nobody waits, it wakes the next one at once. */
export class WakeUp {
  constructor() {
    this.notified = false;
    /** @type {(() => void) | null} */
    this.wake = null;
  }

  notify() {
    this.notified = true;
    this.wake?.();
  }

  /** @param {AbortSignal} signal rejects with its reason @returns {Promise<void>} */
  async wait(signal) {
    while (!this.notified) {
      signal.throwIfAborted();
      await new Promise((resolve) => {
        const done = () => {
          signal.removeEventListener("abort", done);
          this.wake = null;
          resolve(undefined);
        };
        this.wake = done;
        signal.addEventListener("abort", done, { once: true });
      });
    }
    signal.throwIfAborted();
    this.notified = false;
  }
}
