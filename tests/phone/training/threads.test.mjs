import assert from "node:assert/strict";
import { test } from "node:test";
import { trainingThreads } from "../../../phone/app/onnx_runtime.js";

const threads = (crossOriginIsolated, hardwareConcurrency, Worker = class {}) =>
  trainingThreads({ crossOriginIsolated, Worker, navigator: { hardwareConcurrency } });

test("a training takes half of the cores, four at the most, and one where the page is not isolated", () => {
  assert.deepEqual([1, 2, 3, 4, 8, 16].map((cores) => threads(true, cores)), [1, 1, 1, 2, 4, 4]);
  assert.deepEqual([threads(false, 8), threads(undefined, 8), threads(true, undefined)], [1, 1, 1]);
  assert.equal(threads(true, 8, null), 1, "a worker that may have none of its own");
  assert.equal(trainingThreads({}), 1);
});
