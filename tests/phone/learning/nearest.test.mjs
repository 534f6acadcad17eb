import assert from "node:assert/strict";
import { test } from "node:test";
import { answersOf, probabilitiesOf } from "../../../phone/app/learning/models.js";
import { best, fitTemperature, nearnessScores, softmax } from "../../../phone/app/learning/nearest.js";
import { assertNear } from "./vectors.mjs";

const WIDTH = 8;

/** Normal numbers, the same in each run. */
function normal(seed) {
  let state = seed;
  const uniform = () => (state = (state * 48271) % 2147483647) / 2147483647;
  return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** Three prototypes, and examples that lie about them with a deviation. */
function gaussians(count, deviation) {
  const draw = normal(11);
  const prototypes = Float32Array.from({ length: 3 * WIDTH }, draw);
  const y = Int32Array.from({ length: count }, (_, i) => i % 3);
  const embeddings = Float32Array.from(
    { length: count * WIDTH },
    (_, i) => prototypes[y[Math.floor(i / WIDTH)] * WIDTH + (i % WIDTH)] + deviation * draw(),
  );
  const model = { prototypes, known: Float32Array.of(1, 1, 1), round: 1, sha256: "a" };
  const rows = Array.from(y, (_, i) => embeddings.subarray(i * WIDTH, (i + 1) * WIDTH));
  return { model, y, embeddings, rows, scores: rows.map((row) => nearnessScores(row, model)) };
}

test("shown at temperature 1 is what a native device's linear head shows", () => {
  const { model, rows } = gaussians(30, 1);
  for (const row of rows) {
    const head = Array.from({ length: 3 }, (_, code) => {
      const prototype = model.prototypes.subarray(code * WIDTH, (code + 1) * WIDTH);
      return prototype.reduce((sum, p, i) => sum + 2 * p * row[i] - p * p, 0);
    });
    assertNear(probabilitiesOf(row, model).probabilities, softmax(head), 1e-9);
  }
});

test("of Gaussians the temperature is twice their variance, which makes the shown probability the true one", () => {
  for (const deviation of [1, 1.5]) {
    const { y, scores, model, rows } = gaussians(6000, deviation);
    const temperature = fitTemperature(scores, y);
    assert.ok(Math.abs(temperature / (2 * deviation ** 2) - 1) < 0.08, `${temperature} of ${deviation}`);
    const shown = rows.map((row) => probabilitiesOf(row, { ...model, temperature }));
    const mean = shown.reduce((sum, { code, probabilities }) => sum + probabilities[code], 0) / y.length;
    const right = shown.filter(({ code }, i) => code === y[i]).length / y.length;
    assert.ok(Math.abs(mean - right) < 0.02, `${mean} is shown, ${right} are right`);
  }
});

test("the temperature follows the embedding's scale, and stays finite where all is right or all is wrong", () => {
  const { scores, y } = gaussians(300, 1);
  const larger = scores.map((row) => row.map((each) => 1e4 * each));
  assertNear([fitTemperature(larger, y) / fitTemperature(scores, y)], [1e4], 1e-6);
  const right = Array.from(y, (code) => Float64Array.from([0, 1, 2], (other) => (other === code ? 0 : -1)));
  const wrong = right.map((row) => row.map((each) => -1 - each));
  for (const [rows, shown] of [[right, 0.99], [wrong, 1 / 2]]) {
    const temperature = fitTemperature(rows, y);
    assert.ok(temperature > 0 && Number.isFinite(temperature));
    const chance = Math.max(...softmax(rows[0], temperature));
    assert.ok(shown < 0.9 ? chance <= shown + 1e-3 : chance > shown && chance < 1, `${chance}`);
  }
  assert.equal(fitTemperature([], []), 1);
  assert.equal(fitTemperature([Float64Array.of(-3, -3)], [0]), 1);
});

test("a class without a prototype is never answered, whatever its row holds", () => {
  const model = { prototypes: Float32Array.of(0, 0, 5, 5, 9, 9), known: [0, 1, 1], round: 1, sha256: "a" };
  assert.deepEqual([...answersOf(Float32Array.of(0, 0, 9, 8), 2, model)], [1, 2]);
  const { code, probabilities } = probabilitiesOf(Float32Array.of(0.1, 0), model);
  assert.equal(code, 1);
  assert.equal(probabilities[0], 0);
  assertNear([probabilities[1] + probabilities[2]], [1], 1e-12);
});

test("of equally near classes the first is answered, as by numpy's argmax", () => {
  assert.equal(best([-Infinity, -2, -1, -1]), 2);
  assert.equal(best([-Infinity, -Infinity]), -1);
});

test("a model that knows nothing, another width and NaN are refused", () => {
  const model = { prototypes: new Float32Array(4), known: [0, 0], round: 1, sha256: "a" };
  assert.throws(() => answersOf(new Float32Array(), 0, model), /no class has a prototype yet/);
  assert.throws(() => answersOf(Float32Array.of(1, 2, 3), 1, { ...model, known: [1, 1] }), /expected 3 of each/);
  assert.throws(() => answersOf(Float32Array.of(1, NaN), 1, { ...model, known: [1, 1] }), /NaN/);
});
