/**
 * Who vouches for the members of a secure sum: a key that the server does not have signs each device's key, offline.
 * federation/secure_sums/vouching.py.
 */

import { list, object, text, whole } from "../protocol/checks.js";
import { WireError } from "../protocol/errors.js";
import { fromBase64, toBase64, toSign, unwrap } from "../protocol/signing.js";
import { isSigned, read } from "./membership.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {{key: Bytes, revoked: readonly string[], nowMs: number}} VoucherCheck revoked: identities as base64 */

const KEY_BYTES = 32;
const MAX_REVOKED = 500;
const IDENTITY = text(44, /^[A-Za-z0-9+/]{43}=$/);
const voucherText = object({ identity: IDENTITY, expires: whole(0, Number.MAX_SAFE_INTEGER) });
const revokedText = object({
  serial: whole(0, Number.MAX_SAFE_INTEGER),
  identities: list(text(1024), MAX_REVOKED),
});

/** @param {string} key base64, as the plan has it @returns {Bytes} throws a WireError */
export function keyOf(key) {
  const found = fromBase64(key, KEY_BYTES);
  if (!found) throw new WireError("secure.voucher is not a public key");
  return found;
}

/**
 * @param {"voucher" | "revoked"} kind @param {Bytes} key @param {string} federation @param {string} device
 * @param {Bytes} payload @returns {Promise<Bytes>} throws a WireError where the key has not signed it
 */
async function verifiedBy(kind, key, federation, device, payload) {
  const { body, signature } = unwrap(payload);
  const isRight = signature && (await isSigned(toSign(kind, federation, device, body), signature, key));
  if (!isRight) throw new WireError(`the ${kind} is not signed by the key that vouches for devices (secure.voucher)`);
  return /** @type {Bytes} */ (body);
}

/** Which identities a key revokes; throws a WireError. @param {Bytes} key @param {string} federation @param {Bytes} payload */
export async function readRevoked(key, federation, payload) {
  return read(revokedText, await verifiedBy("revoked", key, federation, "", payload), "RevokedIdentities");
}

/**
 * Why nobody vouches for a member; empty where its voucher holds.
 * @param {VoucherCheck} check @param {string} federation @param {string} device @param {Bytes} identity @param {Bytes} voucher
 */
export async function voucherFault({ key, revoked, nowMs }, federation, device, identity, voucher) {
  if (!voucher.length) return `nobody vouches for ${device}`;
  let found;
  try {
    found = read(voucherText, await verifiedBy("voucher", key, federation, device, voucher), "Voucher");
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    return `nobody vouches for ${device}: ${error.message}`;
  }
  if (found.identity !== toBase64(identity)) return `nobody vouches for ${device}: its voucher is for another key`;
  if (revoked.includes(found.identity)) return `nobody vouches for ${device} any more: its key is revoked`;
  return nowMs / 1000 < found.expires ? "" : `nobody vouches for ${device} any more: its voucher has expired`;
}
