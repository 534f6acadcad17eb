/** Checks of values that came from outside: each returns what it is given, with its type, or throws a WireError. */

import { WireError } from "./errors.js";
import { textOf } from "./signing.js";

/** No JSON message of the protocol may be larger. */
export const MESSAGE_BYTES = 256 * 1024;

/** @template T @typedef {(value: unknown, at: string) => T} Check `at` names the place, for the error */

/** @param {string} at @param {string} expected @param {unknown} value @returns {never} */
function refuse(at, expected, value) {
  const came = value === undefined ? "nothing" : (JSON.stringify(value) ?? String(value)).slice(0, 80);
  throw new WireError(`${at || "the message"}: expected ${expected}, and ${came} came`);
}

/** @param {number} most characters @param {RegExp} [pattern] @returns {Check<string>} */
export function text(most, pattern) {
  return (value, at) => {
    if (typeof value !== "string" || value.length > most)
      return refuse(at, `a text of at most ${most} characters`, value);
    return pattern && !pattern.test(value) ? refuse(at, `a text like ${pattern.source}`, value) : value;
  };
}

/** @param {number} least @param {number} most @returns {Check<number>} */
export function whole(least, most) {
  return (value, at) =>
    typeof value === "number" && Number.isSafeInteger(value) && value >= least && value <= most
      ? value
      : refuse(at, `a whole number from ${least} to ${most}`, value);
}

/** @type {Check<number>} */
export function number(value, at) {
  return typeof value === "number" && Number.isFinite(value) ? value : refuse(at, "a number", value);
}

/** @type {Check<boolean>} */
export function flag(value, at) {
  return typeof value === "boolean" ? value : refuse(at, "true or false", value);
}

/** @type {Check<Record<string, any>>} */
export function anyObject(value, at) {
  const is = typeof value === "object" && value !== null && !Array.isArray(value);
  return is ? /** @type {Record<string, any>} */ (value) : refuse(at, "an object", value);
}

/** @template {string | number} T @param {readonly T[]} words @returns {Check<T>} */
export function oneOf(...words) {
  return (value, at) => words.find((word) => word === value) ?? refuse(at, `one of ${words.join(", ")}`, value);
}

/** @template T @param {Check<T>} check @returns {Check<T | null>} */
export function orNull(check) {
  return (value, at) => (value === null || value === undefined ? null : check(value, at));
}

/** @template T @param {Check<T>} check @param {T} otherwise where the key is left out @returns {Check<T>} */
export function or(check, otherwise) {
  return (value, at) => (value === undefined ? otherwise : check(value, at));
}

/** @template T @param {Check<T>} check @param {number} most @param {number} [least] @returns {Check<T[]>} */
export function list(check, most, least = 0) {
  return (value, at) => {
    if (!Array.isArray(value) || value.length > most || value.length < least) {
      return refuse(at, `a list of ${least} to ${most}`, value);
    }
    return value.map((each, i) => check(each, `${at}[${i}]`));
  };
}

/**
 * An object of these keys; another one is refused, unless `others` says that they are kept unread.
 * @template {Record<string, Check<any>>} T @param {T} fields @param {{others?: boolean}} [options]
 * @returns {Check<{[K in keyof T]: ReturnType<T[K]>}>}
 */
export function object(fields, { others = false } = {}) {
  return (value, at) => {
    const given = anyObject(value, at);
    const unknown = Object.keys(given).find((key) => !Object.hasOwn(fields, key));
    if (unknown !== undefined && !others)
      throw new WireError(`${at || "the message"} has an unknown key ${JSON.stringify(unknown.slice(0, 64))}`);
    /** @type {Record<string, any>} */
    const found = others ? { ...given } : {};
    for (const [key, check] of Object.entries(fields)) {
      found[key] = check(Object.hasOwn(given, key) ? given[key] : undefined, at ? `${at}.${key}` : key);
    }
    return /** @type {any} */ (found);
  };
}

/**
 * Read a message of JSON.
 * @template T @param {Check<T>} check @param {Uint8Array} bytes @param {string} what it is, for the error @returns {T}
 */
export function readJson(check, bytes, what) {
  if (bytes.length > MESSAGE_BYTES) {
    throw new WireError(`${what} of ${bytes.length} bytes came, at most ${MESSAGE_BYTES} are read`);
  }
  let value;
  try {
    value = JSON.parse(textOf(bytes));
  } catch {
    throw new WireError(`${what} came that is not JSON`);
  }
  try {
    return check(value, "");
  } catch (error) {
    if (error instanceof WireError) throw new WireError(`not a valid ${what}: ${error.message}`);
    throw error;
  }
}
