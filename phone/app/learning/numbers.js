/**
 * Numbers as Python and numpy have them: rounded, summed and written, so that a phone decides and says what a native
 * device does.
 */

/** Round to a whole number, halves to the even one. @param {number} value @returns {number} */
export function roundHalfEven(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}

/**
 * Add numbers in numpy's order: eight partial sums, which are added in pairs, and halves of long arrays apart.
 * @param {ArrayLike<number>} values @param {number} [from] @param {number} [to] @returns {number}
 */
export function pairwiseSum(values, from = 0, to = values.length) {
  const count = to - from;
  let sum = 0;
  if (count < 8) {
    for (let i = from; i < to; i++) sum += values[i];
    return sum;
  }
  if (count > 128) {
    const half = Math.floor(count / 2);
    const middle = from + half - (half % 8);
    return pairwiseSum(values, from, middle) + pairwiseSum(values, middle, to);
  }
  const parts = Array.from({ length: 8 }, (_, i) => values[from + i]);
  let at = from + 8;
  for (; at < to - (count % 8); at += 8) {
    for (let i = 0; i < 8; i++) parts[i] += values[at + i];
  }
  const [a, b, c, d, e, f, g, h] = parts;
  sum = a + b + (c + d) + (e + f + (g + h));
  for (; at < to; at++) sum += values[at];
  return sum;
}

/** Write with three decimals: Python's `.3f`. @param {number} value @returns {string} */
export function threeDecimals(value) {
  return withDecimals(value, 3);
}

/**
 * Write with so many decimals, exact halves to the even one: Python's `f` format.
 * @param {number} value @param {number} places @returns {string}
 */
export function withDecimals(value, places) {
  // only odd multiples of this lie exactly between two such numbers, and `toFixed` rounds those away from zero
  const halves = value * 2 ** (places + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(places);
  return (roundHalfEven(value * 10 ** places) / 10 ** places).toFixed(places);
}

/** Write a word in quotes as Python's `repr` does. @param {string} word @returns {string} */
export function quoted(word) {
  const quote = word.includes("'") && !word.includes('"') ? '"' : "'";
  /** @type {Record<string, string>} */
  const escapes = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", [quote]: `\\${quote}` };
  const inside = Array.from(word, (letter) => {
    if (letter in escapes) return escapes[letter];
    const code = /** @type {number} */ (letter.codePointAt(0));
    if (letter === " " || !/[\p{C}\p{Z}]/u.test(letter)) return letter;
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
    return `\\U${code.toString(16).padStart(8, "0")}`;
  });
  return quote + inside.join("") + quote;
}
