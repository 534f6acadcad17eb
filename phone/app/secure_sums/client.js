/**
 * A phone's half of a secure sum as a state machine without I/O: federation/secure_sums/client.py, message by message. An
 * event goes in, the state and what is to be sent come out; whoever drives it has the state in the store before it sends.
 *
 * keys → shares → ready → vector → list → opened, or aborted with a reason. Whatever the server says, a phone opens shares
 * once, for one list that enough members have signed, and of each neighbour either the seed's share or the mask key's.
 */

import { WireError } from "../protocol/errors.js";
import { joined, toSign, utf8, wrap } from "../protocol/signing.js";
import { inRing, pairKey, privateKey, seal, unseal } from "./masks.js";
import { Membership, areSame, dealersDigest, digest, isSigned, read, seedCommitment } from "./membership.js";
import { shareDigest, verifiedOf, written } from "./membership.js";
import { SHARE_BYTES, confirmedList, deliveredShares, includedList } from "./messages.generated.js";
import { maskedVector, signatureList, sumRequest } from "./messages.generated.js";
import { SECRET_BYTES, split } from "./shamir.js";
import { voucherFault } from "./vouching.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {import("../protocol/signing.js").SumKind} SumKind */
/** @typedef {"request" | "members" | "shares" | "included" | "confirmed"} ServerMessage */
/** @typedef {{kind: SumKind, payload: Bytes, vector?: Bytes}} ToServer */
/** @typedef {{kind: ServerMessage, body: Bytes, shared?: Bytes}} FromServer shared: what all members are told alike */
/** @typedef {{vector: ArrayLike<number>, bound: number, layout: Bytes}} VectorReady the phone's whole numbers */

/**
 * @typedef {object} SumDevice Who takes part, and what it insists on.
 * @property {string} name @property {CryptoKey} key signs @property {Bytes} identity its public key
 * @property {number} colluding per mille @property {number} minMembers
 * @property {number} [groups] of the plan; 1 where it has none
 * @property {Bytes} [voucher] which it shows with its keys
 * @property {import("./vouching.js").VoucherCheck | null} [vouchers] by which it judges those of all members; null: the
 *   server alone says who is a member
 * @property {import("./shamir.js").Entropy} [entropy]
 */

/**
 * @typedef {object} ClientState Everything that a phone must not lose in a sum; empty where it has not come to that.
 * @property {"keys" | "shares" | "ready" | "vector" | "list" | "opened" | "aborted"} stage what it has done last
 * @property {Bytes} request @property {Bytes} maskPrivate @property {Bytes} channelPrivate @property {Bytes} seed
 * @property {Bytes} keysSent @property {Bytes} members @property {Bytes} sharesSent @property {Bytes} delivered
 * @property {[number, Bytes][]} held by dealer: its mask key's share, then its seed's
 * @property {Bytes} vectorSha256 @property {Bytes} vectorSent @property {Bytes} included @property {Bytes} listSent
 * @property {Bytes} openedSent @property {string} reason
 */

/** @typedef {{state: ClientState, message?: ToServer, reason?: string}} ClientStep reason: why nothing came of it */

const MAX_DRAW_BYTES = 65_536;
const NOTHING = new Uint8Array(0);

/** Random bytes of the browser's. @param {number} size @returns {Bytes} */
export function entropyOf(size) {
  const found = new Uint8Array(size);
  for (let at = 0; at < size; at += MAX_DRAW_BYTES) crypto.getRandomValues(found.subarray(at, at + MAX_DRAW_BYTES));
  return found;
}

/**
 * Answer a request with fresh keys; throws a WireError if it is none, or asks for less than the phone insists on.
 * @param {SumDevice} device @param {Bytes} request @returns {Promise<{state: ClientState, message: ToServer}>}
 */
