/** A phone's state in the words of the protocol, and in those of its page: edge_agent/machine/state.py. */

import { isPrivate } from "./private_sums.js";
import { requiredBy } from "./promises.js";

/** @typedef {import("../types.js").AgentState} AgentState */

const WITHDRAWN = "withdrawn by its person: it sends nothing that its windows say until it is told to take part again";

/**
 * @typedef {object} PhoneState
 * @property {import("./messages.js").Announcement | null} announcement
 * @property {import("./agent_state.js").Memory} memory
 * @property {boolean} connected @property {string} connectionError @property {string} untrusted
 * @property {boolean} finished the federation is over, and its last model dealt with
 * @property {string} ineligibleReason why the phone cannot take part; else empty
 * @property {string} missing why it has nothing to learn from; else empty
 * @property {number} examples @property {"" | "learning" | "adopting"} stage @property {number} waiting updates
 * @property {number} sums of a private continuous federation: the number of those that the phone would add again; 0: others
 * @property {string} detail
 */

/** @param {PhoneState} now @returns {import("./messages.generated.js").DeviceStatus} without session, number and signatures */
export function deviceStatus(now) {
  const { announcement: a, memory } = now;
  const { refused, unusable } = memory;
  const able = !now.ineligibleReason && !memory.refused && now.examples > 0;
  // of one phone nothing is told where the server learns sums, or is to learn nothing else
  const isAlone = (a !== null && isPrivate(a)) || requiredBy(memory).mode === "masked";
  const sharesOwn = memory.takesPart && !memory.refused; // else nothing that the phone's own windows say is told
  return {
    schema_version: 1,
    state: stateOf(now, able),
    round: a?.round ?? 0,
    examples: able && sharesOwn ? Math.min(now.examples, isAlone ? 1 : now.examples) : 0,
    detail: reasonFor(now).slice(0, 500),
    metrics: {},
    ...(now.sums && { sums: now.sums }),
    ...(refused && { refusal: JSON.stringify({ ...refused.of, reason: refused.reason }) }),
    ...(unusable && !refused && { unusable: JSON.stringify(unusable) }),
    ...(memory.release && !memory.refused && { release: memory.release }),
    ...(sharesOwn && memory.adoption && { adoption: memory.adoption }),
  };
}

/** @param {PhoneState} now @param {boolean} able */
function stateOf(now, able) {
  if (now.finished) return "finished";
  const { announcement: a, memory } = now;
  if (!able || (a && isPrivate(a) && !memory.takesPart)) return "collecting"; // so that it isn't invited
  if (now.stage === "learning") return "training";
  if (now.waiting) return "uploading";
  return memory.sent || memory.done?.length ? "idle" : "ready";
}

/** @param {PhoneState} now @returns {string} why it waits, or does not take part; else empty */
export function reasonFor(now) {
  const { announcement: a } = now;
  if (now.untrusted) return now.untrusted;
  if (!now.connected && now.connectionError) return now.connectionError;
  const { refused } = now.memory;
  if (refused) return `refuses the plan: ${refused.reason}`;
  if (!a) return "waiting for the federation's announcement";
  if (now.ineligibleReason) return now.ineligibleReason;
  if (a.state === "stopped") return "the operator has ended this federation";
  if (!now.memory.takesPart) return WITHDRAWN;
  if (now.missing) return now.missing;
  if (a.state === "paused") return "the operator has paused this federation";
  return now.detail;
}

/** @param {PhoneState} now @returns {AgentState["name"]} */
export function nameOf(now) {
  if (now.memory.refused || (now.announcement && now.ineligibleReason)) return "not_taking_part";
  if (now.announcement?.state === "stopped") return "stopped";
  if (!now.connected && !now.announcement) return "connecting";
  if (!now.memory.takesPart && !now.finished) return "withdrawn";
  const state = stateOf(now, now.examples > 0);
  return /** @type {AgentState["name"]} */ (state);
}
