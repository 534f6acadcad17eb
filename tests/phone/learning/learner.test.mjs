import assert from "node:assert/strict";
import { test } from "node:test";
import { Learner, recognize } from "../../../phone/app/learning/learner.js";
import { assertNear } from "./vectors.mjs";

const LABELS = ["walk", "run", "sit"];
const PLAN = {
  labels: LABELS,
  data: { pipeline: {}, normalization: "client", statistics: null, test_share: 0.2, input: null },
};
const HOP_MS = 1280;
const WIDTH = 2;

function stored(count, each = {}) {
  return Array.from({ length: count }, (_, i) => ({
    id: i + 1,
    startMs: 1_790_000_000_000 + i * HOP_MS,
    x: Float32Array.from({ length: 768 }, (_, at) => Math.sin(i + at) + (at % 6)),
    label: LABELS[Math.floor(i / 20) % 3],
    session: "one",
    ...each,
  }));
}

/** Embeddings that lie about the corners of a triangle, and what a phone has then. */
function situation(count = 180, classes = 3) {
  const prepared = new Learner().prepare(stored(count).filter(({ label }) => LABELS.indexOf(label) < classes), PLAN);
  const corners = [[0, 0], [4, 0], [0, 4]];
  const embed = ({ y }) =>
    Float32Array.from({ length: y.length * WIDTH }, (_, i) => {
      return corners[y[Math.floor(i / WIDTH)]][i % WIDTH] + 0.3 * Math.sin(7 * i);
    });
  const embeddings = { train: embed(prepared.train), holdout: embed(prepared.holdout) };
  return { prepared, embeddings, labels: LABELS, score: null, present: null };
}

const global = (points, changes = {}) => ({
  prototypes: Float32Array.from(points.flat()),
  known: Float32Array.of(1, 1, 1),
  round: 3,
  sha256: "a",
  ...changes,
});
const RIGHT = global([[0, 0], [4, 0], [0, 4]]);
const POOR = global([[0, 0], [4, 0], [-1, -1]]);

test("the same windows are prepared once, others anew", () => {
  const learner = new Learner();
  const windows = stored(60);
  const first = learner.prepare(windows, PLAN);
  assert.equal(learner.prepare(stored(60), PLAN), first);
  windows[3] = { ...windows[3], label: "sit" };
  assert.notEqual(learner.prepare(windows, PLAN).train, first.train);
  const federated = { count: 1, total: [0, 0, 0, 0, 0, 0], square: [1, 1, 1, 1, 1, 1] };
  const other = { ...PLAN, data: { ...PLAN.data, normalization: "federated", statistics: federated } };
  const raw = learner.prepare(stored(60), other);
  assert.equal(raw.normalization, null);
  assert.deepEqual(raw.train.x.subarray(0, 768), stored(1)[0].x);
});

