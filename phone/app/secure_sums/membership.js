/**
 * What a phone reads off the request and the list of members: places, neighbours, and what keys are for.
 * federation/secure_sums/membership.py, federation/secure_sums/messages.py.
 */

import { WireError } from "../protocol/errors.js";
import { fromEd25519, joined, textOf, toBase64, toSign, unwrap, utf8 } from "../protocol/signing.js";
import { addTo, derived, pairKey, stream } from "./masks.js";
import { MAX_MESSAGE_BYTES, MAX_SIGNED_BYTES, SHARE_DIGEST_BYTES } from "./messages.generated.js";
import { memberList, publicKeys, sumRequest } from "./messages.generated.js";
import { bigEndian, degreeFor, groupsOf, neighboursOf } from "./neighbours.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {import("../protocol/signing.js").Kind} Kind */
/** @typedef {import("./messages.generated.js").SumRequest} SumRequest */
/** @typedef {import("./messages.generated.js").PublicKeys} PublicKeys */
/** @typedef {import("./masks.js").PrivateKey} PrivateKey */

/**
 * Read a message; throws a WireError.
 * @template T @param {import("../protocol/checks.js").Check<T>} check @param {Bytes} body @param {string} what
 * @param {number} [limit] bytes @returns {T}
 */
export function read(check, body, what, limit = MAX_MESSAGE_BYTES) {
  if (body.length > limit) throw new WireError(`a ${what} of ${body.length} bytes came; at most ${limit} were expected`);
  let value;
  try {
    value = JSON.parse(textOf(body));
  } catch {
    throw new WireError(`a ${what} came that is not JSON`);
  }
  return check(value, what);
}

/** Write a message: its bytes are base64, as Python writes them. @param {Record<string, any>} message */
export function written(message) {
  return JSON.stringify(message, (_, value) => {
    return value instanceof Uint8Array ? toBase64(value).replaceAll("+", "-").replaceAll("/", "_") : value;
  });
}

/** SHA-256 of one message, or of parts of fixed lengths. @param {Bytes[]} parts @returns {Promise<Bytes>} */
export async function digest(...parts) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined(...parts)));
}

/** The digest of those who dealt shares. @param {readonly number[]} dealers */
export function dealersDigest(dealers) {
  return digest(utf8("dealers"), ...dealers.map(bigEndian));
}

/** What a device publishes of its seed. @param {Bytes} seed */
export function seedCommitment(seed) {
  return digest(utf8("gaitway-secure-sums/1 seed"), seed);
}

/** What a dealer publishes of a share. @param {Bytes} share */
export async function shareDigest(share) {
  return (await digest(utf8("gaitway-secure-sums/1 share"), share)).slice(0, SHARE_DIGEST_BYTES);
}

/** @param {Uint8Array} one @param {Uint8Array} other */
export function areSame(one, other) {
  return one.length === other.length && one.every((byte, i) => byte === other[i]);
}

/**
 * The body of a message that this device has signed; throws a WireError if it has not.
 * @param {Kind} kind @param {string} federation @param {string} device @param {Bytes} identity @param {Bytes} payload
 * @returns {Promise<Bytes>}
 */
export async function verifiedOf(kind, federation, device, identity, payload) {
  const { body, signature } = unwrap(payload);
  const isRight = signature && (await isSigned(toSign(kind, federation, device, body), signature, identity));
  if (!isRight) throw new WireError(`a message of ${device} (${kind}) is not signed by its key`);
  return /** @type {Bytes} */ (body);
}

/** Whether a signature is an identity's. @param {Bytes} text @param {Bytes} signature @param {Bytes} identity */
export async function isSigned(text, signature, identity) {
  try {
    return await crypto.subtle.verify("Ed25519", await fromEd25519(identity), signature, text);
  } catch {
    return false;
  }
}

/** The list of members under one request. */
export class Membership {
  /**
   * Read it; throws a WireError if it is of another request, not by rising name, of too few, or has anybody twice.
   * @param {Bytes} request @param {Bytes} members @returns {Promise<Membership>}
   */
  static async read(request, members) {
    const requested = read(sumRequest, request, "SumRequest");
    const found = read(memberList, members, "MemberList");
    const requestDigest = await digest(request);
    if (!areSame(found.request, requestDigest)) throw new WireError("the list of members is of another sum");
    const names = found.members.map(({ device }) => device);
    const identities = new Set(found.members.map(({ identity }) => toBase64(identity)));
    if (names.some((name, i) => i && names[i - 1] >= name) || identities.size < names.length) {
      throw new WireError("the list of members is not by rising name, or has a device twice");
    }
    const needed = requested.min_members * requested.groups;
    if (names.length < needed) throw new WireError(`the list has ${names.length} members, ${needed} are needed`);
    return new Membership(requested, requestDigest, await digest(members), found.members);
  }

