/**
 * The versions of a federation on a phone: what one of a continuous federation is made of, which one is to be taken up, and what is
 * reported of it.
 */

import { WireError } from "./errors.js";
import { Safetensors } from "./safetensors.js";

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.generated.js").BlobPointer} Pointer */
/** @typedef {import("./messages.generated.js").Release} Release */
/** @typedef {import("./agent_state.js").Memory} Memory */
/** @typedef {import("./agent_state.js").KeptModel} KeptModel */
/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Verdict} Verdict */

const METRIC = "macro_f1";
const REASON = 500;
/** Models before the present one that are kept, for a rollout that is withdrawn. */
const MAX_BEFORE = 2;
/** Each number of one device's sums fits into 32 bits. */
const LIMIT = 2 ** 31 - 1;
/** A newer version is taken up after so long, or once as many were published as before. */
const REFRESH_MS = 900_000;

/**
 * @typedef {object} SharedSums of all devices
 * @property {import("../learning/ridge.js").FixedSums} shared @property {number} clients whose they are
 */

/**
 * @typedef {object} Method what the plan says of it, with its defaults
 * @property {number} ridge @property {number} clip @property {number} own_weight @property {number} orientation_free_share
 * @property {number} [floor] for sums that have noise
 * @property {number} rotations copies of each window in the sums, turned at random by at most `degrees`
 * @property {number} degrees @property {boolean} sensor_loss whether there is one more, without the gyroscope
 */

/** @param {Announcement} a @returns {Plan} */
export function planOf(a) {
  return /** @type {Plan} */ (/** @type {unknown} */ (a.plan));
}

/** @param {Plan} plan @returns {Method} throws a WireError where it is out of bounds */
export function methodOf({ method }) {
  const { ridge = 1e-2, clip = 4, own_weight = 1, orientation_free_share = 0.33, floor = 0 } = method;
  const { rotations = 0, degrees = 180, sensor_loss = false } = method;
  const isIn = (/** @type {unknown} */ value, /** @type {number} */ most) =>
    typeof value === "number" && value >= 0 && value <= most;
  const isSound = isIn(ridge, 1e6) && ridge > 0 && isIn(clip, 8) && clip > 0 && isIn(own_weight, 1e6);
  if (!Number.isInteger(rotations) || !isIn(rotations, 16) || !isIn(degrees, 180) || !degrees || typeof sensor_loss !== "boolean") {
    throw new WireError(
      `the plan's method has rotations ${rotations}, degrees ${degrees} and sensor_loss ${sensor_loss}; expected a whole ` +
        "number from 0 to 16, above 0 to 180, and true or false",
    );
  }
  if (isSound && isIn(orientation_free_share, 1) && isIn(floor, 1e12))
    return { ridge, clip, own_weight, orientation_free_share, floor, rotations, degrees, sensor_loss };
  throw new WireError(
    `the plan's method has ridge ${ridge}, clip ${clip}, own_weight ${own_weight}, orientation_free_share ` +
      `${orientation_free_share} and floor ${floor}; expected above 0 to 1e6, above 0 to 8, 0 to 1e6, 0 to 1, and 0 to 1e12`,
  );
}

/**
 * The sums of a broadcast. Those that so many devices cannot have sent are refused; throws a WireError.
 * @param {Uint8Array} file @param {Plan} plan @returns {SharedSums}
 */
export function sharedSums(file, { labels, training }) {
  const size = training.feature_dim + 1;
  const tensors = new Safetensors(file, file.length);
  const gram = tensors.int64("sums/gram", [(size * (size + 1)) / 2]);
  const moment = tensors.int64("sums/moment", [size, labels.length]);
  const [clients] = tensors.int64("sums/clients", []);
  const largest = Math.max(largestOf(gram), largestOf(moment));
  if (!(clients >= 0) || largest > clients * LIMIT) {
    throw new WireError(
      `the broadcast's sums of ${clients} devices reach ${largest}; at most ${LIMIT} of each device can be in them`,
    );
  }
  return { shared: { gram, moment, classes: labels.length }, clients };
}

/** @param {Float64Array} values */
function largestOf(values) {
  return values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
}

/** @typedef {{pointer: Pointer, version: number, rollout: number, key: string}} Target what to take up; 0: of no rollout */

/**
 * The version that is to be taken up now: what was released or, without rollouts, the newest one; null: none.
 * @param {Announcement} a @param {Release | null} release that is for this phone @param {Memory} memory
 * @param {KeptModel | null} kept @param {number} nowMs @returns {Target | null}
 */
