/**
 * The phone's key for some minutes (`POST /v1/enrol/token`), by a signature of the private key that never leaves the
 * browser. It is held in memory, and renewed before its end.
 */

import { number, object, text } from "./checks.js";
import { readJson } from "./messages.js";
import { EnrolError, RevokedError, UnreachableError } from "./errors.js";
import { CLOCK, exchange, reasonOf } from "./server.js";
import { signed } from "./signing.js";

const tokenAnswer = object({ token: text(256, /^[\x21-\x7e]+$/), expires_in_s: number() }, { others: true });
const EARLY_MS = 60_000;
const MAX_ATTEMPTS = 5;

/** @typedef {{url: string, federation: string, device: string, key: CryptoKey}} Who */

export class Tokens {
  /** @param {Who} who @param {import("./enrolment.js").Options} [options] */
  constructor(who, { ask = (...given) => fetch(...given), clock = CLOCK, signal } = {}) {
    this.who = who;
    this.signal = signal;
    this.ask = ask;
    this.clock = clock;
    this.token = "";
    this.renewAtMs = 0;
    this.issuedAtMs = 0;
    /** @type {Promise<string> | null} */
    this.asking = null;
  }

  /** A token that is good for some time yet. @returns {Promise<string>} throws an EnrolError or an UnreachableError */
  async get() {
    if (this.token && this.clock.now() < this.renewAtMs) return this.token;
    this.asking ??= this.make().finally(() => (this.asking = null));
    return this.asking;
  }

  /** The server does not take it any more. @param {string} token */
  drop(token) {
    if (this.token === token) this.token = "";
  }

  /** @returns {Promise<string>} */
  async make() {
    const { url, federation, device, key } = this.who;
    for (let tries = 1; ; tries++) {
      // the same request makes one token: two in one millisecond need two times
      this.issuedAtMs = Math.max(Math.floor(this.clock.now()), this.issuedAtMs + 1);
      const signature = await signed(key, "token", federation, device, String(this.issuedAtMs));
      const body = JSON.stringify({ federation, device, issued_at_ms: this.issuedAtMs, signature });
      const request = { method: "POST", body, headers: { "Content-Type": "application/json" } };
      const answer = await exchange(
        this.ask,
        new URL("v1/enrol/token", url.endsWith("/") ? url : `${url}/`),
        request,
        this.signal,
      );
      if (answer.status === 201) {
        const made = readJson(tokenAnswer, answer.body, "token");
        const lifeMs = 1000 * made.expires_in_s;
        this.renewAtMs = this.clock.now() + lifeMs - Math.min(EARLY_MS, lifeMs / 4);
        this.token = made.token;
        return this.token;
      }
      const again = answer.status === 409 || answer.status === 503;
      if (!again || tries >= MAX_ATTEMPTS) throw refusal(answer);
      if (answer.status === 503) await this.clock.wait(answer.retryAfterMs, this.signal);
    }
  }
}

/** @param {import("./server.js").Answer} answer @returns {Error} */
function refusal(answer) {
  const problem = `the server gives this phone no key: ${reasonOf(answer)}`;
  switch (answer.status) {
    case 401:
      return new RevokedError(`${problem}; another device has enrolled under its name: ask the operator for a new link`);
    case 403:
      return new RevokedError(`${problem}; ask the operator to approve this phone, or for a new link`);
    case 422:
      return new EnrolError(`${problem}; is this phone's clock right? Set it to the time of the network`);
    case 429:
      return new UnreachableError(`${problem}; it made many in short time: wait some minutes`);
    default:
      return answer.status >= 500 ? new UnreachableError(problem) : new EnrolError(problem);
  }
}
