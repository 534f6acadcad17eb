// A phone's noise against the probabilities that define it, and how long its numbers may be.
import assert from "node:assert/strict";
import { test } from "node:test";
import { clipped, gaussianNoise, makePrivate, shareOf } from "../../../phone/app/secure_sums/noise.js";

test("noise has the probabilities of a discrete Gaussian", async () => {
  const count = 5_000;
  const drawn = await gaussianNoise(count, 4n);
  const weight = (x) => Math.exp(-(x * x) / 8);
  let all = 0;
  for (let x = -60; x <= 60; x++) all += weight(x);
  let chiSquare = 0;
  for (let x = -7; x <= 7; x++) {
    const wanted = (count * weight(x)) / all;
    chiSquare += (drawn.filter((each) => each === x).length - wanted) ** 2 / wanted;
  }
  assert.ok(chiSquare < 45, `${chiSquare}: beyond it once in 10,000`); // 15 degrees of freedom at most
});

test("noise as wide as a plan's has its deviation", async () => {
  const settings = { noise_multiplier: 1.5, clip_norm: 2e5, min_devices: 4, colluding_share: 0.2, lost_share: 0.2 };
  const variance = shareOf(settings);
  assert.ok(Math.abs(Number(variance) / ((1.5 * 2e5) ** 2 / 2) - 1) < 1e-9); // two of four may be lost, or lie
  const drawn = await gaussianNoise(1000, variance);
  const found = drawn.reduce((sum, x) => sum + x * x, 0) / 1000 / Number(variance);
  assert.ok(Math.abs(found - 1) < 5 * Math.sqrt(2 / 1000), String(found));
  assert.throws(() => shareOf({ ...settings, clip_norm: 1 }), /too little/);
});

test("numbers are cut to the norm and keep their direction", () => {
  const parts = [Int32Array.of(300_000, -400_000), Int32Array.of(0)];
  assert.equal(clipped(parts, 500_000), parts);
  const [cut] = clipped(parts, 5_000);
  assert.ok(Math.hypot(...cut) <= 5_000);
  assert.deepEqual([...cut], [2_999, -3_999]);
});

test("a round's numbers are cut and get noise, all but the last", async () => {
  const settings = { clip_norm: 500, min_devices: 4, colluding_share: 0.2, lost_share: 0.2 };
  const numbers = Float64Array.from({ length: 2001 }, (_, i) => (i < 2000 ? 100 : 1));
  const plain = numbers.slice();
  await makePrivate(plain, { ...settings, noise_multiplier: 0 });
  assert.deepEqual(plain, numbers);
  await makePrivate(numbers, { ...settings, noise_multiplier: 1.5 });
  assert.equal(numbers[2000], 1);
  const cut = Math.trunc((100 * 500) / (100 * Math.sqrt(2000)));
  const squares = numbers.subarray(0, -1).reduce((sum, x) => sum + (x - cut) ** 2, 0);
  const found = squares / 2000 / ((1.5 * 500) ** 2 / 2);
  assert.ok(Math.abs(found - 1) < 5 * Math.sqrt(2 / 2000), String(found));
});
