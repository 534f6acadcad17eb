/**
 * A phone's stream of what its server says: kept open, begun anew after growing waits, verified before it is parsed.
 * edge_agent/transport/link.py has the same waits, except for a server that seems to be gone: nobody is there to notice.
 */

import { RefusedError, RevokedError, TrustError, UnreachableError, WireError, messageOf } from "./errors.js";
import { readAcknowledgement, readAnnouncement, readInvitation, readNotice, readOffer } from "./messages.js";
import { textOf, verified } from "./signing.js";

const REFUSED_WAIT_MS = 60_000;
const STABLE_MS = 30_000;
const MIN_HOLD_MS = 300_000;
const MAX_HOLD_MS = 6 * 3_600_000;

/** @type {Record<string, string>} */
const ENDED = {
  replaced: "another connection with this phone's name took its place; is this app open in another browser?",
  refused: "the server has ended this phone's key",
  moved: "another process of the server speaks for the federation now",
  busy: "the server is busy",
};

/**
 * @typedef {object} Listener
 * @property {(a: import("./messages.js").Announcement) => Promise<void>} announced throws a TrustError for an old one
 * @property {(invitation: import("./messages.js").Invitation) => Promise<void>} invited
 * @property {(offer: import("./messages.js").Offer) => Promise<void>} offered
 * @property {(answer: import("./messages.js").Acknowledgement) => Promise<void>} acknowledged
 * @property {(reason: string) => void} untrusted a message was not believed
 * @property {() => void} connected
 * @property {(reason: string) => void} disconnected
 */

export class Connection {
  /**
   * @param {import("./server.js").Server} server
   * @param {{serverKey: CryptoKey, federation: string, device: string, session: string}} who
   * @param {Listener} listener @param {import("./server.js").Clock} clock
   * @param {import("./backoff.js").Backoff} backoff
   */
  constructor(server, who, listener, clock, backoff) {
    this.server = server;
    this.who = who;
    this.listener = listener;
    this.clock = clock;
    this.backoff = backoff;
    this.lastId = "";
    this.openedAtMs = 0;
    this.noticed = "";
    this.holdMs = MIN_HOLD_MS;
  }

  /** Connect, and keep connecting, until the signal. @param {AbortSignal} signal */
  async keep(signal) {
    for (;;) {
      const { ended, minWaitMs } = await this.once(signal);
      if (ended === "lifetime") continue; // nothing is lost: the server keeps what it says meanwhile
      if (this.openedAtMs) this.backoff.answered();
      if (this.openedAtMs && this.clock.now() - this.openedAtMs >= STABLE_MS) this.backoff.reset();
      this.listener.disconnected(this.noticed ? `stopped by the server: ${this.noticed}` : ended);
      if (this.noticed) await this.clock.wait(this.hold() * (0.5 + Math.random() / 2), signal);
      else await this.backoff.wait(signal, minWaitMs);
    }
  }

  /**
   * Take apart a message of the server; throws a TrustError or a WireError.
   * @param {import("./signing.js").ServerKind} kind @param {Uint8Array} payload @returns {Promise<Uint8Array>} its body
   */
  open(kind, payload) {
    const { serverKey, federation, device } = this.who;
    return verified(serverKey, kind, federation, device, payload);
  }

  hold() {
    const found = this.holdMs;
    this.holdMs = Math.min(MAX_HOLD_MS, 2 * this.holdMs);
    return found;
  }

  /** Follow one stream to its end. @param {AbortSignal} signal @returns {Promise<{ended: string, minWaitMs: number}>} */
  async once(signal) {
    [this.openedAtMs, this.noticed] = [0, ""];
    const opened = () => {
      this.openedAtMs = this.clock.now();
      this.listener.connected();
    };
    try {
      for await (const event of this.server.messages(this.lastId, signal, opened)) {
        if (event.name === "end") return this.end(textOf(event.data).slice(0, 80));
        await this.take(event);
        if (event.id) this.lastId = event.id; // what could not be stored is sent again
        if (this.noticed) return { ended: "notice", minWaitMs: 0 };
      }
      signal.throwIfAborted();
      return { ended: "the server has closed the stream, or says nothing any more", minWaitMs: 0 };
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof RevokedError || error instanceof RefusedError) {
        return { ended: error.message, minWaitMs: REFUSED_WAIT_MS };
      }
      if (error instanceof UnreachableError || error instanceof WireError) return { ended: error.message, minWaitMs: 0 };
      return { ended: messageOf(error), minWaitMs: REFUSED_WAIT_MS };
    }
  }

  /** @param {string} reason */
  end(reason) {
    return { ended: reason === "lifetime" ? reason : (ENDED[reason] ?? `the stream ended: ${reason}`), minWaitMs: 0 };
  }

  /** @param {import("./event_stream.js").ServerEvent} event */
  async take({ name, data }) {
    try {
      await this.read(name, data);
    } catch (error) {
      if (!(error instanceof TrustError || error instanceof WireError)) throw error;
      this.listener.untrusted(error.message);
    }
  }

  /** @param {string} name @param {Uint8Array} data */
  async read(name, data) {
    switch (name) {
      case "announcement":
        return this.listener.announced(readAnnouncement(await this.open(name, data)));
      case "invitation":
        return this.listener.invited(readInvitation(await this.open(name, data)));
      case "offer":
        return this.listener.offered(readOffer(await this.open(name, data)));
      case "acknowledgement":
        return this.listener.acknowledged(readAcknowledgement(await this.open(name, data)));
      case "notice": {
        const { session, reason } = readNotice(await this.open(name, data));
        if (session === this.who.session) this.noticed = reason;
      }
    }
  }
}
