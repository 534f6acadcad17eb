/**
 * Server-sent events (HTML standard, 9.2) out of a body's bytes, as docs/protocol.md, 'Over HTTP', has them. The data
 * of an event are bytes: a signature is over them.
 */

import { MESSAGE_BYTES } from "./messages.generated.js";
import { WireError } from "./errors.js";
import { joined, textOf } from "./signing.js";

const EVENT_BYTES = MESSAGE_BYTES + 4096;
const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;
const SPACE = 32;
const COLON = 58;

/** @typedef {{id: string, name: string, data: Uint8Array}} ServerEvent `id` is sent back as Last-Event-ID */

/** Takes a stream apart, whatever its pieces are; comments and unknown fields are passed over. */
export class EventReader {
  constructor() {
    this.id = "";
    /** @type {Uint8Array[]} of the line that has no end yet */
    this.rest = [];
    this.restBytes = 0;
    this.name = "message";
    /** @type {Uint8Array[]} lines of the event's data so far */
    this.data = [];
    this.size = 0;
  }

  /** Take a piece; return the events that it completes. @param {Uint8Array} piece @returns {ServerEvent[]} */
  take(piece) {
    const found = [];
    let from = 0;
    for (let end = piece.indexOf(LINE_FEED); end >= 0; end = piece.indexOf(LINE_FEED, from)) {
      const event = this.line(joined(...this.rest, piece.subarray(from, end)));
      if (event) found.push(event);
      this.rest = [];
      this.restBytes = 0;
      from = end + 1;
    }
    if (from < piece.length) {
      this.rest.push(piece.slice(from));
      this.restBytes += piece.length - from;
    }
    if (this.restBytes > EVENT_BYTES) throw new WireError("the server sends lines that are longer than any message");
    return found;
  }

  /** @param {Uint8Array} line @returns {ServerEvent | null} */
  line(line) {
    let end = line.length;
    while (end && line[end - 1] === CARRIAGE_RETURN) end--;
    if (!end) return this.complete();
    this.size += end;
    if (this.size > EVENT_BYTES) {
      throw new WireError(`an event of more than ${EVENT_BYTES} bytes came, no message is so large`);
    }
    const colon = line.indexOf(COLON);
    const field = textOf(line.subarray(0, colon < 0 ? end : Math.min(colon, end)));
    const from = colon < 0 ? end : line[colon + 1] === SPACE ? colon + 2 : colon + 1;
    const value = line.subarray(Math.min(from, end), end);
    if (field === "data") this.data.push(value);
    else if (field === "event") this.name = textOf(value);
    else if (field === "id") this.id = textOf(value);
    return null;
  }

  /** @returns {ServerEvent | null} */
  complete() {
    const { name, data } = this;
    [this.name, this.data, this.size] = ["message", [], 0];
    if (!data.length) return null;
    const between = Uint8Array.of(LINE_FEED);
    return { id: this.id, name, data: joined(...data.flatMap((line, i) => (i ? [between, line] : [line]))) };
  }
}

/**
 * Yield the events of a body until it ends, breaks off, or says nothing for so long.
 * @param {ReadableStream<Uint8Array>} body @param {number} silenceMs a comment counts as a word
 * @param {AbortSignal} signal @returns {AsyncGenerator<ServerEvent, void>}
 */
export async function* eventsOf(body, silenceMs, signal) {
  const reader = body.getReader();
  const events = new EventReader();
  const stop = () => void reader.cancel().catch(() => {});
  signal.addEventListener("abort", stop, { once: true });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  try {
    while (!signal.aborted) {
      timer = setTimeout(stop, silenceMs);
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) return;
      yield* events.take(value);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    stop();
  }
}
