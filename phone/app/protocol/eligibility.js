/** Why a phone does not take part in a federation, in words for its owner; empty where it can. */

import { labelText } from "../views/labels.js";
import { SUM_GROUPS } from "./messages.generated.js";

/** @typedef {import("./messages.js").Announcement} Announcement */

/** A larger network, or broadcast, is not downloaded to a phone. */
export const MAX_FILE_BYTES = 128 * 1024 * 1024;
const MAX_PROGRAM_BYTES = 32 * 1024 * 1024;
const MAX_UPLOAD_NUMBERS = 4 * 1024 * 1024;

/** @param {Announcement} a @returns {string} */
export function ineligibleReason({ plan, continuous, feature_model: network, program }) {
  const { task, method, data, labels, training } = plan;
  if (task.name !== "classification") {
    return `this federation learns ${task.name}; a phone takes part where activities are recognized`;
  }
  if (data.input !== null) return "this federation learns from images; a phone has windows of its motion sensors";
  const { secure } = plan;
  if (secure && secure.mode !== "off" && !continuous && !Object.hasOwn(SUM_GROUPS, String(method.name))) {
    return (
      `in this federation the server learns the sum of a round's updates alone (secure sums), and what ${method.name} adds to ` +
      "it a browser cannot compute yet; its operator can make another one for phones"
    );
  }
  if (!continuous) return ineligibleForRounds(String(method.name), program, data, labels, training);
  if (!network) return "the server has no network for phones in this federation; ask its operator";
  if (network.size > MAX_FILE_BYTES) {
    const size = Math.round(network.size / 1e6);
    return `the network for phones has ${size} MB, more than a phone downloads (${MAX_FILE_BYTES >> 20} MB)`;
  }
  if (data.normalization === "pooled")
    return "this federation needs all windows in one place: it is for simulations alone";
  if (labels.length !== training.classes) return "the plan's labels are not as many as its classes; ask its operator";
  const size = training.feature_dim + 1;
  if ((size * (size + 1)) / 2 + size * labels.length > MAX_UPLOAD_NUMBERS)
    return "this federation's sums are too large for a phone";
  return "";
}

/**
 * @param {string} method @param {import("./messages.generated.js").BlobPointer | null} program
 * @param {Announcement["plan"]["data"]} data @param {readonly string[]} labels @param {Announcement["plan"]["training"]} training
 */
function ineligibleForRounds(method, program, data, labels, training) {
  if (!program) {
    return (
      `this federation trains in rounds (${method}), and its server has no program for phones, or not yet: its operator ` +
      "finds the reason on the federation's page"
    );
  }
  if (program.size > MAX_PROGRAM_BYTES) {
    const size = Math.round(program.size / 1e6);
    return `this federation's program has ${size} MB, more than a phone downloads (${MAX_PROGRAM_BYTES >> 20} MB)`;
  }
  if (data.normalization === "pooled")
    return "this federation needs all windows in one place: it is for simulations alone";
  if (labels.length !== training.classes) return "the plan's labels are not as many as its classes; ask its operator";
  return "";
}

/**
 * @param {readonly import("../types.js").StoredWindow[]} windows @param {readonly string[]} labels of the plan
 * @param {number} examples to learn from @returns {string}
 */
export function missingData(windows, labels, examples) {
  if (examples) return "";
  if (!windows.length) return "there are no windows yet: record some under Collect, and say what you do";
  const used = [...new Set(windows.flatMap(({ label }) => (label === null ? [] : [label])))];
  const wanted = labels.slice(0, 8).map(labelText).join(", ");
  if (!used.length) return `no window has a label yet: say under Collect what you did (${wanted})`;
  return `this federation learns ${wanted}; the windows on this phone are of ${used.slice(0, 8).map(labelText).join(", ")}`;
}
