/**
 * A phone's part in the secure sum of a round: edge_agent/supervisor/secure_sum.py. What follows from a message is in the
 * store, with the state that it leaves, before anything is sent; so a page that is closed goes on, or has said nothing. A
 * phone begins one sum a round: other numbers under a second set of masks never leave it.
 */

import { isOf, roundKey, withDone } from "../protocol/agent_state.js";
import { nextSequence } from "../protocol/contribution.js";
import { MAX_FILE_BYTES } from "../protocol/eligibility.js";
import { WireError } from "../protocol/errors.js";
import { MASKED_NUMBERS, SUM, addedSequence } from "../protocol/private_sums.js";
import { decoded } from "../protocol/safetensors.js";
import { toHex, utf8 } from "../protocol/signing.js";
import { sumMessage } from "../protocol/upload.js";
import * as client from "./client.js";
import { areSame, read } from "./membership.js";
import { sumRequest } from "./messages.generated.js";
import { keyOf, readRevoked } from "./vouching.js";
import { makePrivate } from "./noise.js";
import { boundOf, layoutDigest, packed, sumsLayout, summandOf, sumsVector } from "./summand.js";

const PER_MILLE = 1000;

/** @typedef {import("../protocol/messages.js").Announcement} Announcement */
/** @typedef {import("../protocol/messages.js").Invitation} Invitation */
/** @typedef {import("../protocol/device_worker.js").DeviceWorker} DeviceWorker */
/** @typedef {import("../protocol/device_worker.js").Means} Means */
/** @typedef {{sums: import("./summand.js").WholeNumbers, keys: string[], windows: number[]}} Added */

/**
 * @typedef {object} KeptSum
 * @property {string} instance @property {number} epoch @property {number} round
 * @property {string} batch random, of its numbers @property {number[]} windows ids of those that the numbers are of
 * @property {number | null} sequence of whole sums: their number
 * @property {string} base sha256 of the version that the round begins with
 * @property {number} bound @property {Uint8Array<ArrayBuffer>} layout
 * @property {number} colluding @property {number} minMembers @property {number} [groups]
 * @property {string | null} [voucherKey] that vouches for members
 * @property {client.ClientState} state
 */

/**
 * Put the keys for a round of whole sums into the outbox, with what they are the keys for; throws a WireError where the
 * request is not one to be followed. The sums keep their number until enough windows have changed.
 * @param {DeviceWorker} worker @param {Announcement} a @param {Invitation} invitation @param {Added} added @param {Means} means
 */
export async function beginSum(worker, a, invitation, { sums, keys, windows }, means) {
  const { training, labels, secure } = a.plan;
  const layout = sumsLayout(training.feature_dim, labels.length, secure.max_weight);
  const vector = sumsVector(sums);
  await makePrivate(vector, secure);
  const before = worker.stateStore.current.memory;
  const sequence = addedSequence(a, before, keys) || nextSequence(before, worker.clock.now());
  const { about, state, update } = await begunSum(worker, a, invitation, { layout, windows, sequence }, means);
  await worker.stateStore.change(({ memory, outbox }) => {
    if (!isOf(memory, a) || !memory.takesPart) return null;
    const added = memory.added?.sequence === sequence ? memory.added : { sequence, keys };
    const also = { [SUM]: /** @type {KeptSum} */ ({ ...about, state }), [MASKED_NUMBERS]: { [about.batch]: { vector } } };
    const left = outbox.filter(({ sum: part }) => !part);
    const known = { ...memory, added, sequence: Math.max(memory.sequence, sequence), followed: true };
    return { memory: withDone(known, roundKey(invitation)), outbox: [...left, update], also };
  });
}

/**
 * What is to be kept, with the update, of a round whose updates are added by a secure sum; throws a WireError.
 * @param {DeviceWorker} worker @param {Announcement} a @param {Invitation} invitation
 * @param {{upload: Uint8Array, broadcast: Uint8Array, examples: number, gains: Record<string, number[]> | null,
 *   windows: number[]}} trained @param {Means} means
 * @returns {Promise<{update: import("../protocol/upload.js").PendingUpdate, also: Record<string, any>}>}
 */
export async function beginRoundSum(worker, a, invitation, { upload, broadcast, examples, gains, windows }, means) {
  const [trained, before] = [upload, broadcast].map((file) => decoded(file, MAX_FILE_BYTES));
  const { method, training, secure } = a.plan;
  const { layout, vector } = summandOf(method, trained, before, examples, training.classes, secure, gains);
  await makePrivate(vector, a.plan.secure);
  const { about, state, update } = await begunSum(worker, a, invitation, { layout, windows, sequence: null }, means);
  const sum = /** @type {KeptSum} */ ({ ...about, state });
  return { update, also: { [SUM]: sum, [MASKED_NUMBERS]: { [about.batch]: { vector } } } };
}

/**
 * Answer a request with the phone's keys, of which nothing is kept yet.
 * @param {DeviceWorker} worker @param {Announcement} a @param {Invitation} invitation
 * @param {{layout: import("./summand.js").Segment[], windows: number[], sequence: number | null}} added @param {Means} means
 */
