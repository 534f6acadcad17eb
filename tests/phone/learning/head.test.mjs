// The phone's own head against scikit-learn's logistic regression (tests/vectors/softmax_regression.py).
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { headScores, trainHead } from "../../../phone/app/learning/head.js";
import { minimize } from "../../../phone/app/learning/lbfgs.js";
import { softmax } from "../../../phone/app/learning/nearest.js";
import { assertNear, floats, vectorsOf } from "./vectors.mjs";

const TOLERANCE = 1e-3;

describe("scikit-learn's head", () => {
  for (const { name, dimensions, c, labels, learnt, weight, bias, probabilities, ...packed } of vectorsOf(
    "softmax_regression.json",
  ).cases) {
    test(name, async () => {
      const embeddings = floats(packed.embeddings);
      const classes = Math.max(...labels) + 2;
      const head = await trainHead(embeddings, labels, classes, dimensions, { c });
      learnt.forEach((code, k) => {
        assertNear(head.weight.subarray(code * dimensions, (code + 1) * dimensions), weight[k], TOLERANCE);
        assertNear([head.bias[code]], [bias[k]], TOLERANCE);
      });
      for (const [row, expected] of probabilities.entries()) {
        const found = softmax(headScores(embeddings.subarray(row * dimensions, (row + 1) * dimensions), head));
        assertNear(learnt.map((code) => found[code]), expected, TOLERANCE);
        for (let code = 0; code < classes; code++) if (!learnt.includes(code)) assert.equal(found[code], 0);
      }
    });
  }
});

test("one class is nothing to tell apart", async () => {
  assert.equal(await trainHead(new Float32Array([1, 2, 3]), [1, 1, 1], 3, 1), null);
  assert.equal(await trainHead(new Float32Array(), [], 3, 4), null);
});

test("a head of another width is refused", () => {
  const head = { weight: new Float64Array(6), bias: new Float64Array(2) };
  assert.throws(() => headScores([1, 2], head), /6 weights of 2 classes; expected 2 of each/);
});

test("a long narrow valley is walked to its end", async () => {
  const curvatures = [1e-4, 1, 1e4];
  const bowl = (at, gradient) => {
    at.forEach((x, i) => (gradient[i] = curvatures[i] * (x - i)));
    return at.reduce((total, x, i) => total + (curvatures[i] / 2) * (x - i) ** 2, 0);
  };
  const { at, converged } = await minimize(bowl, Float64Array.of(50, -30, 7), { tolerance: 1e-10 });
  assert.ok(converged);
  assertNear(at, [0, 1, 2], 1e-5);
});

test("the page is given its turn while a head is learnt", async () => {
  const y = Array.from({ length: 60 }, (_, i) => i % 3);
  const embeddings = Float32Array.from({ length: 60 * 8 }, (_, i) => Math.sin(i * i) + y[Math.floor(i / 8)]);
  let turns = 0;
  const turn = setInterval(() => turns++, 0);
  await trainHead(embeddings, y, 3, 8);
  clearInterval(turn);
  assert.ok(turns > 0);
});
