/**
 * One device's HTTP to its server: docs/protocol.md, 'Over HTTP'. What is read is bounded, nothing is redirected, and
 * the key stands in a header alone.
 */

import { MESSAGE_BYTES } from "./messages.generated.js";
import { RefusedError, RevokedError, UnreachableError, WireError, messageOf } from "./errors.js";
import { eventsOf } from "./event_stream.js";
import { joined, sha256 } from "./signing.js";

const ANSWER_BYTES = 2 * MESSAGE_BYTES;
const TIMEOUT_MS = 30_000;
/** The server says something every 15 s. */
const SILENCE_MS = 45_000;
const MAX_PAUSE_MS = 60_000;
const BUSY = [429, 503, 507];
const WHAT_TO_DO = "ask the operator for a new link if this goes on";

/** @typedef {{now: () => number, wait: (ms: number, signal?: AbortSignal) => Promise<void>}} Clock Unix milliseconds */
/** @typedef {{status: number, body: Uint8Array, retryAfterMs: number}} Answer */
/** @typedef {{get: () => Promise<string>, drop: (token: string) => void}} TokenSource */

/** @type {Clock} */
export const CLOCK = {
  now: () => Date.now(),
  wait: (ms, signal) =>
    new Promise((resolve, reject) => {
      const done = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        resolve();
      };
      const stop = () => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(done, ms);
      if (signal?.aborted) stop();
      else signal?.addEventListener("abort", stop, { once: true });
    }),
};

/**
 * Send one request and read the whole answer, whatever its status is; throws an UnreachableError, also where the server
 * says nothing for long. A large file takes its time.
 * @param {typeof fetch} ask @param {string | URL} url @param {RequestInit} request @param {AbortSignal} [signal]
 * @param {number} [maxBytes] bytes of the answer @returns {Promise<Answer>}
 */
export async function exchange(ask, url, request, signal, maxBytes = ANSWER_BYTES) {
  const late = new AbortController();
  const stop = () => late.abort();
  let timer = setTimeout(stop, TIMEOUT_MS);
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(stop, TIMEOUT_MS);
  };
  const either = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
  try {
    const answer = await ask(url, { ...request, ...REQUEST_OPTIONS, signal: either });
    const retryAfterMs = millisecondsOf(answer.headers.get("Retry-After"));
    return { status: answer.status, body: await bounded(answer, maxBytes, heard), retryAfterMs };
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof WireError) throw error;
    const why = late.signal.aborted ? `it has said nothing for ${TIMEOUT_MS / 1000} s` : messageOf(error);
    throw new UnreachableError(`the server at ${new URL(url).origin} cannot be reached: ${why}`);
  } finally {
    clearTimeout(timer);
  }
}

