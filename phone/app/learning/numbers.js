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

/** Write with three decimals, exact halves to the even one: Python's `.3f`. @param {number} value @returns {string} */
export function threeDecimals(value) {
  // only odd sixteenths lie exactly between two numbers of three decimals, and `toFixed` rounds those away from zero
  const sixteenths = value * 16;
  if (!Number.isInteger(sixteenths) || sixteenths % 2 === 0) return value.toFixed(3);
  return (roundHalfEven(value * 1000) / 1000).toFixed(3);
}

/** Write with six significant digits at most: Python's `g`. @param {number} value @returns {string} */
export function general(value) {
  if (value === 0) return "0";
  const [digits, exponent] = value.toExponential(5).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < 6) return String(Number(value.toPrecision(6)));
  return `${Number(digits)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
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