  /**
   * @param {SumRequest} request @param {Bytes} requestDigest @param {Bytes} ownDigest
   * @param {import("./messages.generated.js").ListedMember[]} members
   */
  constructor(request, requestDigest, ownDigest, members) {
    this.request = request;
    this.requestDigest = requestDigest;
    this.digest = ownDigest;
    this.members = members;
    this.degree = degreeFor(members.length, request.colluding, request.lost);
    /** @type {Map<number, Promise<PublicKeys>>} */ this.keys = new Map();
  }

  /** Where a device stands in the list; −1: it is not in it. @param {string} device */
  placeOf(device) {
    return this.members.findIndex((member) => member.device === device);
  }

  /** In which group each member is. @returns {Promise<number[]>} */
  groups() {
    const names = this.members.map(({ device }) => device);
    return groupsOf(names, this.request.groups, this.request.round);
  }

  /**
   * A member's numbers in its group's part of a vector of zeros.
   * @param {number} index @param {ArrayLike<number>} numbers @returns {Promise<Float64Array>}
   */
  async inItsGroup(index, numbers) {
    const found = new Float64Array(this.request.length);
    found.set(numbers, (await this.groups())[index] * numbers.length);
    return found;
  }

  /** Throws a WireError where a group has too few of those included. @param {readonly number[]} included */
  async checkGroups(included) {
    const { groups: count, min_members: needed } = this.request;
    const groups = await this.groups();
    const present = Array.from({ length: count }, () => 0);
    for (const index of included) present[groups[index]] += 1;
    const least = Math.min(...present);
    if (least < needed) throw new WireError(`a group's sum would be of ${least} devices, ${needed} are needed`);
  }

  /** @param {number} index @returns {Promise<number[]>} in rising order */
  neighbours(index) {
    return neighboursOf(index, this.members.length, this.degree.neighbours, this.digest);
  }

  /** A member's keys, whose signature is by its identity in the list; throws a WireError. @param {number} index */
  keysOf(index) {
    const known = this.keys.get(index) ?? this.readKeys(index);
    this.keys.set(index, known);
    return known;
  }

  /** @param {number} index @returns {Promise<PublicKeys>} */
  async readKeys(index) {
    const { device, identity, keys } = this.members[index];
    const body = await verifiedOf("sum-keys", this.request.federation, device, identity, keys);
    const found = read(publicKeys, body, "PublicKeys", MAX_SIGNED_BYTES);
    if (found.device !== device || !areSame(found.request, this.requestDigest)) {
      throw new WireError(`the keys in the list for ${device} are those of another device or sum`);
    }
    return found;
  }

  get maskBytes() {
    return (this.request.length * this.request.bits) / 8;
  }

  /**
   * Add what a member adds for a neighbour: r where its place is lower, −r where it is higher.
   * @param {Uint32Array} total changed @param {PrivateKey} own key @param {number} place @param {number} other
   */
  async addPairMask(total, own, place, other) {
    const [low, high] = place < other ? [place, other] : [other, place];
    const purpose = joined(utf8("pair mask"), this.digest, bigEndian(low), bigEndian(high));
    const key = await pairKey(own, (await this.keysOf(other)).mask_key, purpose);
    addTo(total, await stream(key, this.maskBytes), place === low ? 1 : -1, this.request.bits);
  }

  /** Add the mask that a member adds of its seed. @param {Uint32Array} total changed @param {Bytes} seed @param {number} place */
  async addOwnMask(total, seed, place) {
    const key = await derived(seed, joined(utf8("own mask"), this.digest, bigEndian(place)));
    addTo(total, await stream(key, this.maskBytes), 1, this.request.bits);
  }

  /**
   * What a member's shares for another are bound to, and sealed for. @param {number} sender @param {number} receiver
   */
  channel(sender, receiver) {
    return joined(utf8("shares"), this.digest, bigEndian(sender), bigEndian(receiver));
  }
}
