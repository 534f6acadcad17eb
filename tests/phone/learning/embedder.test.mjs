// What is refused before ONNX Runtime sees a file; test_embedder.py has real files.
import assert from "node:assert/strict";
import { test } from "node:test";
import { checkModel, Embedder } from "../../../phone/app/learning/embedder.js";

const ZEROS = [0, 0, 0, 0, 0, 0];
const ONES = [1, 1, 1, 1, 1, 1];
const PLAN = { labels: ["walk", "sit"], data: { pipeline: {}, normalization: "client", statistics: null } };
const FEDERATED = { count: 4, total: [4, 8, 0, 0, 0, 0], square: [20, 16, 4, 4, 4, 4] };

function metadata(input) {
  return { labels: ["walk", "sit"], input: { shape: [128, 6], rate_hz: 50, mean: ZEROS, std: ONES, ...input } };
}

function federated(statistics = FEDERATED) {
  return { ...PLAN, data: { ...PLAN.data, normalization: "federated", statistics } };
}

test("a model normalizes by what the plan says, and by nothing else", () => {
  checkModel(metadata(), PLAN);
  const inside = metadata({ mean: [1, 2, 0, 0, 0, 0], std: [2, 1e-3, 1, 1, 1, 1] });
  checkModel(inside, federated());
  assert.throws(() => checkModel(inside, PLAN), /normalizes by mean 1,2,0,0,0,0 and deviation 2,0.001,.* client they are/);
  assert.throws(() => checkModel(metadata(), federated()), /federated they are 1,2,0,0,0,0 and 2,0.001/);
  assert.throws(() => checkModel(metadata({ mean: [0, 0], std: [1, 1] }), PLAN), /normalizes by mean 0,0/);
  assert.throws(() => checkModel(metadata({ mean: undefined }), PLAN), /normalizes by mean undefined/);
  assert.throws(() => checkModel(metadata(), federated(null)), /federated without statistics/);
});

test("other classes and other windows are refused", () => {
  const other = { ...PLAN, labels: ["sit", "walk"] };
  assert.throws(() => checkModel(metadata(), other), /classes are walk, sit; the plan's are sit, walk/);
  assert.throws(() => checkModel(metadata({ shape: [64, 6] }), PLAN), /windows \(64,6\) at 50 Hz; expected \(128,6\)/);
  assert.throws(() => checkModel(metadata({ rate_hz: 25 }), PLAN), /at 25 Hz; expected \(128,6\) at 50 Hz/);
});

/** A session whose embedding of a window is its first two numbers. */
function ortOf(change = (given) => given, names = {}) {
  const run = async ({ x }) => {
    const data = Float32Array.from({ length: x.dims[0] * 2 }, (_, i) => x.data[Math.floor(i / 2) * 768 + (i % 2)]);
    return { embedding: change({ data, dims: [x.dims[0], 2] }) };
  };
  const session = { inputNames: ["x"], outputNames: ["logits", "embedding"], ...names, run, release: async () => {} };
  return {
    Tensor: class {
      constructor(type, data, dims) {
        Object.assign(this, { type, data, dims });
      }
    },
    InferenceSession: { create: async () => session },
  };
}

async function embedderWith(ort) {
  const embedder = new Embedder(ort);
  Object.assign(embedder, { session: await ort.InferenceSession.create(), sha256: "a" });
  return embedder;
}

test("windows keep their order over batches, and what failed is tried again", async () => {
  const x = Float32Array.from({ length: 20 * 768 }, (_, i) => Math.floor(i / 768) + (i % 768) / 1000);
  let fails = true;
  const embedder = await embedderWith(ortOf((given) => (fails ? { ...given, dims: [1, 1] } : given)));
  await assert.rejects(embedder.embed(x), /gives \(1,1\) for 8 windows; expected \(8, D\)/);
  fails = false;
  const found = await embedder.embed(x);
  assert.deepEqual(Array.from(found, (value) => Math.floor(value)), Array.from({ length: 40 }, (_, i) => i >> 1));
});

test("no model, half a window, and what is not finite are refused", async () => {
  await assert.rejects(new Embedder(ortOf()).embed(new Float32Array(768)), /no model is loaded/);
  const embedder = await embedderWith(ortOf());
  await assert.rejects(embedder.embed(new Float32Array(700)), /700 numbers; expected windows of 128 × 6/);
  await assert.rejects(embedder.embed(new Float32Array(768).fill(NaN)), /all finite/);
});

/** A field of a protobuf message that has a length. */
function field(number, bytes) {
  const size = bytes.length;
  return Buffer.concat([Buffer.from([8 * number + 2, (size & 127) | 128, size >> 7]), bytes]);
}

const filter = { name: "low-pass, windowed sinc" };
const said = {
  labels: ["walk", "sit"],
  input: { kind: "window", shape: [128, 6], rate_hz: 50, filter },
  model: "har_cnn",
  method: "fedproto",
  round: 1,
};
const properties = Object.entries(said).map(([key, value]) => [key, JSON.stringify(value)]);
const FILE = Buffer.concat(
  [["schema", "gaitway-model/1"], ...properties].map(([key, value]) =>
    field(14, Buffer.concat([field(1, Buffer.from(key)), field(2, Buffer.from(value))])),
  ),
);

test("files are loaded one after the other, and a session is kept for who still uses it", async () => {
  let [created, released, release, inRun] = [0, 0, () => {}, () => {}];
  const held = new Promise((resolve) => (release = resolve));
  const started = new Promise((resolve) => (inRun = resolve));
  const ort = ortOf();
  const { create } = ort.InferenceSession;
  ort.InferenceSession.create = async () => {
    created++;
    const session = await create();
    const run = async (given) => {
      inRun();
      await held;
      assert.equal(released, 0, "it was released while it ran");
      return session.run(given);
    };
    return { ...session, run, release: async () => void released++ };
  };
  const embedder = new Embedder(ort);
  await Promise.all([embedder.load(FILE, "a"), embedder.load(FILE, "a")]);
  assert.equal(created, 1);
  const found = embedder.embed(new Float32Array(768));
  await started;
  await embedder.load(FILE, "b");
  release();
  assert.equal((await found).length, 2);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(released, 1);
});