export function targetOf(a, release, memory, kept, nowMs) {
  if (a.plan.rollout.mode === "off") {
    const target = newest(a);
    const isNew = target && target.version > 0 && memory.judged !== target.key;
    return isNew && (!a.continuous || mayRefresh(memory, target, nowMs)) ? target : null;
  }
  if (!release) return null;
  if (kept?.release === release.rollout || memory.release?.rollout === release.rollout) return null;
  const { model: pointer, round: version, rollout } = release;
  const key = keyOf(version, pointer);
  return memory.judged === key ? null : { pointer, version, rollout, key };
}

/** The newest version, taken up already or not; null where there is none. @param {Announcement} a @returns {Target | null} */
export function newest(a) {
  const version = versionOf(a);
  if (!a.model || version === null) return null;
  return { pointer: a.model, version, rollout: 0, key: keyOf(version, a.model) };
}

/** When the next version may be taken up. @param {Memory} memory @returns {number} in Unix milliseconds */
export function refreshAtMs({ refreshed }) {
  return refreshed ? refreshed.atMs + REFRESH_MS : 0;
}

/** The version that is taken up at once after another: half as many again were published. @param {number} version */
function following(version) {
  return version + Math.max(1, Math.floor(version / 2));
}

/**
 * A version has megabytes, and most change little: not each one is taken up.
 * @param {Memory} memory @param {Target} target @param {number} nowMs
 */
function mayRefresh(memory, { version }, nowMs) {
  const { refreshed } = memory;
  return !refreshed || version >= following(refreshed.version) || nowMs >= refreshAtMs(memory) || nowMs < refreshed.atMs;
}

/**
 * Whether a phone without labels is to make the newest version's heads again, as its own windows adapt them: enough of
 * them came or went, by the plan's rule for sums, and they are half as many again, or it is time for another version.
 * edge_agent/machine/state.py has the same rule.
 * @param {Announcement} a @param {import("../types.js").Recorded} recorded @param {Memory} memory @param {number} nowMs
 */
export function hasNewWindows(a, recorded, memory, nowMs) {
  if (!a.continuous || a.plan.rollout.mode !== "off" || !memory.judged || !recorded.count) return false;
  if (changesOf(recorded, memory.adaptedTo) < a.plan.publication.send_after_windows) return false;
  return 2 * recorded.count >= 3 * (memory.adaptedTo?.count ?? 0) || nowMs >= refreshAtMs(memory);
}

/** How many windows came or went: ids rise. @param {import("../types.js").Recorded} now @param {import("../types.js").Recorded} [before] */
function changesOf(now, before = { count: 0, newest: 0 }) {
  const added = Math.min(now.count, Math.max(0, now.newest - before.newest));
  return added + Math.max(0, before.count - (now.count - added));
}

/** Whether the last version of a finished federation was dealt with. @param {Announcement} a @param {Memory} memory */
export function lastWasJudged({ model, plan, round }, memory) {
  return !model || plan.rollout.mode !== "off" || memory.judged === keyOf(round, model);
}

/** A version's name: two may have the same bytes. @param {number} version @param {Pointer} pointer */
function keyOf(version, { sha256 }) {
  return `${version} ${sha256}`;
}

/** The number of the announced version; null where the announcement does not tell. @param {Announcement} a */
export function versionOf({ state, round }) {
  if (state === "paused") return null;
  return state === "collecting" || state === "aggregating" ? Math.max(0, round - 1) : round;
}

/** @param {Verdict} verdict @param {number} release @param {KeptModel | null} before @returns {KeptModel | null} */
export function keptAfter({ model }, release, before) {
  if (!model || model === before?.model) return before;
  /** @type {(one: KeptModel | null, depth: number) => KeptModel | null} */
  const cut = (one, depth) => one && (depth ? { ...one, before: cut(one.before, depth - 1) } : null);
  return { model, release, before: cut(before, MAX_BEFORE) };
}

/**
 * @param {Announcement} a @param {Target} target @param {Verdict} verdict
 * @returns {import("./messages.generated.js").AdoptionReport}
 */
export function adoptionReport(a, target, { answer, score, trivial, reason, source }) {
  const { instance, epoch } = a;
  const found = { round: target.version, source, answer, score, trivial, reason: reason.slice(0, REASON) };
  return { metric: METRIC, instance, epoch, ...found };
}

/**
 * @param {Announcement} a @param {number} rollout @param {Verdict} verdict
 * @returns {import("./messages.generated.js").ReleaseReport}
 */
export function releaseReport(a, rollout, { answer, score, reason }) {
  const { instance, epoch } = a;
  return { metric: METRIC, instance, epoch, rollout, answer, score, reason: reason.slice(0, REASON) };
}
