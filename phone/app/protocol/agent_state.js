/** What a phone remembers of its federation between two runs, and how it begins anew. */

import { UNKNOWN } from "./contribution.js";
import { MASKED_NUMBERS } from "./private_sums.js";
import { promisesOf, requiredBy, shortfall } from "./promises.js";
import { OUTBOX } from "./upload.js";

export const MEMORY = "agent";
export const MODEL = "model";
export const FEATURE_MODEL = "feature_model";
/** The last version that was taken up, as it came. */
export const BROADCAST = "broadcast";
/** A federation's program, and the broadcast that a round begins with, as they came. */
export const PROGRAM = "program";
export const ROUND_BROADCAST = "round_broadcast";
/** What a phone keeps of its network between rounds, and what an unfinished round has come to. */
export const CLIENT = "client";
export const ROUND = "round";
export const MAX_UPLOADS = 50;
/** The networks that the last trained round has left, until they are judged. */
export const CANDIDATES = "candidates";
/** Rounds that are remembered as done: a repeated invitation is to one of the last. */
const MAX_DONE = 16;
/** Rounds whose reports of gains are remembered: they are in the sums that come with these rounds' versions. */
const MAX_REPORTED = 3;

/** @typedef {import("./upload.js").PendingUpdate} PendingUpdate */
/** @typedef {{version: number, withdraw: boolean, answer: "accepted" | "refused", reason: string, atMs: number}} Answered version: in rounds, the round */

/**
 * @typedef {object} Memory
 * @property {string} of whom: server's key, federation and device; of others nothing is believed
 * @property {import("./messages.js").Newest} newest announcement that was believed
 * @property {string} instance @property {number} epoch
 * @property {boolean} takesPart as its person wishes
 * @property {number} sequence of the last update that was made
 * @property {import("./contribution.js").Contribution | null} sent last; null: nothing yet
 * @property {Answered[]} uploads newest last
 * @property {string} judged number and sha256 of the last version that was taken up, or given up
 * @property {{version: number, atMs: number} | null} refreshed when a version was taken up last
 * @property {import("../types.js").Recorded} [adaptedTo] windows without a label that the last heads were made with
 * @property {import("./messages.generated.js").AdoptionReport | null} adoption the last word about a model
 * @property {import("./messages.generated.js").ReleaseReport | null} release the last word about a released one
 * @property {import("./messages.js").Offer | null} offer
 * @property {import("./messages.js").Invitation | null} [invitation] to the last round that the phone was drawn for
 * @property {boolean} [followed] whether the invitation's message of a secure sum was followed
 * @property {import("./private_sums.js").AddedSums} [added] to a private continuous federation, last
 * @property {number | null} [trained] the round whose networks are to be judged yet
 * @property {string[]} [done] rounds that were trained, or left out, with the sha256 of what they began with
 * @property {Record<number, Record<string, number[]>>} [reported] gains of the phone's networks, by round
 * @property {import("./promises.js").Promises | null} [pinned] what was promised when the phone enrolled, or accepted since
 * @property {Partial<import("./promises.js").Promises> | null} [requires] what its person requires besides
 * @property {string} [voucher] the phone's own, of the key that vouches for devices
 * @property {string} [revoked] the newest list of identities that this key revokes
 * @property {RefusedPlan | null} [refused] the present plan, where it promises less than is required
 * @property {import("./messages.generated.js").ModelRefusal | null} [unusable] the last model that can't be used, until another can
 * @property {import("../types.js").Plan | null} plan of the last announcement
 * @property {import("../types.js").Verdict | null} verdict on the last heads
 */

/**
 * @typedef {object} KeptModel
 * @property {import("../types.js").Model} model in use
 * @property {number} release number of the rollout that gave it; 0: none
 * @property {KeptModel | null} before
 */

/**
 * @typedef {object} RefusedPlan
 * @property {string} reason @property {import("./promises.js").Promises} promises
 * @property {{instance: string, epoch: number, serial: number}} of the announcement
 */

/** @typedef {{memory: Memory, outbox: PendingUpdate[], kept: KeptModel | null}} StoredState */
/** @typedef {Partial<StoredState> & {also?: Record<string, any>}} StateChange also: what else goes to the disk with it */

/** @param {string} of @returns {Memory} */
export function newMemory(of) {
  return {
    of,
    newest: { epoch: 0, serial: 0 },
    instance: "",
    epoch: 1,
    takesPart: true,
    sequence: 0,
    sent: null,
    uploads: [],
    judged: "",
    refreshed: null,
    adoption: null,
    release: null,
    offer: null,
    plan: null,
    verdict: null,
  };
}

/** What is known and on the disk; changed by one transaction after the other. */
export class StateStore {
  /** @param {import("../types.js").Store} store */
  constructor(store) {
    this.store = store;
    /** @type {StoredState} */
    this.current = { memory: newMemory(""), outbox: [], kept: null };
    /** @type {Promise<void>} */
    this.writing = Promise.resolve();
  }

