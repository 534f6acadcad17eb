/** A phone's whole sums in the rounds of a private continuous federation: edge_agent/machine/state.py. */

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./agent_state.js").Memory} Memory */

/** @typedef {{sequence: number, keys: string[]}} AddedSums their number, and the windows that they were of when they got it */

/** The numbers that the phone adds to the sum of its round. */
export const MASKED_NUMBERS = "masked_numbers";
/** The sum that the phone takes part in, or took part in last. */
export const SUM = "sum";

/** Whether a round waits for this phone's keys. @param {Announcement} a @param {Memory} memory */
export function isInvited(a, { invitation }) {
  if (!invitation || a.state !== "collecting" || invitation.sum?.kind !== "request") return false;
  return invitation.instance === a.instance && invitation.epoch === a.epoch && invitation.round === a.round;
}

/**
 * The number of the sums that the phone has added last, if it would add the same now; 0: others, or none. They are the same
 * as long as fewer windows came or went than the plan counts as a change.
 * @param {Announcement} a @param {Memory} memory @param {readonly string[]} keys of the training windows
 */
export function addedSequence(a, { added, takesPart }, keys) {
  if (!added || !takesPart || !keys.length) return 0;
  return changesBetween(added.keys, keys) < a.plan.publication.send_after_windows ? added.sequence : 0;
}

/** How many windows came or went. @param {readonly string[]} before @param {readonly string[]} now */
export function changesBetween(before, now) {
  const [old, present] = [new Set(before), new Set(now)];
  return before.filter((key) => !present.has(key)).length + now.filter((key) => !old.has(key)).length;
}

/** Whether the server learns the sum of a round alone. @param {Announcement} a */
export function isPrivate({ plan }) {
  return (plan.secure?.mode ?? "off") !== "off";
}