test("windows that are cut otherwise, and unknown normalization, are refused", () => {
  const learner = new Learner();
  const plan = (data) => ({ ...PLAN, data: { ...PLAN.data, ...data } });
  const slow = plan({ pipeline: { rate_hz: 25 } });
  assert.throws(() => learner.prepare(stored(9), slow), /128 samples at 25 Hz; a phone's have 128 at 50 Hz/);
  assert.throws(() => learner.prepare(stored(9), plan({ normalization: "pooled" })), /data.normalization is pooled/);
  assert.throws(() => learner.prepare(stored(9), plan({ test_share: 1 })), /test_share is 1/);
});

test("a phone without labelled windows prepares none", () => {
  const { train, holdout } = new Learner().prepare(stored(9, { label: null }), PLAN);
  assert.deepEqual([train.x.length, train.y.length, holdout.x.length], [0, 0, 0]);
});

test("without labelled windows a live one is normalized by all that were recorded, once they are enough", () => {
  const learner = new Learner();
  const given = (count, normalization) => {
    const [windows, plan] = [stored(count, { label: null }), { ...PLAN, data: { ...PLAN.data, normalization } }];
    return learner.normalizationOf(learner.prepare(windows, plan), windows, plan);
  };
  assert.throws(() => given(19, "client"), /20 windows .* there are 19/);
  assert.equal(given(0, "none"), null);
  const labelled = stored(3000);
  const { normalization } = learner.prepare(labelled, PLAN);
  assert.equal(learner.normalizationOf(learner.prepare(labelled, PLAN), labelled, PLAN), normalization);
  const { mean, std } = given(3000, "client");
  assertNear([...mean, ...std], [...normalization.mean, ...normalization.std], 0.1);
});

test("good prototypes are adopted, and what is learnt here is no better", async () => {
  const { model, verdicts } = await new Learner().choose({ ...situation(), candidate: RIGHT });
  assert.deepEqual(verdicts.map(({ answer }) => answer), ["adopted", "kept"]);
  assert.equal(model.prototypes, RIGHT.prototypes);
  assert.ok(model.temperature > 0);
  assert.match(verdicts[0].reason, /^global model of round 3: adopted, macro-F1 1.000 on \d+ holdout windows of 3/);
  assert.equal(verdicts[0].score, 1);
  assert.ok(verdicts[0].trivial < 0.5);
});

test("a head of one's own replaces prototypes that miss a class", async () => {
  const { model, verdicts } = await new Learner().choose({ ...situation(600), candidate: POOR });
  assert.deepEqual(verdicts.map(({ answer }) => answer), ["adopted", "adopted"]);
  assert.equal(model.by, "head");
  assert.equal(model.round, 3);
  assert.deepEqual(verdicts[1].compared.models.map(({ source }) => source), ["personalized", "global", "class-means"]);
  // the next round's prototypes are as poor: the head stays
  const next = await new Learner().choose({ ...situation(600), candidate: POOR, present: structuredClone(model) });
  assert.equal(next.verdicts[0].answer, "refused");
  assert.equal(next.model.by, "head");
});

test("where the holdout is small, cross-validation over parts in time shows that a head is better", async () => {
  const small = situation(180);
  const { model, verdicts } = await new Learner().choose({ ...small, candidate: POOR });
  assert.equal(model.by, "head");
  assert.match(verdicts[1].reason, /^personalized model of round 3: adopted, by cross-validation over stretches of time/);
  // of the holdout alone nobody could say so
  const { train, holdout } = small.prepared;
  const own = await new Learner().ownModels(small.embeddings.train, train.y, 3, POOR);
  const about = { holdout, embeddings: small.embeddings.holdout, labels: LABELS, score: null };
  const alone = new Learner().judge({ ...about, candidate: own.head, present: POOR });
  assert.deepEqual([alone.answer, alone.model], ["kept", POOR]);
  // and what is learnt here gives way where nothing shows that it is better
  const next = new Learner().judge({ ...about, candidate: RIGHT, present: own.head });
  assert.equal(next.answer, "adopted");
});

test("what a rollout gives is judged alone, and need only be no worse", async () => {
  const given = { ...situation(600), candidate: { ...RIGHT, round: 4 }, present: RIGHT, release: 2 };
  const { model, verdicts } = await new Learner().choose(given);
  assert.match(verdicts[0].reason, /a released model need not be better, and it is no worse/);
  assert.equal(verdicts.length, 1);
  assert.equal(model.round, 4);
});

test("a model of another network does not run, and one that knows nothing does not work", async () => {
  const learner = new Learner();
  const other = { ...RIGHT, sha256: "b" };
  const { verdicts } = await learner.choose({ ...situation(), candidate: RIGHT, present: other });
  assert.match(verdicts[0].reason, /the present model does not run any more/);
  const empty = { ...RIGHT, known: new Float32Array(3) };
  const found = await learner.choose({ ...situation(), candidate: empty });
  const { reason } = found.verdicts[0];
  assert.equal(reason, "global model of round 3: not adopted, it does not work: no class has a prototype yet");
  assert.equal(found.verdicts[0].score, null);
  assert.equal(found.model.by, "head");
});

test("with one class there is nothing to learn here", async () => {
  const { verdicts, model } = await new Learner().choose({ ...situation(60, 1), candidate: RIGHT });
  assert.equal(verdicts.length, 1);
  assert.equal(verdicts[0].trivial, null);
  assert.match(verdicts[0].reason, /are of one class\); the server has no score of it, and there is no model yet/);
  assert.equal(model.prototypes, RIGHT.prototypes);
});

test("a live window is normalized, embedded and named", async () => {
  const x = stored(1)[0].x;
  const seen = [];
  const embedder = {
    embed: async (given) => {
      seen.push(given);
      return Float32Array.of(3.5, 0.2);
    },
  };
  const normalization = { mean: new Float32Array(6).fill(1), std: new Float32Array(6).fill(2) };
  const shown = await recognize(x, { model: RIGHT, normalization }, embedder, LABELS);
  assert.equal(shown.label, "run");
  assert.equal(seen[0][5], Math.fround((x[5] - 1) / 2));
  assertNear([Object.values(shown.probabilities).reduce((a, b) => a + b)], [1], 1e-12);
  const unsure = await recognize(x, { model: { ...RIGHT, temperature: 50 }, normalization: null }, embedder, LABELS);
  assert.equal(seen[1], x);
  assert.equal(unsure.label, "run");
  assert.ok(unsure.probability < shown.probability);
});
