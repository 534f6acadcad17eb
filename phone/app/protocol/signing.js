/**
 * Signed messages: federation/protocol/signing.py. The bytes are verified as they came, and parsed only then.
 *
 *     gaitway-signed/1 {base64 of 64 bytes}\n{body}
 *
 * The signature is Ed25519 (RFC 8032) over `gaitway-signed/1\n{kind}\n{federation}\n{device}\n{body}`.
 */

import { TrustError, WireError } from "./errors.js";

export const MARK = "gaitway-signed/1";
const HEADER_BYTES = MARK.length + 1 + 88;
const KEY_BYTES = 32;
const FINGERPRINT_DIGITS = 32;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** @typedef {"announcement" | "invitation" | "offer" | "acknowledgement" | "notice"} ServerKind what the server says */
/** @typedef {"sum-keys" | "sum-shares" | "sum-vector" | "sum-list" | "sum-opened"} SumKind of a secure sum */
/** @typedef {ServerKind | SumKind | "update" | "refusal" | "model-refusal" | "voucher" | "revoked" | "enrol" | "claim" | "token"} Kind */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */

/** @param {string} text @returns {Bytes} */
export function utf8(text) {
  return encoder.encode(text);
}

/** Read UTF-8; throws a WireError. @param {Uint8Array} bytes @returns {string} */
export function textOf(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    throw new WireError(`${bytes.length} bytes came that are not UTF-8`);
  }
}

/** @param {Uint8Array} bytes @returns {string} */
export function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/**
 * Read base64 of exactly so many bytes; null if it is not.
 * @param {string} text @param {number} size @returns {Bytes | null}
 */
export function fromBase64(text, size) {
  if (text.length !== 4 * Math.ceil(size / 3) || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return null;
  try {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    return bytes.length === size ? bytes : null;
  } catch {
    return null;
  }
}

/** @param {Uint8Array} bytes @returns {string} lower-case hexadecimal */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Uint8Array} bytes @returns {Promise<string>} lower-case hexadecimal */
export async function sha256(bytes) {
  return toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {Bytes} */ (bytes))));
}

/**
 * The bytes that a signature is over; `device` is empty in what is said to all.
 * @param {Kind} kind @param {string} federation @param {string} device @param {Uint8Array} body @returns {Bytes}
 */
export function toSign(kind, federation, device, body) {
  return joined(utf8(`${MARK}\n${kind}\n${federation}\n${device}\n`), body);
}

/** Parts one after the other. @param {Uint8Array[]} parts @returns {Bytes} */
export function joined(...parts) {
  const found = new Uint8Array(parts.reduce((size, { length }) => size + length, 0));
  let at = 0;
  for (const part of parts) {
    found.set(part, at);
    at += part.length;
  }
  return found;
}

/**
 * Sign a request that proves itself.
 * @param {CryptoKey} key @param {Kind} kind @param {string} federation @param {string} device @param {string} body
 * @returns {Promise<string>} base64
 */
export async function signed(key, kind, federation, device, body) {
  const signature = await crypto.subtle.sign("Ed25519", key, toSign(kind, federation, device, utf8(body)));
  return toBase64(new Uint8Array(signature));
}

/**
 * Put its signature before a body.
 * @param {CryptoKey} key @param {Kind} kind @param {string} federation @param {string} device @param {string} body
 * @returns {Promise<Bytes>}
 */
export async function wrap(key, kind, federation, device, body) {
  return utf8(`${MARK} ${await signed(key, kind, federation, device, body)}\n${body}`);
}

/**
 * Take a message apart without believing it; one without the line of a signature is all body.
 * @param {Uint8Array} payload @returns {{body: Uint8Array, signature: Bytes | null}}
 */
export function unwrap(payload) {
  const mark = utf8(MARK);
  if (!mark.every((byte, i) => payload[i] === byte)) return { body: payload, signature: null };
  const head = String.fromCharCode(...payload.subarray(0, HEADER_BYTES + 1));
  const found = /^gaitway-signed\/1 ([A-Za-z0-9+/]{86}==)\n$/.exec(head);
  const signature = found && fromBase64(found[1], 64);
  if (!signature) {
    throw new WireError(`a signed message begins with '${MARK} ', 88 characters of base64 and a line break`);
  }
  return { body: payload.subarray(HEADER_BYTES + 1), signature };
}

/**
 * The body of a message that the server has signed for this device, or for all of its federation.
 * @param {CryptoKey} serverKey @param {ServerKind} kind @param {string} federation @param {string} device
 * @param {Uint8Array} payload @returns {Promise<Uint8Array>} throws a TrustError, or a WireError
 */
export async function verified(serverKey, kind, federation, device, payload) {
  const { body, signature } = unwrap(payload);
  if (!signature) throw new TrustError(`the ${kind} is not signed, and this phone takes only what its server signs`);
  const over = toSign(kind, federation, kind === "announcement" ? "" : device, body);
  if (!(await crypto.subtle.verify("Ed25519", serverKey, signature, over))) {
    throw new TrustError(
      `the ${kind} is not signed by this phone's server for federation '${federation}': somebody speaks in its ` +
        "place, or it has a new key; ask its operator, and enrol anew with a new link",
    );
  }
  return body;
}

/** @param {string} text base64 of a raw public key @returns {Promise<CryptoKey>} throws a WireError */
export async function publicKeyOf(text) {
  const raw = fromBase64(text, KEY_BYTES);
  if (!raw) throw new WireError(`a public key is base64 of ${KEY_BYTES} bytes, and another text came`);
  try {
    return await fromEd25519(raw);
  } catch {
    throw new WireError("the server's public key is no point of Ed25519's curve");
  }
}

/** A key to verify by, of its 32 bytes. @param {Bytes} raw @returns {Promise<CryptoKey>} */
export function fromEd25519(raw) {
  return crypto.subtle.importKey("raw", raw, "Ed25519", true, ["verify"]);
}

/** Name a public key by the first 128 bits of its SHA-256. @param {string} text base64 @returns {Promise<string>} */
export async function fingerprint(text) {
  const raw = fromBase64(text, KEY_BYTES);
  return raw ? (await sha256(raw)).slice(0, FINGERPRINT_DIGITS) : "";
}

/** The fingerprint of the server's key that an enrolment token names; empty if it names none. @param {string} token */
export function pinnedKey(token) {
  return /^gwe_.*_([0-9a-f]{32})$/.exec(token)?.[1] ?? "";
}