export async function begin(device, request) {
  const requested = read(sumRequest, request, "SumRequest");
  if (requested.min_members < device.minMembers || requested.colluding < device.colluding) {
    throw new WireError(
      `the sum would be of ${requested.min_members} devices or more, of which ${requested.colluding} per mille may work for the ` +
        `server; this device insists on ${device.minMembers} and ${device.colluding}`,
    );
  }
  const groups = device.groups ?? 1;
  if (requested.groups !== groups || requested.length % requested.groups) {
    throw new WireError(
      `the sum would be of ${requested.groups} groups of devices and ${requested.length} numbers; this device insists on ` +
        `${groups}, as the plan has them`,
    );
  }
  const { voucher = NOTHING, vouchers } = device;
  const fault = vouchers && (await voucherFault(vouchers, requested.federation, device.name, device.identity, voucher));
  if (fault) throw new WireError(fault);
  const [mask, channel, seed] = [0, 1, 2].map(() => (device.entropy ?? entropyOf)(SECRET_BYTES));
  const keys = {
    request: await digest(request),
    device: device.name,
    mask_key: (await privateKey(mask)).publicKey,
    channel_key: (await privateKey(channel)).publicKey,
    seed_commitment: await seedCommitment(seed),
    ...(voucher.length && { voucher }),
  };
  const keysSent = await signedBy(device, requested.federation, "sum-keys", keys);
  const secrets = { maskPrivate: mask, channelPrivate: channel, seed };
  const state = { ...emptyState("keys", request), ...secrets, keysSent };
  return { state, message: { kind: "sum-keys", payload: keysSent } };
}

/** @param {ClientState["stage"]} stage @param {Bytes} request @returns {ClientState} */
function emptyState(stage, request) {
  const secrets = { maskPrivate: NOTHING, channelPrivate: NOTHING, seed: NOTHING };
  const sent = { keysSent: NOTHING, sharesSent: NOTHING, vectorSent: NOTHING, listSent: NOTHING, openedSent: NOTHING };
  const received = { members: NOTHING, delivered: NOTHING, included: NOTHING, held: [] };
  return { stage, request, ...secrets, ...sent, ...received, vectorSha256: NOTHING, reason: "" };
}

/** @param {SumDevice} device @param {string} federation @param {SumKind} kind @param {Record<string, any>} message */
function signedBy(device, federation, kind, message) {
  return wrap(device.key, kind, federation, device.name, written(message));
}

/**
 * Apply one event. What comes again is answered again; what comes too early changes nothing.
 * @param {SumDevice} device @param {ClientState} state @param {FromServer | VectorReady} event @returns {Promise<ClientStep>}
 */
export async function step(device, state, event) {
  if (state.stage === "aborted") return { state, reason: state.reason };
  try {
    if ("vector" in event) return await mask(device, state, event);
    return await ANSWERS[event.kind](device, state, event.body, event.shared);
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    const left = { ...emptyState("aborted", state.request), reason: error.message };
    return { state: left, reason: error.message };
  }
}

/**
 * Answer what came before as it was answered then; throws a WireError if it is not the same as before.
 * @param {ClientState} state @param {Bytes} before @param {Bytes} now @param {ToServer | undefined} sent @param {string} what
 * @returns {ClientStep}
 */
function again(state, before, now, sent, what) {
  if (!areSame(before, now)) throw new WireError(`the server shows two different ${what} in one sum`);
  return { state, ...(sent && { message: sent }) };
}

/** @param {ClientState} state @param {string} what @returns {ClientStep} */
function early(state, what) {
  return { state, reason: `${what} came before its time: the device has got as far as ${state.stage}` };
}

/** Check the list, and deal shares of both secrets to the neighbours. @type {Answer} */
async function answerMembers(device, state, own, shared) {
  const body = shared ?? own;
  const sent = /** @type {ToServer} */ ({ kind: "sum-shares", payload: state.sharesSent });
  if (state.members.length) return again(state, state.members, body, sent, "lists of members");
  const listed = await Membership.read(state.request, body);
  const place = listed.placeOf(device.name);
  const listedSelf = listed.members[place];
  if (!listedSelf || !areSame(listedSelf.keys, state.keysSent) || !areSame(listedSelf.identity, device.identity)) {
    throw new WireError("the list of members does not have this device with its own keys");
  }
  await checkVouchers(device, listed);
  const sharesSent = await dealt(device, state, listed, place);
  const new_ = { ...state, stage: /** @type {const} */ ("shares"), members: body, sharesSent };
  return { state: new_, message: { kind: "sum-shares", payload: sharesSent } };
}

