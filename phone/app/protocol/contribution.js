/**
 * What a phone gives a continuous federation: whole sums when enough of its windows have changed, and their withdrawal.
 * edge_agent/machine/contributions.py. The last ones sent are remembered, so that a reload sends nothing twice.
 */

import { changesBetween } from "./private_sums.js";
import { MAX_AHEAD_MS } from "./messages.generated.js";
import { encode } from "./safetensors.js";
import { pendingUpdate } from "./upload.js";

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./agent_state.js").Memory} Memory */
/** @typedef {import("./upload.js").PendingUpdate} PendingUpdate */

/**
 * @typedef {object} Contribution What the federation has of this phone, or will have once it has answered.
 * @property {"sums" | "withdrawn" | "unknown"} kind unknown: a withdrawal was refused, what waited was
 *     dropped, or the server was restored
 * @property {string} updateId @property {string[]} keys of the windows that the sums are of
 */

/** @type {Contribution} What the server has of this phone is not known for sure. */
export const UNKNOWN = Object.freeze({ kind: "unknown", updateId: "", keys: [] });
const NO_BASE = "0".repeat(64);

/**
 * Whether sums are to be sent: the first ones or, whole, after enough changes. One update at a time: what changes while
 * one waits for its answer goes into the next.
 * @param {Announcement} a @param {Memory} memory @param {readonly string[]} keys of the training windows
 */
export function sumsAreDue(a, { takesPart, sent }, keys) {
  if (a.state !== "collecting" || !a.model || !takesPart || !keys.length) return false;
  return sent?.kind !== "sums" || changesBetween(sent.keys, keys) >= a.plan.publication.send_after_windows;
}

/**
 * Whether what the server has of this phone is to be taken out: its person asks for it, or no labelled window is left.
 * @param {Memory} memory @param {readonly string[]} keys of the training windows
 */
export function withdrawalIsDue({ takesPart, sent }, keys) {
  const isEmpty = !keys.length && sent !== null;
  return (isEmpty || !takesPart) && sent?.kind !== "withdrawn";
}

/**
 * The running number of the next update: it rises also on a phone that has lost what it remembers. What a wrong clock
 * gave is more than a day ahead of a right one, and no server has taken it.
 * @param {Memory} memory @param {number} nowMs
 */
export function nextSequence({ sequence }, nowMs) {
  return Math.max(sequence > nowMs + MAX_AHEAD_MS ? 0 : sequence + 1, Math.floor(nowMs));
}

/**
 * @typedef {object} Sums that go
 * @property {{gram: Int32Array, moment: Int32Array, classes: number}} fixed @property {number[]} classCounts
 * @property {Record<string, number>} metrics @property {number[]} windows ids of those that all of it was made of
 */

/** @typedef {{federation: string, device: string, key: CryptoKey}} Who */

/**
 * An update with whole sums.
 * @param {Who} who @param {Announcement} a @param {Sums} sums @param {number} sequence @param {number} nowMs
 * @returns {Promise<PendingUpdate>}
 */
export function sumsUpdate(who, a, { fixed, classCounts, metrics, windows }, sequence, nowMs) {
  const { gram, moment, classes } = fixed;
  const bytes = encode([
    ["gram", { shape: [gram.length], data: gram }],
    ["moment", { shape: [moment.length / classes, classes], data: moment }],
  ]);
  const examples = classCounts.reduce((sum, count) => sum + count, 0);
  const about = { ...described(who, a, sequence, nowMs), examples, classCounts, metrics, windows };
  return pendingUpdate(who.key, about, bytes);
}

/**
 * An update that takes the phone's sums out. @param {Who} who @param {Announcement} a @param {number} sequence
 * @param {number} nowMs @returns {Promise<PendingUpdate>}
 */
export function withdrawalUpdate(who, a, sequence, nowMs) {
  const nothing = { examples: 0, classCounts: null, metrics: {}, windows: [], withdraw: true };
  return pendingUpdate(who.key, { ...described(who, a, sequence, nowMs), ...nothing }, new Uint8Array(0));
}

/** @param {Who} who @param {Announcement} a @param {number} sequence @param {number} nowMs */
function described({ federation, device }, a, sequence, nowMs) {
  const { instance, chunk_bytes: chunkBytes, plan, model } = a;
  const names = { federation, device, instance, method: String(plan.method.name), base: model?.sha256 ?? NO_BASE };
  return { ...names, round: Math.max(1, a.round), sequence, chunkBytes, createdS: nowMs / 1000 };
}
