/** A day by minutes: what is joined, what is asked first, and what takes a label back. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { labelsWithin, minutesOf, movementOf, sampleOf, stretchesOf, uncertainOf } from "../../phone/app/timeline.js";

const NOON = Date.UTC(2026, 10, 20, 12);
/** Windows every three seconds for some minutes. */
const marks = Array.from({ length: 20 * 40 }, (_, id) => ({
  id,
  startMs: NOON + 3000 * id,
  label: id >= 20 * 30 ? "running" : null,
  session: "s",
}));
/** Ten minutes of certain walking, twenty of something between two, ten that were labelled otherwise. */
const looks = new Map(
  marks.map(({ id }) => {
    const part = Math.floor(id / 200);
    const [label, probability] = [["walking", 0.95], [id % 2 ? "sitting" : "lying", 0.6], [id % 2 ? "sitting" : "lying", 0.6], ["walking", 0.9]][part];
    return [id, { label, probability, movement: part ? 0.1 : 2 }];
  }),
);

test("minutes that look alike are joined, and a few windows of each are looked at", () => {
  const minutes = minutesOf(marks);
  assert.equal(minutes.length, 40);
  assert.deepEqual(sampleOf(minutes[0]).map(({ id }) => id), [0, 3, 6, 10, 13, 16]);
  const runs = stretchesOf(minutes, looks);
  assert.deepEqual(
    runs.map(({ from_s, to_s, recognized, label }) => [(to_s - from_s) / 60, recognized, label]),
    [[10, "walking", ""], [20, "lying", ""], [10, "walking", "running"]],
  );
  assert.ok(Math.abs(runs[1].certainty - 0.3) < 1e-9);
  assert.equal(runs[0].movement, 2);
});

test("the least certain stretches are asked about, in pieces; not labelled ones, nor certain ones", () => {
  const asked = uncertainOf(minutesOf(marks), looks);
  assert.deepEqual(asked.map(({ from_s, to_s }) => [(from_s - NOON / 1000) / 60, (to_s - NOON / 1000) / 60]), [[10, 25], [25, 30]]);
  assert.deepEqual(uncertainOf(minutesOf(marks), new Map()), []);
});

test("what a label changed can be told, window by window", () => {
  const spans = labelsWithin(marks, NOON + 29 * 60_000, NOON + 31 * 60_000);
  assert.deepEqual(spans.map(({ label }) => label), [null, "running"]);
  assert.ok(spans[0].toMs <= spans[1].fromMs);
});

test("movement is the deviation of the acceleration's magnitude", () => {
  const x = new Float32Array(4 * 6);
  [8, 10, 12, 10].forEach((z, i) => (x[6 * i + 2] = z));
  assert.ok(Math.abs(movementOf(x) - Math.SQRT2) < 1e-5);
});