  /** Read what is there of this server, federation and device; what is of another goes. @param {string} of */
  async load(of) {
    const memory = await this.store.get(MEMORY);
    if (memory?.of === of) {
      this.current = {
        memory,
        outbox: (await this.store.get(OUTBOX)) ?? [],
        kept: (await this.store.get(MODEL)) ?? null,
      };
      return;
    }
    const none = { memory: newMemory(of), outbox: [], kept: null };
    await this.store.setAll({ [MEMORY]: none.memory, [OUTBOX]: none.outbox, [MODEL]: none.kept });
    this.current = none;
  }

  /**
   * Change what is known: all of it is on the disk when this returns, or nothing has changed.
   * @param {(state: StoredState) => StateChange | null} change of what is there by then; null: nothing
   * @returns {Promise<void>}
   */
  change(change) {
    const done = this.writing.then(async () => {
      const changed = change(this.current);
      if (!changed) return;
      const { memory, outbox, kept } = { ...this.current, ...changed };
      await this.store.setAll({
        [MEMORY]: memory,
        ...(changed.outbox && { [OUTBOX]: outbox }),
        ...("kept" in changed && { [MODEL]: kept }),
        ...changed.also,
      });
      this.current = { memory, outbox, kept };
    });
    this.writing = done.catch(() => {});
    return done;
  }
}

/**
 * What is known once an announcement has come. Of a plan that promises less than is
 * required, only the refusal is kept.
 * @param {StoredState} known @param {import("./messages.js").Announcement} a @param {import("./messages.js").Newest} newest
 * @returns {StateChange}
 */
export function announced(known, a, newest) {
  const promises = promisesOf(a.plan);
  const memory = { ...known.memory, newest };
  const reason = shortfall(promises, requiredBy(memory));
  if (!reason) return followed({ ...memory, refused: null }, a, newest);
  const { instance, epoch, serial } = a;
  const before = memory.refused;
  const isSame = before?.reason === reason && before.of.instance === instance && before.of.epoch === epoch;
  return { memory: { ...memory, refused: isSame ? before : { reason, promises, of: { instance, epoch, serial } } } };
}

/**
 * What is known once an announcement is believed and followed: all of it, less what is of another instance or epoch.
 * @param {Memory} memory @param {import("./messages.js").Announcement} a @param {import("./messages.js").Newest} newest
 * @returns {StateChange}
 */
function followed(memory, a, newest) {
  const plan = /** @type {import("../types.js").Plan} */ (/** @type {unknown} */ (a.plan));
  const now = { newest, instance: a.instance, epoch: a.epoch, plan };
  if (memory.instance && memory.instance !== a.instance) {
    const { of, offer, invitation, takesPart, sequence, pinned, requires, voucher, revoked } = memory; // offer and invitation may be of the new instance
    const also = { [CLIENT]: null, [ROUND]: null, [CANDIDATES]: null, [MASKED_NUMBERS]: null };
    const anew = { ...newMemory(of), offer, invitation, takesPart, sequence, pinned, requires, voucher, revoked, ...now };
    return { memory: anew, outbox: [], kept: null, also };
  }
  if (memory.instance && a.epoch > memory.epoch) {
    const sent = memory.sent && UNKNOWN; // the backup may have other sums of this phone: they come anew, or go again
    return { memory: { ...memory, ...now, sent, release: null, judged: "", refreshed: null, unusable: null }, outbox: [] };
  }
  return { memory: { ...memory, ...now } };
}

/**
 * Whether what is remembered is of an announcement's instance and epoch.
 * @param {Memory} memory @param {{instance: string, epoch: number}} a
 */
export function isOf({ instance, epoch }, a) {
  return instance === a.instance && epoch === a.epoch;
}

/** A round's name: another broadcast makes it another one. @param {import("./messages.js").Invitation} invitation */
export function roundKey({ epoch, round, model }) {
  return `${epoch} ${round} ${model.sha256}`;
}

/** @param {Memory} memory @param {string} key of `roundKey` @returns {Memory} */
export function withDone(memory, key) {
  return { ...memory, done: [...(memory.done ?? []), key].slice(-MAX_DONE) };
}

/** @param {Memory} memory @param {number} round @param {Record<string, number[]> | null} gains @returns {Memory} */
export function withReported(memory, round, gains) {
  const all = Object.entries({ ...memory.reported, ...(gains && { [round]: gains }) }); // whole numbers are in order
  return { ...memory, reported: Object.fromEntries(all.slice(-MAX_REPORTED)) };
}

/** @param {Memory} memory @param {Answered} answered @returns {Memory} */
export function withAnswered(memory, answered) {
  return { ...memory, uploads: [...memory.uploads, answered].slice(-MAX_UPLOADS) };
}