async function begunSum(worker, a, invitation, { layout, windows, sequence }, means) {
  const body = utf8(invitation.sum?.body ?? "");
  const request = read(sumRequest, body, "SumRequest");
  const { secure } = a.plan;
  const digest = await layoutDigest(layout);
  checkRequest(request, invitation, means, digest);
  const { min_devices: minMembers, groups, voucher: voucherKey } = secure;
  const insists = { colluding: Math.round(PER_MILLE * secure.colluding_share), minMembers, groups, voucherKey };
  const { state, message } = await client.begin(await deviceOf(worker, means, insists), body);
  const { instance, epoch, round } = invitation;
  const kept = await worker.store.get(SUM);
  if (kept?.instance === instance && kept.epoch === epoch && kept.round === round) {
    throw new WireError(`this phone has begun the sum of round ${round} before; it does so once`);
  }
  const limits = { ...insists, layout: digest, bound: boundOf(layout) };
  const where = { instance, epoch, round, batch: toHex(request.attempt), base: invitation.model.sha256 };
  const about = { ...where, windows, sequence, ...limits };
  return { about, state, update: await messageOf(worker, a, about, message, means) };
}

/**
 * @param {import("./messages.generated.js").SumRequest} request @param {Invitation} invitation @param {Means} means
 * @param {Uint8Array} layout
 */
function checkRequest(request, { instance, epoch, round }, { federation }, layout) {
  const isMine = request.federation === federation && request.instance === instance;
  if (!isMine || request.epoch !== epoch || request.round !== round) {
    throw new WireError("the request is for the sum of another federation or round");
  }
  if (!areSame(request.layout, layout)) {
    throw new WireError("the server asks for a sum of other numbers than the plan has");
  }
}

/**
 * Take what the server says in the sum of a round; false where it is not of the phone's own.
 * @param {DeviceWorker} worker @param {Announcement} a @param {Invitation} invitation @param {Means} means
 */
export async function answerSum(worker, a, invitation, means) {
  const kept = /** @type {KeptSum | undefined} */ (await worker.store.get(SUM));
  const { instance, epoch, round, sum } = invitation;
  const isMine = kept?.instance === instance && kept.epoch === epoch && kept.round === round;
  if (!isMine || !sum) return false;
  const device = await deviceOf(worker, means, kept);
  const shared = sum.shared && (await means.server.blob(sum.shared, MAX_SHARED_BYTES, means.signal));
  const message = { kind: /** @type {client.ServerMessage} */ (sum.kind), body: utf8(sum.body) };
  const received = { ...message, ...(shared && { shared: new Uint8Array(shared) }) };
  let result = await client.step(device, kept.state, received);
  if (sum.kind === "shares" && !result.reason) {
    if (!(await worker.store.has(kept.windows))) {
      return leaveOut(worker, "the phone leaves this round: windows that its sums were of have been deleted");
    }
    result = await client.step(device, result.state, await vectorOf(worker, kept));
  }
  const update = result.message && (await messageOf(worker, a, kept, result.message, means));
  await worker.stateStore.change(({ memory, outbox }) => {
    if (!isOf(memory, a) || !memory.takesPart) return { memory: { ...memory, followed: true } };
    const also = { [SUM]: { ...kept, state: result.state } };
    // of an earlier stage nothing more is of use
    const left = outbox.filter(({ sum: part }) => !part);
    return { memory: { ...memory, followed: true }, outbox: update ? [...left, update] : left, also };
  });
  if (result.reason) worker.report(`round ${round}: ${result.reason}`);
  return true;
}

/** A larger list of members, or of signatures, is not downloaded. */
const MAX_SHARED_BYTES = 16 * 1024 * 1024;

/** @param {DeviceWorker} worker @param {string} reason */
async function leaveOut(worker, reason) {
  await worker.stateStore.change(({ memory }) => ({ memory: { ...memory, followed: true } }));
  worker.report(reason);
  return true;
}

/** @param {DeviceWorker} worker @param {KeptSum} kept @returns {Promise<client.VectorReady>} */
async function vectorOf({ store }, { batch, bound, layout }) {
  const numbers = (await store.get(MASKED_NUMBERS))?.[batch];
  if (!numbers) throw new WireError("the phone does not have the numbers any more that it was about to add");
  return { vector: numbers.vector, bound, layout };
}

/**
 * @param {DeviceWorker} worker @param {Means} means
 * @param {{colluding: number, minMembers: number, groups?: number, voucherKey?: string | null}} insists
 * @returns {Promise<client.SumDevice>}
 */
async function deviceOf(worker, { device, key, identity, federation }, { colluding, minMembers, groups = 1, voucherKey }) {
  const insists = { name: device, key, identity, colluding, minMembers, groups };
  if (!voucherKey) return insists;
  const { voucher = "", revoked = "" } = worker.stateStore.current.memory;
  const vouches = keyOf(voucherKey);
  const listed = revoked && (await readRevoked(vouches, federation, utf8(revoked)).catch(() => null));
  const check = { key: vouches, revoked: listed ? listed.identities : [], nowMs: worker.clock.now() };
  return { ...insists, voucher: utf8(voucher), vouchers: check };
}

/**
 * @param {DeviceWorker} worker @param {Announcement} a @param {Omit<KeptSum, "state">} about
 * @param {client.ToServer} message @param {Means} means
 */
function messageOf(worker, a, { instance, round, windows, sequence, base }, message, { key, federation, device }) {
  const part = /** @type {const} */ ({
    "sum-keys": "keys",
    "sum-shares": "shares",
    "sum-vector": "vector",
    "sum-list": "list",
    "sum-opened": "opened",
  })[message.kind];
  const method = String(a.plan.method.name);
  const createdS = worker.clock.now() / 1000;
  const about = { federation, device, instance, round, method, base, chunkBytes: a.chunk_bytes, createdS };
  const source = part === "keys" ? { windows, sequence } : { windows: [], sequence: null };
  return sumMessage(key, { ...about, ...source }, part, packed(message));
}
