// tests/vectors/phone.json, to which Python is held as well.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { signTest } from "../../../phone/app/learning/comparison.js";
import { channelSums, inFloat32, normalized, statisticsOf } from "../../../phone/app/learning/normalization.js";
import { evidenceOf, expectedGains, likeliest, priorOf, reportOf } from "../../../phone/app/learning/preference.js";
import { addWindows, emptySums, travelling } from "../../../phone/app/learning/ridge.js";
import { ClassSoundness } from "../../../phone/app/learning/soundness.js";
import { evenly, temporalSplit } from "../../../phone/app/learning/splits.js";
import { withCopies } from "../../../phone/app/training/window_changes.js";
import { noiseSeed } from "../../../phone/app/training/draws.js";
import { orderOf } from "../../../phone/app/training/schedule.js";
import { encode } from "../../../phone/app/protocol/safetensors.js";
import { assertNear, assertSameBits, floats, vectorsOf } from "./vectors.mjs";

const VECTORS = vectorsOf("phone.json");

describe("sums, and the upload that carries them", () => {
  for (const { name, dimensions, classes, labels, clip, repeats, upload, ...packed } of VECTORS.sums) {
    test(name, async () => {
      const sums = emptySums(classes, dimensions);
      for (let i = 0; i < repeats; i++) await addWindows(sums, floats(packed.embeddings), labels, clip);
      const { gram, moment } = travelling(sums);
      const bytes = encode([
        ["gram", { shape: [gram.length], data: gram }],
        ["moment", { shape: [dimensions + 1, classes], data: moment }],
      ]);
      assert.equal(Buffer.from(bytes).toString("base64"), upload);
    });
  }
});

describe("the draws of a round", () => {
  for (const { name, seed, client, round, epoch, order } of VECTORS.orders) {
    test(name, async () => {
      assert.deepEqual([...(await orderOf(order.length, seed, { client, round }, epoch))], order);
    });
  }
  test("where dropout's counters begin", async () => {
    for (const { name, seed, client, round, bits, value } of VECTORS.noise_seeds) {
      assert.equal(String(await noiseSeed(seed, client, round, name, bits)), value);
    }
  });
});

describe("copies of windows that sums have besides them", () => {
  const wide = (samples) => {
    const x = new Float32Array(2 * 768); // two windows, of which the file has the first two samples
    for (const i of [0, 1]) x.set(samples.subarray(12 * i, 12 * (i + 1)), 768 * i);
    return x;
  };
  for (const { name, seed, client, windows, copies, ...changes } of VECTORS.window_copies) {
    test(name, async () => {
      const given = { x: wide(floats(windows)), y: Int32Array.of(2, 0) };
      const { x, y } = await withCopies(given, changes, { seed, device: client });
      assert.deepEqual([...y], Array.from({ length: copies.length + 1 }, () => [2, 0]).flat());
      for (const [copy, samples] of [windows, ...copies].entries()) {
        assertNear(x.subarray(copy * given.x.length, (copy + 1) * given.x.length), wide(floats(samples)), 1e-6);
      }
      assert.equal((await withCopies(given, { ...changes }, { seed, device: client })).x, x, "they are made once");
    });
  }
});

describe("temporal split", () => {
  for (const { name, window_s, test_share, start_ms, labels, train, holdout } of VECTORS.temporal_split) {
    test(name, () => {
      const startS = start_ms.map((each) => each / 1000);
      const found = temporalSplit(labels, startS, test_share, window_s);
      assert.deepEqual({ train: [...found.train], holdout: [...found.holdout] }, { train, holdout });
    });
  }
});

describe("normalization", () => {
  for (const { name, shape, count, total, square, mean, std, ...packed } of VECTORS.normalization) {
    test(name, () => {
      const all = floats(packed.windows);
      const size = shape[1] * shape[2];
      const windows = Array.from({ length: shape[0] }, (_, i) => all.subarray(i * size, (i + 1) * size));
      const sums = channelSums(windows);
      assert.equal(sums.count, count);
      assertNear(sums.total, total, 1e-12);
      assertNear(sums.square, square, 1e-12);
      const statistics = statisticsOf(sums);
      assertNear(statistics.mean, mean, 1e-12);
      assertNear(statistics.std, std, 1e-12);
      assertSameBits(normalized(all, inFloat32(statistics)), floats(packed.normalized));
    });
  }
});

describe("soundness", () => {
  for (const { name, labels, confusion, score, trivial, ...expected } of VECTORS.soundness) {
    test(name, () => {
      const found = new ClassSoundness(confusion, labels);
      const { examples: windows, classes, works, undecidedReason, failureReason, words } = found;
      assert.deepEqual({ windows, classes, works, undecidedReason, failureReason, words }, expected);
      if (score === null) assert.deepEqual([found.score, found.trivial], [null, null]);
      else assertNear([found.score, found.trivial], [score, trivial], 1e-12);
    });
  }
});

test("a long holdout is thinned out over all of its time", () => {
  for (const { windows, most, kept } of VECTORS.thinned_holdout) {
    assert.deepEqual([...evenly(Int32Array.from({ length: windows }, (_, i) => i), most)], kept);
  }
});

describe("comparison", () => {
  for (const { name, candidate_right, present_right, ...expected } of VECTORS.comparison) {
    test(name, () => {
      const startS = expected.start_ms.map((each) => each / 1000);
      const found = signTest({ startS, session: expected.session, y: expected.truth }, candidate_right, present_right);
      const { stretches, better, worse, is_worse, p_better, words } = expected;
      assertNear([found.pBetter], [p_better], 1e-12);
      const counted = { stretches, better, worse, isWorse: is_worse, words };
      assert.deepEqual({ ...found, pBetter: undefined }, { ...counted, pBetter: undefined });
    });
  }
});

describe("which model serves", () => {
  const orNaN = (values) => values.map((each) => each ?? NaN);
  const assertAll = (found, expected) => {
    assert.deepEqual(found.map(Number.isNaN), expected.map(Number.isNaN));
    assertNear(found.map((each) => each || 0), expected.map((each) => each || 0), 1e-12);
  };
  for (const { name, labels, session, shared, trained, recall, margin, candidates, gains, serves } of VECTORS.preference) {
    test(name, () => {
      const known = new Map();
      for (const { name: model, quality, sums, forgets, gain, variance, report, prior } of candidates) {
        const evidence = labels.length ? evidenceOf(labels, quality, shared, session, trained.length) : null;
        assert.deepEqual(evidence && reportOf(evidence), report);
        if (evidence) assertAll([...evidence.gain, ...evidence.variance], orNaN([...gain, ...variance]));
        const others = sums && priorOf(sums, report);
        assert.equal(others === null, prior === null);
        if (others) assertAll([others.mean, others.variance, ...others.byClass], prior);
        known.set(model, { evidence, prior: others, forgets });
      }
      const found = expectedGains(known, trained, recall);
      assert.deepEqual([...found.keys()].sort(), Object.keys(gains).sort());
      assertNear(Object.keys(gains).map((model) => found.get(model)), Object.values(gains), 1e-12);
      const order = [...candidates.map((each) => each.name), "global"];
      assert.equal(likeliest(found, order, "global", margin), serves);
    });
  }
});
