/** Says a phone's status: whenever it has changed, newest alone, with the numbers by which clones are found. */

import { WakeUp } from "./wakeup.js";
import { messageOf } from "./errors.js";
import { textOf, toHex, wrap } from "./signing.js";

/** Within which a fleet answers a presence check, each phone at its own moment. */
const PRESENCE_MS = 2_000;
const PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;

/** @typedef {import("./messages.generated.js").DeviceStatus} DeviceStatus */
/** @typedef {{key: CryptoKey, federation: string, device: string}} Signer */

export class StatusSender {
  /** @param {import("./server.js").Clock} clock */
  constructor(clock) {
    this.clock = clock;
    /** Drawn anew by each run of the app. */
    this.session = toHex(crypto.getRandomValues(new Uint8Array(8)));
    this.number = 0;
    this.wakeUp = new WakeUp();
    /** What the server has taken, or is on its way; empty where it is to be said again. */
    this.reported = "";
    this.presenceCheck = "";
  }

  /** Say it again, also where it has not changed. */
  repeat() {
    this.reported = "";
    this.wakeUp.notify();
  }

  /** The server asks who is there. @param {string} check @param {AbortSignal} signal */
  answerPresenceCheck(check, signal) {
    const first = !this.presenceCheck;
    if (check === this.presenceCheck) return;
    this.presenceCheck = check;
    const answered = first ? null : this.clock.wait(PRESENCE_MS * Math.random(), signal).then(() => this.repeat());
    answered?.catch(() => {});
  }

  /**
   * @param {import("./server.js").Server} server @param {Signer} signer @param {() => DeviceStatus | null} status null:
   * nothing is to be said now @param {(reason: string) => void} onFailure @param {AbortSignal} signal
   */
  async keep(server, signer, status, onFailure, signal) {
    for (let pauseMs = PAUSE_MS; ;) {
      await this.wakeUp.wait(signal);
      const now = status();
      const text = JSON.stringify(now);
      if (!now || text === this.reported) continue;
      this.reported = text;
      this.number++;
      try {
        await server.status({ ...(await signedStatus(now, signer)), session: this.session, number: this.number }, signal);
        pauseMs = PAUSE_MS;
      } catch (error) {
        signal.throwIfAborted();
        onFailure(messageOf(error));
        await this.clock.wait(pauseMs * (0.5 + Math.random() / 2), signal);
        pauseMs = Math.min(MAX_PAUSE_MS, 2 * pauseMs);
        this.repeat();
      }
    }
  }
}

/**
 * Sign what a status refuses, a plan or a model, as edge_agent/storage/credentials.py; the rest isn't signed.
 * @param {DeviceStatus} status @param {Signer} signer @returns {Promise<DeviceStatus>}
 */
export async function signedStatus(status, { key, federation, device }) {
  const { refusal, unusable } = status;
  return {
    ...status,
    ...(refusal && { refusal: textOf(await wrap(key, "refusal", federation, device, refusal)) }),
    ...(unusable && { unusable: textOf(await wrap(key, "model-refusal", federation, device, unusable)) }),
  };
}
