/** Which released model is for a phone: edge_agent/machine/releases.py. */

import { utf8 } from "./signing.js";

/** @typedef {import("./messages.generated.js").Release} Release */
/** @typedef {import("./messages.generated.js").ReleaseOrder} ReleaseOrder */
/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./agent_state.js").KeptModel} KeptModel */
/** @typedef {import("./agent_state.js").Memory} Memory */

/**
 * The release that an announcement's order means for a device; null: none.
 * @param {string} device @param {Announcement} a @param {import("./messages.js").Offer | null} offer
 * @returns {Promise<Release | null>}
 */
export async function releaseFor(device, a, offer) {
  const order = a.release;
  if (!order) return null;
  const { candidate, released, share_millionths: share } = order;
  if (!candidate) return released;
  const named = offer?.instance === a.instance && offer.epoch === a.epoch && offer.rollout === candidate.rollout;
  return named || (await placeOf(device, candidate.version)) < share ? candidate : released;
}

/** A device's place of a version's rollout, in millionths. @param {string} device @param {number} version */
export async function placeOf(device, version) {
  const digest = await crypto.subtle.digest("SHA-256", utf8(["0", "rollout", version, device].join("\x1f")));
  return Number((new DataView(digest).getBigUint64(0) >> 1n) % 1_000_000n);
}

/**
 * The model to use instead of one whose rollout was withdrawn.
 * @param {KeptModel | null} kept @param {ReleaseOrder | null} order
 */
export function withoutWithdrawn(kept, order) {
  let found = kept;
  while (found?.release && order?.withdrawn.includes(found.release)) found = found.before;
  return found;
}

/**
 * What is remembered of releases once a model of another rollout is in use: the last word about one that was adopted
 * is that it was left. One that was measured against a withdrawn model is judged again.
 * @param {Memory} memory @param {number} left its rollout, 0: none @param {number} now @param {ReleaseOrder | null} order
 * @returns {Memory}
 */
export function withLeft(memory, left, now, order) {
  const report = memory.release;
  if (!report || left === now) return memory;
  const isWithdrawn = (/** @type {number} */ rollout) => order?.withdrawn.includes(rollout) ?? false;
  if (isWithdrawn(left) && ["kept", "refused"].includes(report.answer)) return { ...memory, release: null, judged: "" };
  if (report.answer !== "adopted" || report.rollout === now) return memory;
  const reason = isWithdrawn(report.rollout) ? "withdrawn by the server" : "taken back on the device";
  return { ...memory, release: { ...report, answer: "rolled_back", reason } };
}
