/**
 * What a phone has added to the sums of a private continuous federation, batch by batch: edge_agent/supervisor/masked_parts.py. The
 * server knows a sum alone, so the phone itself keeps what it has added: it adds its difference to the next batch, or the
 * negative of all to leave. Which batch has it, the server says.
 */

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.js").Invitation} Invitation */
/** @typedef {import("./agent_state.js").Memory} Memory */

/** @typedef {{epoch: number, round: number, kind: "sums" | "withdrawn", keys: string[]}} Part whose numbers lie apart */
/**
 * @typedef {object} MaskedParts
 * @property {string} included the batch that has this phone; empty: none
 * @property {readonly [number, number]} over epoch and number of the last batch that has ended
 * @property {Record<string, Part>} parts by batch, oldest first
 */
/** @typedef {{kind: Part["kind"] | "unknown", keys: string[], isSettled: boolean}} MaskedContribution */

/** Of what the phone has added, the numbers by batch. */
export const MASKED_NUMBERS = "masked_numbers";
/** The sum that the phone takes part in, or took part in last. */
export const SUM = "sum";
const MAX_PARTS = 4;
/** @type {MaskedParts} */
export const NO_PARTS = Object.freeze({ included: "", over: /** @type {const} */ ([0, 0]), parts: {} });
export const LOST =
  "this phone does not have any more what it has added to the federation's sums, so that it can neither replace it nor " +
  "take it out: it stays in them until the sums of all others are collected anew, for which you withdraw it here, or the " +
  "operator asks";

/** @param {readonly [number, number]} one @param {readonly [number, number]} other */
function isBefore([epoch, round], [otherEpoch, otherRound]) {
  return epoch < otherEpoch || (epoch === otherEpoch && round < otherRound);
}

/** The parts with one that is about to be added; of many, the oldest go. @param {MaskedParts} masked @param {string} batch @param {Part} part @returns {MaskedParts} */
export function begun(masked, batch, part) {
  const { included, parts } = masked;
  const left = Object.entries(parts).filter(([name]) => name !== included);
  const present = Object.hasOwn(parts, included) ? [[included, parts[included]]] : [];
  return { ...masked, parts: Object.fromEntries([...present, ...left.slice(2 - MAX_PARTS), [batch, part]]) };
}

/** Whether a batch has numbers of this phone that it does not have itself any more. @param {MaskedParts} masked */
export function isLost({ included, parts }) {
  return included !== "" && !Object.hasOwn(parts, included);
}

/** What the federation has of this phone, or will have if all is well; null: nothing. @param {MaskedParts} masked @returns {MaskedContribution | null} */
export function contributionOf(masked) {
  const { included, over, parts } = masked;
  const pending = Object.values(parts).find(({ epoch, round }) => isBefore(over, [epoch, round]));
  if (over[1] < 0) return { kind: "unknown", keys: [], isSettled: false }; // a restored server is about to say it
  if (pending) return { kind: pending.kind, keys: pending.keys, isSettled: false };
  if (isLost(masked)) return { kind: "unknown", keys: [], isSettled: true };
  return included ? { kind: parts[included].kind, keys: parts[included].keys, isSettled: true } : null;
}

/** What is known once the server has said which batch has this phone. @param {Memory} memory @returns {Memory} */
export function settled(memory) {
  const { invitation, instance } = memory;
  const order = invitation?.sum;
  if (!order || order.settled === null || invitation.instance !== instance) return memory;
  const masked = memory.masked ?? NO_PARTS;
  const over = /** @type {const} */ ([invitation.epoch, invitation.round - Number(order.kind !== "settled")]);
  return isBefore(over, masked.over) ? memory : { ...memory, masked: { ...masked, included: order.settled, over } };
}

/** The server was restored: which batch has this phone, it is about to say. @param {MaskedParts} masked @param {number} epoch @returns {MaskedParts} */
export function inEpoch(masked, epoch) {
  return isBefore(masked.over, [epoch, -1]) ? { ...masked, over: [epoch, -1] } : masked;
}

/**
 * Why the phone cannot tell what it is to add to a batch; empty if it can.
 * @param {MaskedParts} masked @param {Invitation} invitation to it
 */
export function refusalReason(masked, { epoch, round, sum }) {
  if (isBefore(masked.over, [epoch, round - 1])) return "the server has not said which batch has this phone's sums";
  if (!isBefore(masked.over, [epoch, round])) return "the batch is over";
  if (contributionOf(masked)?.isSettled === false) return "it is not known yet whether the last batch has this phone's sums";
  return isLost(masked) && !replacesAll(sum?.body) ? LOST : "";
}

/** Whether a batch takes the place of all sums before it. @param {string | undefined} request */
function replacesAll(request) {
  try {
    return JSON.parse(request ?? "{}").replaces_all === true;
  } catch {
    return false; // said where it is answered
  }
}

/** Whether a batch waits for this phone's keys. @param {Announcement} a @param {Memory} memory */
export function isInBatch(a, { invitation }) {
  if (!invitation || a.state !== "collecting" || invitation.sum?.kind !== "request") return false;
  return invitation.instance === a.instance && invitation.epoch === a.epoch && invitation.round === a.round;
}

/**
 * Whether what the phone has in the sums is to be replaced or taken out, so that the next batch is to have it. Not while it
 * is unknown which batch has it, and not where the phone has lost what it has added.
 * @param {Announcement} a @param {Memory} memory @param {readonly string[]} keys of the training windows
 */
export function hasChanges(a, memory, keys) {
  const sent = contributionOf(memory.masked ?? NO_PARTS);
  if (sent && !sent.isSettled) return false;
  // what it had goes for all, also what it has lost
  if (isInBatch(a, memory) && replacesAll(memory.invitation?.sum?.body)) return memory.takesPart && keys.length > 0;
  if (sent?.kind === "unknown") return false;
  if (!memory.takesPart || !keys.length) return sent?.kind === "sums";
  if (sent?.kind !== "sums") return true;
  return changesBetween(sent.keys, keys) >= a.plan.publication.send_after_windows;
}

/** How many windows came or went. @param {readonly string[]} before @param {readonly string[]} now */
export function changesBetween(before, now) {
  const [old, present] = [new Set(before), new Set(now)];
  return before.filter((key) => !present.has(key)).length + now.filter((key) => !old.has(key)).length;
}

/** Whether the server learns the sum of a batch alone. @param {Announcement} a */
export function isPrivate({ plan }) {
  return (plan.secure?.mode ?? "off") !== "off";
}