/** Throws a WireError where a member may be the server's invention. @param {SumDevice} device @param {Membership} listed */
async function checkVouchers({ vouchers }, listed) {
  if (!vouchers) return;
  for (const [place, { device, identity }] of listed.members.entries()) {
    const { voucher } = await listed.keysOf(place);
    const fault = await voucherFault(vouchers, listed.request.federation, device, identity, voucher);
    if (fault) throw new WireError(fault);
  }
}

/** @param {SumDevice} device @param {ClientState} state @param {Membership} listed @param {number} place */
async function dealt(device, state, listed, place) {
  const holders = await listed.neighbours(place);
  const points = holders.map((holder) => holder + 1);
  const secrets = [state.maskPrivate, state.seed];
  const entropy = device.entropy ?? entropyOf;
  const [maskShares, seedShares] = secrets.map((secret) => split(secret, points, listed.degree.threshold, entropy));
  const channel = await privateKey(state.channelPrivate);
  /** @param {number} holder @param {number} i */
  const sealedFor = async (holder, i) => {
    const boundTo = listed.channel(place, holder);
    const key = await pairKey(channel, (await listed.keysOf(holder)).channel_key, boundTo);
    return seal(key, joined(maskShares[i], seedShares[i]), boundTo);
  };
  const shares = {
    members: listed.digest,
    sealed: await Promise.all(holders.map(sealedFor)),
    mask_key_digests: await Promise.all(maskShares.map(shareDigest)),
    seed_digests: await Promise.all(seedShares.map(shareDigest)),
  };
  return signedBy(device, listed.request.federation, "sum-shares", shares);
}

/** Open what the neighbours have dealt; a text that cannot be opened is one share less. @type {Answer} */
async function answerShares(device, state, body) {
  if (state.delivered.length) return again(state, state.delivered, body, undefined, "deliveries of shares");
  if (state.stage !== "shares") return early(state, "shares");
  const listed = await Membership.read(state.request, state.members);
  const delivered = read(deliveredShares, body, "DeliveredShares");
  const place = listed.placeOf(device.name);
  checkRising(delivered.dealers, (dealer) => dealer < listed.members.length, "dealers");
  if (!areSame(delivered.members, listed.digest) || !delivered.dealers.includes(place)) {
    throw new WireError("the shares are of another list of members, or this device's own were lost");
  }
  const dealers = new Set(delivered.dealers);
  const expected = new Set((await listed.neighbours(place)).filter((other) => dealers.has(other)));
  const channel = await privateKey(state.channelPrivate);
  /** @type {Map<number, Bytes>} */ const held = new Map();
  for (const { sender, sealed } of delivered.shares) {
    if (!expected.has(sender)) continue;
    const boundTo = listed.channel(sender, place);
    const key = await pairKey(channel, (await listed.keysOf(sender)).channel_key, boundTo);
    const text = await unseal(key, sealed, boundTo);
    if (text) held.set(sender, text);
  }
  return { state: { ...state, stage: "ready", delivered: body, held: [...held] } };
}

/**
 * Add the masks to the phone's own numbers; whatever happens, one vector alone leaves under them.
 * @param {SumDevice} device @param {ClientState} state @param {VectorReady} event @returns {Promise<ClientStep>}
 */