/** @type {RequestInit} nothing of the browser's goes along, and nobody sends a phone elsewhere with its key */
const REQUEST_OPTIONS = { redirect: "error", credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" };

/** What a server says is wrong, in its own words. @param {Answer} answer @returns {string} */
export function reasonOf({ status, body }) {
  try {
    return `${status}: ${String(JSON.parse(new TextDecoder().decode(body)).detail).slice(0, 500)}`;
  } catch {
    return `${status}: it does not say why; is the address that of Gaitway's server?`;
  }
}

export class Server {
  /**
   * @param {{url: string, federation: string, device: string}} who @param {TokenSource} tokens
   * @param {{ask?: typeof fetch, clock?: Clock}} [options]
   */
  constructor({ url, federation, device }, tokens, { ask = (...given) => fetch(...given), clock = CLOCK } = {}) {
    this.base = new URL(url.endsWith("/") ? url : `${url}/`);
    this.path = `v1/federations/${federation}/devices/${device}`;
    this.tokens = tokens;
    this.ask = ask;
    this.clock = clock;
  }

  /** Say what the device does. @param {object} status a DeviceStatus @param {AbortSignal} [signal] */
  async status(status, signal) {
    const body = JSON.stringify(status);
    await this.request(
      "POST",
      `${this.path}/status`,
      { body, headers: { "Content-Type": "application/json" } },
      signal,
    );
  }

  /**
   * Send a part of an update. @param {string} updateId @param {"begin" | "end" | number} part a number: that chunk
   * @param {Uint8Array} body @param {AbortSignal} [signal] @param {() => boolean} [isWanted] false: it isn't sent again
   * @returns {Promise<Uint8Array | null>} the signed acknowledgement, if there is one
   */
  async update(updateId, part, body, signal, isWanted) {
    const chunk = typeof part === "number";
    const path = `${this.path}/update/${updateId}/${chunk ? `chunk/${part}` : part}`;
    const request = { body: /** @type {BodyInit} */ (body), headers: { "Content-Type": "application/octet-stream" } };
    const answer = await this.request(chunk ? "PUT" : "POST", path, request, signal, undefined, isWanted);
    return answer.status === 200 && answer.body.length ? answer.body : null;
  }

  /**
   * Download a blob of at most so many bytes; throws a WireError if it is another one than was announced.
   * @param {import("./messages.generated.js").BlobPointer} pointer @param {number} maxBytes @param {AbortSignal} [signal]
   * @returns {Promise<Uint8Array>}
   */
  async blob({ sha256: expected, size, url }, maxBytes, signal) {
    if (size > maxBytes) throw new WireError(`a file of ${size} bytes was announced, at most ${maxBytes} are downloaded here`);
    const answer = await this.request("GET", this.placeOf(url), {}, signal, size);
    if (answer.body.length !== size)
      throw new WireError(`${url} has ${answer.body.length} bytes, announced were ${size}`);
    const actual = await sha256(answer.body);
    if (actual !== expected)
      throw new WireError(`${url} has sha256 ${actual.slice(0, 16)}…, announced was ${expected.slice(0, 16)}…`);
    return answer.body;
  }

  /** The whole URL of a pointer, which must be of the server's own origin. @param {string} pointed @returns {URL} */
  placeOf(pointed) {
    let url = null;
    try {
      url = new URL(pointed.startsWith("/") && !pointed.startsWith("//") ? pointed.slice(1) : pointed, this.base);
    } catch {
      // refused below
    }
    if (!url || url.origin !== this.base.origin || url.username || url.password || pointed.includes("\\")) {
      throw new WireError(
        `${pointed.slice(0, 200)} was announced, but files are fetched from ${this.base.origin} alone`,
      );
    }
    return url;
  }

  /**
   * Follow what the server says, until the stream ends; throws an UnreachableError or a RefusedError.
   * @param {string} lastId @param {AbortSignal} signal @param {() => void} onOpen
   * @returns {AsyncGenerator<import("./event_stream.js").ServerEvent, void>}
   */
  async *messages(lastId, signal, onOpen) {
    const answer = await this.open(lastId, signal);
    if (!answer.body || !(answer.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
      throw new UnreachableError("the server answers with no stream; is its address right?");
    }
    onOpen();
    try {
      yield* eventsOf(answer.body, SILENCE_MS, signal);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof TypeError || error instanceof DOMException) {
        throw new UnreachableError(`the server's stream broke off: ${messageOf(error)}`);
      }
      throw error;
    }
  }

  /** @param {string} lastId @param {AbortSignal} signal @returns {Promise<Response>} */
  async open(lastId, signal) {
    for (let tries = 1; ; tries++) {
      const token = await this.tokens.get();
      const headers = {
        Authorization: `Bearer ${token}`,
        Accept: "text/event-stream",
        ...(lastId && { "Last-Event-ID": lastId }),
      };
      let answer;
      try {
        answer = await this.ask(new URL(`${this.path}/messages`, this.base), { ...REQUEST_OPTIONS, headers, signal });
        if (answer.ok) return answer;
      } catch (error) {
        signal.throwIfAborted();
        throw new UnreachableError(`the server at ${this.base.origin} cannot be reached: ${messageOf(error)}`);
      }
      const body = await bounded(answer, ANSWER_BYTES);
      const reply = { status: answer.status, body, retryAfterMs: millisecondsOf(answer.headers.get("Retry-After")) };
      if (answer.status === 401 && tries === 1) this.tokens.drop(token);
      else throw this.refusal(reply, "the server does not open a stream");
    }
  }

  /**
   * Send a request until it is taken: a busy server says when to send it again, and a token that has ended is replaced
   * once. Throws a RefusedError, or an UnreachableError.
   * @param {string} method @param {string | URL} path @param {RequestInit & {headers?: Record<string, string>}} request
   * @param {AbortSignal} [signal] @param {number} [maxBytes] @param {() => boolean} [isWanted] false: it isn't sent again
   * @returns {Promise<Answer>}
   */
  async request(method, path, request, signal, maxBytes, isWanted = () => true) {
    for (let tries = 1, replaced = false; ; tries++) {
      const token = await this.tokens.get();
      const headers = { ...request.headers, Authorization: `Bearer ${token}` };
      const answer = await exchange(this.ask, new URL(path, this.base), { ...request, method, headers }, signal, maxBytes);
      if (answer.status >= 200 && answer.status < 300) return answer;
      if (answer.status === 401 && !replaced) {
        replaced = true;
        this.tokens.drop(token);
      } else if (BUSY.includes(answer.status) && tries < 20 && isWanted()) {
        await this.clock.wait(answer.retryAfterMs * (1 + Math.random() / 2), signal);
        if (!isWanted()) throw this.refusal(answer, "what was to be sent is not wanted any more");
      } else throw this.refusal(answer, "the server refuses what this phone says");
    }
  }

  /** @param {Answer} answer @param {string} what @returns {Error} */
  refusal(answer, what) {
    const words = `${what}: ${reasonOf(answer)}`;
    if (answer.status >= 500 || answer.status === 429) return new UnreachableError(words);
    if (answer.status === 401 || answer.status === 403) return new RevokedError(`${words}; ${WHAT_TO_DO}`);
    return new RefusedError(words, answer.status);
  }
}

/**
 * Read a body of at most so many bytes; `onPiece` is called for each piece.
 * @param {Response} answer @param {number} maxBytes @param {() => void} [onPiece]
 */
async function bounded(answer, maxBytes, onPiece = () => {}) {
  const parts = [];
  let size = 0;
  const reader = answer.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    onPiece();
    size += value.length;
    if (size > maxBytes && answer.ok) {
      await reader.cancel();
      throw new WireError(`${answer.url} sends more than the ${maxBytes} bytes that are expected`);
    }
    if (size <= Math.max(maxBytes, ANSWER_BYTES)) parts.push(value);
    else break;
  }
  return joined(...parts);
}

/** @param {string | null} seconds @returns {number} */
function millisecondsOf(seconds) {
  const ms = 1000 * Number(seconds || 1);
  return Number.isFinite(ms) ? Math.min(MAX_PAUSE_MS, Math.max(100, ms)) : 1000;
}
