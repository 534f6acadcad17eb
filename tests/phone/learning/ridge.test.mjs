// What a phone's ridge regression refuses, and that the page has its turns.
import assert from "node:assert/strict";
import { test } from "node:test";
import { addWindows, emptySums, headScores, solve, travelling } from "../../../phone/app/learning/ridge.js";

const CLIP = 4;
const DAMPING = { ridge: 1e-2 };

async function sumsOf(width, classes, count = 30) {
  const sums = emptySums(classes, width);
  const y = Array.from({ length: count }, (_, i) => i % classes);
  const features = Float32Array.from({ length: count * width }, (_, i) => Math.sin(i * i));
  await addWindows(sums, features, y, CLIP);
  return travelling(sums);
}

test("sums of another network are refused", async () => {
  const shared = await sumsOf(6, 3);
  await assert.rejects(solve(shared, await sumsOf(5, 3), 1, DAMPING), /expected sums of one network/);
  await assert.rejects(solve(shared, await sumsOf(6, 2), 1, DAMPING), /expected sums of one network/);
  await assert.rejects(solve({ ...shared, gram: shared.gram.slice(1) }, null, 1, DAMPING), /expected sums of one network/);
});

test("sums that no windows have are refused", async () => {
  const shared = await sumsOf(6, 3);
  const wrong = { ...shared, gram: shared.gram.map((value, i) => (i === 0 ? -value : value)) };
  await assert.rejects(solve(wrong, null, 1, DAMPING), /not positive definite/);
});

test("windows of no class, or of another width, are refused", async () => {
  await assert.rejects(addWindows(emptySums(2, 3), new Float32Array(3), [2], CLIP), /class 2; expected 0 to 1/);
  await assert.rejects(addWindows(emptySums(2, 3), new Float32Array(4), [1], CLIP), /4 numbers for 1 windows/);
  assert.throws(() => headScores([1, 2], { weight: new Float64Array(6), bias: new Float64Array(2) }), /6 weights/);
});

test("the page is given its turn while a head is solved", async () => {
  const shared = await sumsOf(400, 3);
  let turns = 0;
  const turn = setInterval(() => turns++, 0);
  await solve(shared, shared, 1, DAMPING);
  clearInterval(turn);
  assert.ok(turns > 0);
});
