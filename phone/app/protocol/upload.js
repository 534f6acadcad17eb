/**
 * The outbox, and one update's way to the server: edge_agent/machine/uploads.py, edge_agent/transport/chunk_sender.py.
 *
 * An update lies in the store, with its signed manifest, before anything of it is sent, and is deleted when the server
 * has answered `accepted` or `refused` alone. Whatever is repeated is the same bytes.
 */

import { readAcknowledgement } from "./messages.js";
import { sha256, toHex, wrap } from "./signing.js";

export const OUTBOX = "outbox";
const ANSWER_MS = 15_000;
const MAX_WAITS = 8;
const MAX_METRICS = 64;

/**
 * @typedef {object} PendingUpdate an update that waits
 * @property {string} updateId @property {string} nonce @property {number} round
 * @property {number | null} sequence null: of a round @property {boolean} withdraw
 * @property {number[]} windows ids of those that it was made of @property {number} chunkBytes
 * @property {SumPart} [sum] of a secure sum: which of its messages this is
 * @property {Uint8Array} begin the signed manifest, as it is sent
 * @property {Uint8Array} bytes
 */

/**
 * @typedef {object} Described what a manifest says of an update, besides its bytes
 * @property {string} federation @property {string} instance @property {string} device @property {number} round
 * @property {string} method @property {string} base sha256 of the broadcast
 * @property {number | null} sequence of a continuous federation; null: of a round, whose network was trained here
 * @property {boolean} [withdraw] @property {number} examples @property {number} [steps] none: nobody trains @property {number[] | null} classCounts
 * @property {Record<string, number>} metrics @property {number} chunkBytes @property {number} createdS
 * @property {Record<string, number[]> | null} [gains] of the phone's models over the shared one
 * @property {number[]} windows ids of those that it was made of; they stay on the phone
 */

/** @typedef {"keys" | "shares" | "vector" | "list" | "opened"} SumPart */
/** @typedef {Omit<Described, "withdraw" | "examples" | "classCounts" | "metrics" | "gains">} DescribedSum */
/** @typedef {import("./messages.generated.js").UpdateManifest} UpdateManifest */

/**
 * Describe and sign an update; its running number, or its round, names it.
 * @param {CryptoKey} key @param {Described} about @param {Uint8Array} bytes @returns {Promise<PendingUpdate>}
 */
export async function pendingUpdate(key, about, bytes) {
  const digest = await sha256(bytes);
  const { device, round, sequence, withdraw = false, windows, chunkBytes } = about;
  const number = sequence === null ? `r${round}` : `s${sequence}`;
  const updateId = `${number}-${device.slice(0, 36)}-${withdraw ? "out" : digest.slice(0, 8)}`;
  const measured = Object.entries(about.metrics).filter(([, value]) => Number.isFinite(value));
  const signed = await sign(key, about, bytes, digest, {
    update_id: updateId,
    ...(sequence === null ? { runtime: /** @type {const} */ ("onnxruntime-web") } : { sequence }),
    ...(withdraw && { withdraw }),
    examples: about.examples,
    steps: about.steps ?? 0,
    class_counts: about.classCounts,
    metrics: Object.fromEntries(measured.slice(0, MAX_METRICS)),
    ...(about.gains && { gains: about.gains }),
  });
  return { updateId, round, sequence, withdraw, windows, chunkBytes, bytes, ...signed };
}

/**
 * Describe and sign a message of a secure sum, of which nothing else is told; the same bytes have the same name.
 * @param {CryptoKey} key @param {DescribedSum} about @param {SumPart} sum @param {Uint8Array} bytes
 * @returns {Promise<PendingUpdate>}
 */
export async function sumMessage(key, about, sum, bytes) {
  const digest = await sha256(bytes);
  const { device, round, sequence, windows, chunkBytes } = about;
  const updateId = `m${round}-${sum}-${device.slice(0, 24)}-${digest.slice(0, 16)}`;
  const nothing = { examples: 0, steps: 0, metrics: {} };
  const numbered = sequence !== null && { sequence };
  const signed = await sign(key, about, bytes, digest, { update_id: updateId, sum, ...numbered, ...nothing });
  return { updateId, round, sequence: null, withdraw: false, windows, chunkBytes, sum, bytes, ...signed };
}

