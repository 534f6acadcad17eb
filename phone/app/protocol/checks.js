/** Checks of values that came from outside: each returns what it is given, with its type, or throws a WireError. */

import { WireError } from "./errors.js";

/** @template T @typedef {(value: unknown, at: string) => T} Check `at` names the place, for the error */

/** @param {string} at @param {string} expected @param {unknown} value @returns {never} */
function refuse(at, expected, value) {
  const received = value === undefined ? "nothing" : (JSON.stringify(value) ?? String(value)).slice(0, 80);
  throw new WireError(`${at || "the message"}: expected ${expected}, got ${received}`);
}

/** @param {number} max characters @param {RegExp} [pattern] @returns {Check<string>} */
export function text(max, pattern) {
  return (value, at) => {
    if (typeof value !== "string" || value.length > max)
      return refuse(at, `a text of at most ${max} characters`, value);
    return pattern && !pattern.test(value) ? refuse(at, `a text like ${pattern.source}`, value) : value;
  };
}

/**
 * Bytes, which a message has as base64 with "-" and "_" (RFC 4648, section 5).
 * @param {number} min @param {number} max @returns {Check<Uint8Array<ArrayBuffer>>}
 */
export function bytes(min, max) {
  const expected = `base64 of ${min} to ${max} bytes`;
  return (value, at) => {
    if (typeof value !== "string" || value.length > 4 * Math.ceil(max / 3)) return refuse(at, expected, value);
    if (!/^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$/.test(value)) return refuse(at, expected, value);
    const text = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
    const found = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
    return found.length >= min && found.length <= max ? found : refuse(at, expected, value);
  };
}

/** @param {number} min @param {number} max @returns {Check<number>} */
export function whole(min, max) {
  return (value, at) =>
    typeof value === "number" && Number.isInteger(value) && value >= min && value <= max
      ? value
      : refuse(at, `a whole number from ${min} to ${max}`, value);
}

/**
 * @param {{min?: number, max?: number, above?: number, below?: number}} [bounds] the first two are allowed
 * @returns {Check<number>}
 */
export function number({ min = -Infinity, max = Infinity, above = -Infinity, below = Infinity } = {}) {
  const bounds = [
    [min, "of at least"],
    [max, "of at most"],
    [above, "above"],
    [below, "below"],
  ].flatMap(([bound, words]) => (Number.isFinite(bound) ? [`${words} ${bound}`] : []));
  const expected = ["a number", ...bounds].join(" ");
  return (value, at) =>
    typeof value === "number" &&
    Number.isFinite(value) &&
    value >= min &&
    value <= max &&
    value > above &&
    value < below
      ? value
      : refuse(at, expected, value);
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

/**
 * A default where the key is left out; it is checked as well, so that {} is an object's own defaults.
 * @template T @param {Check<T>} check @param {unknown} otherwise @returns {Check<T>}
 */
export function or(check, otherwise) {
  return (value, at) => check(value === undefined ? otherwise : value, at);
}

/**
 * What one of the checks takes; where none does, the last one says why.
 * @template {Check<any>[]} T @param {T} checks @returns {Check<ReturnType<T[number]>>}
 */
export function either(...checks) {
  return (value, at) => {
    for (const check of checks.slice(0, -1)) {
      try {
        return check(value, at);
      } catch (error) {
        if (!(error instanceof WireError)) throw error;
      }
    }
    return checks[checks.length - 1](value, at);
  };
}

/** @template T @param {Check<T>} check @param {number} max @param {number} [min] @returns {Check<T[]>} */
export function list(check, max, min = 0) {
  return (value, at) => {
    if (!Array.isArray(value) || value.length > max || value.length < min) {
      return refuse(at, `a list of ${min} to ${max}`, value);
    }
    return value.map((each, i) => check(each, `${at}[${i}]`));
  };
}

/** A list of exactly these. @template {any[]} T @param {{[K in keyof T]: Check<T[K]>}} checks @returns {Check<T>} */
export function tuple(...checks) {
  return (value, at) => {
    if (!Array.isArray(value) || value.length !== checks.length) return refuse(at, `a list of ${checks.length}`, value);
    return /** @type {T} */ (checks.map((check, i) => check(value[i], `${at}[${i}]`)));
  };
}

/**
 * An object of any keys, or of those like the pattern.
 * @template T @param {Check<T>} check @param {number} max @param {RegExp} [pattern] @returns {Check<Record<string, T>>}
 */
export function record(check, max, pattern) {
  return (value, at) => {
    const entries = Object.entries(anyObject(value, at));
    if (entries.length > max) return refuse(at, `an object of at most ${max} keys`, value);
    const odd = pattern && entries.find(([key]) => !pattern.test(key));
    if (odd) return refuse(at, `keys like ${pattern.source}`, odd[0]);
    return Object.fromEntries(entries.map(([key, each]) => [key, check(each, `${at}.${key}`)]));
  };
}

/**
 * An object of these keys; another one is refused, unless `others` says that they are kept unread.
 * `notAbove` names numbers, and for each the number that it must not exceed.
 * @template {Record<string, Check<any>>} T @param {T} fields
 * @param {{others?: boolean, notAbove?: Record<string, string>}} [options]
 * @returns {Check<{[K in keyof T]: ReturnType<T[K]>}>}
 */
export function object(fields, { others = false, notAbove = {} } = {}) {
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
    for (const [key, limit] of Object.entries(notAbove)) {
      if (found[key] > found[limit]) throw new WireError(`${at}.${key}: ${found[key]} of ${found[limit]} ${limit}`);
    }
    return /** @type {any} */ (found);
  };
}
