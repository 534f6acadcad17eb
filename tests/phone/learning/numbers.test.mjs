// The expected values are Python's: f"{x:.3f}", f"{x:.1f}", repr, numpy.sum.
import assert from "node:assert/strict";
import { test } from "node:test";
import { tail } from "../../../phone/app/learning/comparison.js";
import { pairwiseSum, quoted, roundHalfEven, threeDecimals, withDecimals } from "../../../phone/app/learning/numbers.js";

test("exact halves are rounded to the even digit", () => {
  const written = { 0.0625: "0.062", 0.1875: "0.188", 0.5625: "0.562", 0.3125: "0.312", 1: "1.000", 0.0005: "0.001" };
  for (const [value, words] of Object.entries(written)) assert.equal(threeDecimals(Number(value)), words);
  const shorter = { 0.25: "0.2", 0.75: "0.8", 6.25: "6.2", 12.3: "12.3", "-0.25": "-0.2", 0: "0.0" };
  for (const [value, words] of Object.entries(shorter)) assert.equal(withDecimals(Number(value), 1), words);
  assert.deepEqual([0.5, 1.5, 2.5, 2.4999, 2.6].map(roundHalfEven), [0, 2, 2, 2, 3]);
});

test("words are quoted as by repr", () => {
  const plain = [["walk", "'walk'"], ["it's", `"it's"`], [`"'`, `'"\\''`]];
  const written = [...plain, ["a\\\n", "'a\\\\\\n'"], ["\u00a0", "'\\xa0'"]];
  for (const [word, words] of written) assert.equal(quoted(word), words);
});

test("sums have numpy's last bit", () => {
  // one after the other they give 44.99999999999975
  assert.equal(pairwiseSum(new Array(300).fill(0.15)), 45);
  assert.equal(pairwiseSum([]), 0);
});

test("the tail of fair trials is exact, also of a thousand", () => {
  assert.equal(tail(0, 0), 1);
  assert.equal(tail(0, 1024), 1);
  assert.equal(tail(5, 5), 1 / 32);
  assert.equal(tail(1024, 1024), 2 ** -1024);
  assert.equal(tail(600, 1024), 2.105661787006681e-8);
});