async function mask(device, state, event) {
  if (state.stage === "keys" || state.stage === "shares") return early(state, "the vector");
  if (state.stage === "list" || state.stage === "opened") {
    return { state, reason: "the list of those included is signed: the vector is of no use any more" };
  }
  const listed = await Membership.read(state.request, state.members);
  checkVector(listed, event);
  const { dealers } = read(deliveredShares, state.delivered, "DeliveredShares");
  const vector = await masked(listed, state, listed.placeOf(device.name), dealers, event.vector);
  const sha256 = await digest(vector);
  if (state.vectorSha256.length) {
    if (!areSame(sha256, state.vectorSha256)) {
      throw new WireError(
        "the device has other numbers than those that it has sent: both would show their difference",
      );
    }
    return { state, message: { kind: "sum-vector", payload: state.vectorSent, vector } };
  }
  const head = { members: listed.digest, dealers: await dealersDigest(dealers), sha256 };
  const vectorSent = await signedBy(device, listed.request.federation, "sum-vector", head);
  const new_ = { ...state, stage: /** @type {const} */ ("vector"), vectorSha256: sha256, vectorSent };
  return { state: new_, message: { kind: "sum-vector", payload: vectorSent, vector } };
}

/** @param {Membership} listed @param {VectorReady} event */
function checkVector({ request, members }, { vector, bound, layout }) {
  if (!areSame(layout, request.layout) || vector.length !== request.length / request.groups) {
    throw new WireError("the server asks for a sum of other numbers than the plan has");
  }
  if (members.length * bound >= 2 ** (request.bits - 1)) {
    throw new WireError(`the sum of ${members.length} numbers of up to ${bound} does not fit ${request.bits} bits`);
  }
  for (let i = 0; i < vector.length; i++) {
    if (!(Math.abs(vector[i]) <= bound)) {
      throw new WireError(`a number is beyond ${bound}, which the scales of the plan allow`);
    }
  }
}

/**
 * x + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv), over the neighbours v that dealt shares.
 * @param {Membership} listed @param {ClientState} state @param {number} place @param {readonly number[]} dealers
 * @param {ArrayLike<number>} vector @returns {Promise<Bytes>}
 */
async function masked(listed, state, place, dealers, vector) {
  const total = inRing(await listed.inItsGroup(place, vector), listed.request.bits);
  await listed.addOwnMask(total, state.seed, place);
  const own = await privateKey(state.maskPrivate);
  const dealt = new Set(dealers);
  for (const other of await listed.neighbours(place)) {
    if (dealt.has(other)) await listed.addPairMask(total, own, place, other);
  }
  return new Uint8Array(total.buffer);
}

/** Sign the list of those included, once. @type {Answer} */
async function answerIncluded(device, state, own, shared) {
  const body = shared ?? own;
  const sent = /** @type {ToServer} */ ({ kind: "sum-list", payload: state.listSent });
  if (state.included.length) return again(state, state.included, body, sent, "lists of those included");
  if (state.stage !== "vector") return early(state, "the list of those included");
  const listed = await Membership.read(state.request, state.members);
  const found = read(includedList, body, "IncludedList");
  const { dealers } = read(deliveredShares, state.delivered, "DeliveredShares");
  if (!areSame(found.members, listed.digest) || String(found.dealers) !== String(dealers)) {
    throw new WireError("the server shows two different lists of those who dealt shares in one sum");
  }
  const mayBe = new Set(dealers);
  checkRising(found.included, (member) => mayBe.has(member), "those included");
  if (!found.included.includes(listed.placeOf(device.name))) {
    throw new WireError("this device's vector did not come in time");
  }
  if (found.included.length < Math.max(listed.request.min_members, listed.degree.quorum)) {
    throw new WireError(`the sum would be of ${found.included.length} devices: too few are left`);
  }
  await listed.checkGroups(found.included);
  const over = toSign("sum-list", listed.request.federation, device.name, body);
  const signature = new Uint8Array(await crypto.subtle.sign("Ed25519", device.key, over));
  const listSent = utf8(written({ included: await digest(body), signature }));
  const new_ = { ...state, stage: /** @type {const} */ ("list"), included: body, listSent };
  return { state: new_, message: { kind: "sum-list", payload: listSent } };
}

