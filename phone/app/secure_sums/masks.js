/**
 * Masks that cancel in the sum, by WebCrypto: federation/secure_sums/masks.py. Two neighbours agree on a key by X25519 and
 * HKDF with SHA-256; its stream is AES-256 in counter mode, read as whole numbers mod 2³² or 2⁶⁴.
 *
 * A vector of the ring is a Uint32Array: of 64 bits each number is two of its words, the lower one first.
 */

import { WireError } from "../protocol/errors.js";
import { joined, utf8 } from "../protocol/signing.js";

/** @typedef {import("../protocol/signing.js").Bytes} Bytes */
/** @typedef {{agree: CryptoKey, publicKey: Bytes}} PrivateKey */

export const KEY_BYTES = 32;
const LABEL = utf8("gaitway-secure-sums/1\n");
const NONCE = new Uint8Array(12); // a key seals one text
/** What comes before 32 bytes of an X25519 key in PKCS #8 (RFC 8410). */
const PKCS8 = Uint8Array.from([0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20]);

/** Take 32 random bytes for a private key. @param {Bytes} secret @returns {Promise<PrivateKey>} */
export async function privateKey(secret) {
  const agree = await crypto.subtle.importKey("pkcs8", joined(PKCS8, secret), "X25519", true, ["deriveBits"]);
  const { x } = await crypto.subtle.exportKey("jwk", agree);
  const text = atob(/** @type {string} */ (x).replaceAll("-", "+").replaceAll("_", "/"));
  return { agree, publicKey: Uint8Array.from(text, (each) => each.charCodeAt(0)) };
}

/**
 * The key that two agree on, for one purpose, which names round and pair; throws a WireError where the public key is of
 * small order, so that everybody knows what they agree on.
 * @param {PrivateKey} own @param {Bytes} publicKey @param {Bytes} purpose @returns {Promise<Bytes>}
 */
export async function pairKey(own, publicKey, purpose) {
  let shared;
  try {
    const other = await crypto.subtle.importKey("raw", publicKey, "X25519", false, []);
    shared = new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: other }, own.agree, 256));
  } catch {
    shared = new Uint8Array(KEY_BYTES);
  }
  if (shared.every((byte) => byte === 0)) {
    throw new WireError("a public key is of small order: everybody knows what anybody agrees on with it");
  }
  return derived(shared, purpose);
}

/** A key of a secret for one purpose. @param {Bytes} secret @param {Bytes} purpose @returns {Promise<Bytes>} */
export async function derived(secret, purpose) {
  const key = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const by = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info: joined(LABEL, purpose) };
  return new Uint8Array(await crypto.subtle.deriveBits(by, key, 8 * KEY_BYTES));
}

/**
 * So many bytes of a key's stream, as words of 32 bits. @param {Bytes} key @param {number} size a multiple of 4
 * @returns {Promise<Uint32Array<ArrayBuffer>>}
 */
export async function stream(key, size) {
  const cipher = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const by = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Uint32Array(await crypto.subtle.encrypt(by, cipher, new Uint8Array(size)));
}

/**
 * Whole numbers as vectors of the ring. @param {ArrayLike<number>} numbers whole, below 2⁵³ in size
 * @param {32 | 64} bits @returns {Uint32Array<ArrayBuffer>}
 */
export function inRing(numbers, bits) {
  const words = bits / 32;
  const found = new Uint32Array(numbers.length * words);
  for (let i = 0; i < numbers.length; i++) {
    found[i * words] = numbers[i] >>> 0; // wraps, as the ring does
    if (words === 2) found[2 * i + 1] = Math.floor(numbers[i] / 2 ** 32) >>> 0;
  }
  return found;
}

/**
 * Add a vector to another one, or take it off, mod 2^bits.
 * @param {Uint32Array} total changed @param {Uint32Array} mask @param {1 | -1} sign @param {32 | 64} bits
 */
export function addTo(total, mask, sign, bits) {
  if (bits === 32) {
    for (let i = 0; i < total.length; i++) total[i] += sign * mask[i];
    return;
  }
  for (let i = 0; i < total.length; i += 2) {
    const low = total[i] + sign * mask[i];
    total[i] = low;
    total[i + 1] += sign * mask[i + 1] + Math.floor(low / 2 ** 32); // the carry, −1 of a loan
  }
}

/** Encrypt a text under a key that is used once. @param {Bytes} key @param {Bytes} text @param {Bytes} boundTo */
export async function seal(key, text, boundTo) {
  const cipher = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  const by = { name: "AES-GCM", iv: NONCE, additionalData: boundTo };
  return new Uint8Array(await crypto.subtle.encrypt(by, cipher, text));
}

/**
 * Decrypt; null for what was not sealed under this key and bound to that.
 * @param {Bytes} key @param {Bytes} sealed @param {Bytes} boundTo @returns {Promise<Bytes | null>}
 */
export async function unseal(key, sealed, boundTo) {
  const cipher = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
  try {
    const by = { name: "AES-GCM", iv: NONCE, additionalData: boundTo };
    return new Uint8Array(await crypto.subtle.decrypt(by, cipher, sealed));
  } catch {
    return null;
  }
}