/**
 * Sign the manifest of bytes: who sends them in answer to what, and what else its fields say.
 * @param {CryptoKey} key
 * @param {Pick<Described, "federation" | "instance" | "device" | "round" | "method" | "base" | "chunkBytes" | "createdS">} about
 * @param {Uint8Array} bytes @param {string} digest
 * @param {Pick<UpdateManifest, "update_id" | "examples" | "steps" | "metrics"> & Partial<UpdateManifest>} fields
 * @returns {Promise<Pick<PendingUpdate, "nonce" | "begin">>}
 */
async function sign(key, about, bytes, digest, fields) {
  const { federation, instance, device, round } = about;
  const nonce = toHex(crypto.getRandomValues(new Uint8Array(8)));
  /** @type {UpdateManifest} */
  const manifest = {
    schema_version: 1,
    federation,
    instance,
    client: device,
    round,
    method: about.method,
    base_version: about.base,
    precision: "lossless",
    compression: "none",
    size: bytes.length,
    sha256: digest,
    chunk_bytes: about.chunkBytes,
    nonce,
    created: about.createdS,
    ...fields,
  };
  return { nonce, begin: await wrap(key, "update", federation, device, JSON.stringify(manifest)) };
}

/** @typedef {import("./messages.js").Acknowledgement} Acknowledgement */

/**
 * @typedef {object} Sending what one needs for it
 * @property {import("./server.js").Server} server
 * @property {(payload: Uint8Array) => Promise<Uint8Array>} open verifies an acknowledgement
 * @property {import("./server.js").Clock} clock
 * @property {(reason: string) => void} onRetry the server takes it later
 * @property {() => boolean} isWanted false once it was answered elsewhere, or forgotten
 * @property {AbortSignal} signal
 */

/**
 * Send an update until the server has answered it for good; null where it is not wanted any more. Throws what the
 * server's client throws: the same call again goes on from there.
 * @param {PendingUpdate} update @param {Sending} by @returns {Promise<Acknowledgement | null>}
 */
export async function sendUpdate(update, by) {
  for (let tries = 0; by.isWanted(); tries++) {
    if (tries)
      await by.clock.wait(ANSWER_MS * Math.min(2 ** (tries - 1), MAX_WAITS) * (0.5 + Math.random() / 2), by.signal);
    let answer = await part(update, "begin", update.begin, by);
    // a server that has lost chunks asks again; one that asks for the same forever is asked more seldom
    for (let passes = 0; answer?.status === "send" && passes < 3; passes++) {
      answer = (await chunks(update, answer.next_chunk, by)) ?? (await part(update, "end", new Uint8Array(), by));
    }
    if (answer?.status === "accepted" || answer?.status === "refused") return answer;
    if (answer?.status === "retry") by.onRetry(answer.reason);
  }
  return null;
}

/**
 * Send the chunks from one on; returns an answer that came meanwhile.
 * @param {PendingUpdate} update @param {number} first @param {Sending} by @returns {Promise<Acknowledgement | null>}
 */
async function chunks(update, first, by) {
  const { bytes, chunkBytes } = update;
  for (let n = first; n * chunkBytes < bytes.length; n++) {
    if (!by.isWanted()) return null;
    const answer = await part(update, n, bytes.subarray(n * chunkBytes, (n + 1) * chunkBytes), by);
    if (answer) return answer;
  }
  return null;
}

/**
 * @param {PendingUpdate} update @param {"begin" | "end" | number} step @param {Uint8Array} body @param {Sending} by
 * @returns {Promise<Acknowledgement | null>} null: none, or one about another update
 */
async function part(update, step, body, { server, open, signal, isWanted }) {
  const payload = await server.update(update.updateId, step, body, signal, isWanted);
  if (!payload) return null;
  const answer = readAcknowledgement(await open(payload));
  return isAbout(update, answer) ? answer : null;
}

/**
 * Whether an answer is about this very update, and not about one of the past.
 * @param {PendingUpdate} update @param {Acknowledgement} answer
 */
export function isAbout(update, answer) {
  return answer.update_id === update.updateId && answer.nonce === update.nonce;
}