/** Open shares, once enough members have signed the same list; then forget all secrets. @type {Answer} */
async function answerConfirmed(device, state, body, shared) {
  if (state.stage === "opened") return { state, message: { kind: "sum-opened", payload: state.openedSent } };
  if (state.stage !== "list") return early(state, "the signatures of the list");
  const listed = await Membership.read(state.request, state.members);
  const found = read(confirmedList, body, "ConfirmedList");
  const apart = shared ? read(signatureList, shared, "SignatureList") : found;
  const included = read(includedList, state.included, "IncludedList");
  const ownDigest = await digest(state.included);
  if (!areSame(found.included, ownDigest) || !areSame(apart.included, ownDigest)) {
    throw new WireError("the server shows two different lists of those included in one sum");
  }
  const present = new Set(included.included);
  await checkQuorum(listed, state.included, present, apart.signatures);
  await checkHeads(listed, listed.placeOf(device.name), present, included.dealers, found.heads);
  const opened = await signedBy(device, listed.request.federation, "sum-opened", openedShares(state, ownDigest, present));
  const kept = { members: state.members, delivered: state.delivered, included: state.included, listSent: state.listSent };
  const left = { ...emptyState("opened", state.request), ...kept, openedSent: opened };
  return { state: left, message: { kind: "sum-opened", payload: opened } };
}

/**
 * @param {Membership} listed @param {Bytes} body of the list @param {Set<number>} present
 * @param {import("./messages.generated.js").MemberSignature[]} signatures
 */
async function checkQuorum({ request, members, degree }, body, present, signatures) {
  let valid = 0;
  const signers = new Map(signatures.filter(({ member }) => present.has(member)).map((each) => [each.member, each.signature]));
  for (const [member, signature] of signers) {
    const { device, identity } = members[member];
    valid += Number(await isSigned(toSign("sum-list", request.federation, device, body), signature, identity));
    if (valid === degree.quorum) return;
  }
  throw new WireError(`${valid} members have signed the list of those included, ${degree.quorum} are needed`);
}

/**
 * See that every neighbour in the sum has masked its numbers with all dealers of the list.
 * @param {Membership} listed @param {number} place @param {Set<number>} present @param {readonly number[]} dealers
 * @param {import("./messages.generated.js").SignedHead[]} heads
 */
async function checkHeads(listed, place, present, dealers, heads) {
  const headOf = new Map(heads.map(({ member, head }) => [member, head]));
  const masksOf = await dealersDigest(dealers);
  for (const member of await listed.neighbours(place)) {
    if (!present.has(member)) continue;
    const { device, identity } = listed.members[member];
    const signed = headOf.get(member);
    if (!signed) throw new WireError(`the server does not show what ${device} has signed of its vector`);
    const body = await verifiedOf("sum-vector", listed.request.federation, device, identity, signed);
    const head = read(maskedVector, body, "MaskedVector");
    if (!areSame(head.members, listed.digest) || !areSame(head.dealers, masksOf)) {
      throw new WireError(`the server has told ${device} of other dealers than the list has: it lacks masks`);
    }
  }
}

/** @param {ClientState} state @param {Bytes} included @param {Set<number>} present */
function openedShares(state, included, present) {
  const held = [...state.held].sort(([one], [other]) => one - other);
  const shares = (/** @type {boolean} */ isPresent, /** @type {number} */ from) =>
    held
      .filter(([owner]) => present.has(owner) === isPresent)
      .map(([owner, text]) => ({ owner, share: text.slice(from, from + SHARE_BYTES) }));
  return { included, seeds: shares(true, SHARE_BYTES), mask_keys: shares(false, 0) };
}

/** @param {readonly number[]} members @param {(member: number) => boolean} isAllowed @param {string} what */
function checkRising(members, isAllowed, what) {
  if (members.some((member, i) => (i && members[i - 1] >= member) || !isAllowed(member))) {
    throw new WireError(`the list of ${what} does not rise, or has somebody who cannot be in it`);
  }
}

/** @typedef {(device: SumDevice, state: ClientState, body: Bytes, shared?: Bytes) => Promise<ClientStep>} Answer */
/** @type {Record<ServerMessage, Answer>} */
const ANSWERS = {
  request: async (_device, state, body) =>
    again(state, state.request, body, { kind: "sum-keys", payload: state.keysSent }, "requests"),
  members: answerMembers,
  shares: answerShares,
  included: answerIncluded,
  confirmed: answerConfirmed,
};
