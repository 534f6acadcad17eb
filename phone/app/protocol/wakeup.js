/** Wakes whoever waits for something to have changed; rung while nobody waits, it wakes the next one at once. */
export class WakeUp {
  constructor() {
    this.rung = false;
    /** @type {(() => void) | null} */
    this.wake = null;
  }

  ring() {
    this.rung = true;
    this.wake?.();
  }

  /** @param {AbortSignal} signal rejects with its reason @returns {Promise<void>} */
  async wait(signal) {
    while (!this.rung) {
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
    this.rung = false;
  }
}
