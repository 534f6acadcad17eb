import assert from "node:assert/strict";
import { test } from "node:test";
import { comparable, evaluate } from "../../../phone/app/learning/heads.js";
import { Learner, recognize } from "../../../phone/app/learning/learner.js";
import { assertNear } from "./vectors.mjs";

const LABELS = ["walk", "run", "sit"];
const PLAN = {
  labels: LABELS,
  data: { pipeline: {}, normalization: "client", statistics: null, test_share: 0.2, input: null },
};
const HOP_MS = 1280;
const WIDTH = 2;
const METHOD = { ridge: 1e-2, clip: 4, own_weight: 1, orientation_free_share: 0.33 };

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

const CORNERS = [[0, 0], [3, 0], [0, 3]];
const TURNED = [[3, 0], [0, 3], [0, 0]];

function embeddingsOf(y, corners) {
  return Float32Array.from({ length: y.length * WIDTH }, (_, i) => {
    return corners[y[Math.floor(i / WIDTH)]][i % WIDTH] + 0.3 * Math.sin(7 * i);
  });
}

/** What a phone has whose windows lie about the corners of a triangle, where those of others lie about `others`. */
async function situation({ count = 600, others = CORNERS, label, ...changes } = {}) {
  const learner = new Learner();
  const prepared = learner.prepare(stored(count, label === undefined ? {} : { label }), PLAN);
  const embeddings = {
    train: embeddingsOf(prepared.train.y, CORNERS),
    holdout: embeddingsOf(prepared.holdout.y, CORNERS),
    unlabelled: new Float32Array(0),
  };
  const theirs = Array.from({ length: 300 }, (_, i) => i % 3);
  const shared = await learner.sums(embeddingsOf(theirs, others), theirs, 3, METHOD.clip);
  const { train } = prepared;
  const own = train.y.length ? await learner.sums(embeddings.train, train.y, 3, METHOD.clip) : null;
  const exchange = { shared, clients: 1, own, method: METHOD, orientationFree: [], version: 3, sha256: "a", ...changes };
  return { exchange, present: null, prepared, embeddings, labels: LABELS, gravity: [] };
}

test("the same windows are prepared once, others anew", () => {
  const learner = new Learner();
  const windows = stored(60);
  const first = learner.prepare(windows, PLAN);
  assert.equal(learner.prepare(stored(60), PLAN), first);
  windows[3] = { ...windows[3], label: "sit" };
  const anew = learner.prepare(windows, PLAN);
  assert.notEqual(anew.train, first.train);
  assert.deepEqual(first.keys.slice(2, 4), ["3 walk", "4 walk"]);
  assert.deepEqual(anew.keys.filter((key) => !first.keys.includes(key)), ["4 sit"]);
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
  const sharp = plan({ pipeline: { anti_alias: "downsampling" } });
  assert.throws(() => learner.prepare(stored(9), sharp), /anti-aliased when downsampling; a phone's always are/);
  assert.throws(() => learner.prepare(stored(9), plan({ normalization: "pooled" })), /data.normalization is pooled/);
  assert.throws(() => learner.prepare(stored(9), plan({ test_share: 1 })), /test_share is 1/);
});

test("of a phone without labelled windows some tell how it lies", () => {
  const { train, holdout, unlabelled, recorded } = new Learner().prepare(stored(1000, { label: null }), PLAN);
  assert.deepEqual([train.x.length, train.y.length, holdout.x.length], [0, 0, 0]);
  assert.equal(unlabelled.length, 256 * 768);
  assert.equal(recorded.count, 1000);
  assert.deepEqual(unlabelled.subarray(-768), stored(1000)[999].x);
  assert.equal(new Learner().prepare(stored(60), PLAN).unlabelled.length, 0);
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

test("of heads that are equally good the phone's own is used", async () => {
  const { verdict, heads } = await new Learner().choose(await situation());
  assert.deepEqual(heads.map(({ head }) => head), ["shared", "personalized"]);
  assert.deepEqual([verdict.answer, verdict.source, verdict.score], ["adopted", "personalized", 1]);
  assert.equal(verdict.why, "Your own model: 100 % on 120 holdout windows of 3 classes; the shared model: 100 %");
  assert.equal(verdict.reason, `personal model of version 3: adopted. ${verdict.why}`);
  assert.ok(verdict.trivial < 0.5);
  const gains = verdict.compared.models.map(({ head, gain }) => [head, gain]);
  assert.deepEqual(gains, [["shared", null], ["personalized", 0]]);
});

test("the phone's own head is used where its windows show that it is better, and stays then", async () => {
  const given = await situation({ others: TURNED, own_weight: 1 });
  const { verdict } = await new Learner().choose(given);
  assert.deepEqual([verdict.answer, verdict.source, verdict.model.head], ["adopted", "personalized", "personalized"]);
  const again = await new Learner().choose({ ...given, present: structuredClone(verdict.model) });
  assert.deepEqual([again.verdict.answer, again.verdict.why], ["adopted", verdict.why], "one model is named once");
  // of the next version nothing but a shared head comes that is worse: the present one stays
  const alone = { ...given, exchange: { ...given.exchange, own: null, version: 4 }, present: structuredClone(verdict.model) };
  const next = await new Learner().choose(alone);
  assert.deepEqual([next.verdict.answer, next.verdict.source, next.verdict.model.version], ["kept", "global", 3]);
  assert.match(next.verdict.reason, /^shared model of version 4: not adopted \(in use: personal model of version 3\)\. Your/);
  assert.match(next.verdict.why, /^Your own model: 91 % on 120 holdout windows of 3 classes; the shared model: 0 %$/);
});

/** Say of models with these answers to two classes of thirty windows each which one is used. */
function judged(answers, { present = null, trained = [0, 1], ...changes } = {}) {
  const y = Int32Array.from({ length: 60 }, (_, i) => Number(i >= 30));
  const startS = Float64Array.from(y, (_, i) => 10 * i);
  const session = new Int32Array(60);
  const train = { y: Int32Array.from(trained.flatMap((code) => [code, code, code])), session };
  const model = (head, version = 2) => ({ head, version, sha256: "a", values: {} });
  const heads = Object.keys(answers).filter((head) => head !== present).map((head) => model(head));
  return evaluate({
    ...{ heads, present: present && model(present, 1), holdout: { y, startS, session }, train, labels: LABELS.slice(0, 2) },
    ...{ answersOf: ({ head }) => y.map((code, i) => (i % 30 < answers[head] ? code : 1 - code)), isFar: false, ...changes },
  });
}

test("the reference serves where the others are worse, and a present model is a rival like any other", () => {
  assert.equal(judged({ shared_network: 28, personal_network: 25, midway_network: 26 }).model.head, "shared_network");
  assert.equal(judged({ shared_network: 25, personal_network: 26, midway_network: 28 }).model.head, "midway_network");
  const kept = judged({ shared_network: 25, personal_network: 28 }, { present: "personal_network" });
  assert.deepEqual([kept.answer, kept.model.head], ["kept", "personal_network"]);
  const better = judged({ shared_network: 28, personal_network: 25 }, { present: "personal_network" });
  assert.deepEqual([better.answer, better.model.head], ["adopted", "shared_network"]);
});

test("a network loses the classes that the phone never trained on, a head of sums does not", () => {
  const labels = LABELS; // of which the third is nowhere on the phone
  const network = judged({ shared_network: 25, personal_network: 30 }, { labels });
  assert.equal(network.model.head, "shared_network");
  assert.match(network.why, /; it is expected to be the best over all activities$/);
  assert.equal(judged({ shared: 25, personalized: 30 }, { labels }).model.head, "personalized");
  const heldOut = judged({ shared_network: 25, personal_network: 30 }, { trained: [0] });
  assert.equal(heldOut.model.head, "personal_network", "its windows say that it is not lost");
});

/** What ten other devices gain, alike on both classes. */
const gainOf = (gain) => [10, 1e5 * gain, 1e5 * gain ** 2, 10, 1e5 * gain, 10, 1e5 * gain];

test("what others gain counts, and alone where too little here has a label", () => {
  const given = { shared_network: 25, personal_network: 26 };
  assert.equal(judged(given).model.head, "personal_network");
  const lost = { others: { sums: { personalized: gainOf(-0.3) } } };
  assert.equal(judged(given, lost).model.head, "shared_network");
  const none = { holdout: { y: new Int32Array(0), startS: [], session: [] }, answersOf: () => [] };
  assert.deepEqual([judged(given, none).model.head, judged(given, none).score], ["shared_network", null]);
  const others = { sums: { personalized: gainOf(0.1) } };
  assert.equal(judged(given, { ...none, others }).model.head, "personal_network");
  const kept = judged(given, { ...none, others, present: "personal_network" });
  assert.deepEqual([kept.answer, kept.model.head, kept.model.version], ["kept", "personal_network", 1]);
  assert.equal(judged(given, { ...none, others, present: "personal_network", isReleased: true }).model.head, "shared_network");
});

test("the phone's own report is not among what others gain", () => {
  const [personalized, own] = [gainOf(0.1).map((each, i) => each + gainOf(0.4)[i] / 10), gainOf(0.4).map((each) => each / 10)];
  const none = { holdout: { y: new Int32Array(0), startS: [], session: [] }, answersOf: () => [] };
  const gain = (others) => judged({ shared_network: 0, personal_network: 0 }, { ...none, others }).compared.models[1].gain;
  assertNear([gain({ sums: { personalized }, own: { personalized: own } })], [0.1], 1e-12);
  assert.equal(gain({ sums: { personalized: gainOf(0.1) }, own: { personalized: own } }), null, "nine others are too few");
  assert.equal(gain({ sums: { personalized: gainOf(0.1).slice(2) } }), null, "of other classes");
});

test("a released model replaces the present one unless it is worse, and is refused where that is significant", () => {
  const released = (mine, present) =>
    judged({ shared_network: mine, personal_network: present }, { present: "personal_network", isReleased: true });
  assert.deepEqual([released(25, 25).answer, released(25, 25).model.head], ["adopted", "shared_network"]);
  assert.deepEqual([released(25, 26).answer, released(25, 26).model.head], ["kept", "personal_network"]);
  const refused = released(20, 30);
  assert.deepEqual([refused.answer, refused.model.head], ["refused", "personal_network"]);
  assert.match(refused.reason, /^shared network of version 2: not adopted .* and 1\.000 of the present model; of 60 stretches/);
});

test("a present model of another network is not asked, and gives way", async () => {
  const given = await situation({ others: TURNED });
  const { verdict } = await new Learner().choose(given);
  const present = { ...verdict.model, sha256: "b" };
  const alone = { ...given, exchange: { ...given.exchange, own: null }, present };
  const next = await new Learner().choose(alone);
  assert.equal(next.verdict.answer, "failed", "the shared head answers nothing right here");
  assert.doesNotMatch(next.verdict.reason, /your own model/i);
});

test("without labels it is the shared head, or the one without axes where the phone lies otherwise than most", async () => {
  const given = await situation({ label: null, orientationFree: [0] });
  // in the first column a third of the others' windows have 3, the rest 0: a deviation of 1.4 about 1
  const far = { ...given.embeddings, unlabelled: Float32Array.from({ length: 40 }, (_, i) => (i % 2 ? 0 : 3)) };
  const near = { ...given.embeddings, unlabelled: new Float32Array(40).fill(1) };
  const chosen = async (embeddings, gravity) => (await new Learner().choose({ ...given, embeddings, gravity })).verdict;
  assert.equal((await chosen(near, [0])).model.head, "shared");
  const found = await chosen(far, [0]);
  assert.equal(found.model.head, "shared_any_orientation");
  assert.match(found.reason, /seems to lie otherwise than most, and this head does not know how it lies$/);
  assert.ok(found.model.weight.every((value, i) => i % WIDTH === 0 || value === 0), "the other column weighs nothing");
  assert.equal((await chosen(far, [])).model.head, "shared", "a network that does not say how it lies");
});

test("many windows without labels adapt the shared head, where it and the head without axes name them alike", async () => {
  const given = await situation({ label: null, orientationFree: [0, 1] }); // of which both heads are one
  const names = Array.from({ length: 150 }, (_, i) => i % 3);
  const chosen = async (unlabelled) => {
    const embeddings = { ...given.embeddings, unlabelled };
    return (await new Learner().choose({ ...given, embeddings })).verdict;
  };
  const found = await chosen(embeddingsOf(names, CORNERS));
  assert.equal(found.model.head, "adapted");
  assert.match(found.reason, /^shared model adapted to own windows of version 3: adopted\. .* what the shared head names them$/);
  assert.equal((await chosen(embeddingsOf(names.slice(0, 99), CORNERS))).model.head, "shared", "too few");
});

test("before anybody has sent sums there is the phone's own head, and without labels none", async () => {
  const { verdict, heads } = await new Learner().choose(await situation({ clients: 0 }));
  assert.deepEqual(heads.map(({ head }) => head), ["personalized"]);
  assert.equal(verdict.model.head, "personalized");
  const nothing = await situation({ label: null, clients: 0 });
  await assert.rejects(new Learner().choose(nothing), /nobody has sent sums yet, and this phone has no labelled windows/);
});

test("windows of activities of which too few lie in a row are not compared by", () => {
  const part = (y, session) => ({ y: Int32Array.from(y), session: Int32Array.from(session) });
  const train = part([0, 0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
  const holdout = part([0, 1, 2, 1], [0, 0, 0, 1]);
  assert.deepEqual([...comparable(train, holdout)], [0, 1, 3]);
  const split = part([0, 1, 2, 1], [0, 1, 0, 1]); // the activity 1 has four in one session, and two in another
  assert.deepEqual([...comparable(train, split)], [], "one activity alone is left");
});

test("a live window is normalized, embedded and named", async () => {
  const x = stored(1)[0].x;
  const seen = [];
  const embedder = {
    embed: async (given) => {
      seen.push(given);
      return Float32Array.of(0.5, 0.25);
    },
  };
  const model = { head: "shared", weight: Float64Array.of(0, 0, 1, 1, 0, -4), bias: Float64Array.of(0.25, 0, 0) };
  const normalization = { mean: new Float32Array(6).fill(1), std: new Float32Array(6).fill(2) };
  const shown = await recognize(x, { model, normalization }, embedder, LABELS);
  assert.equal(seen[0][5], Math.fround((x[5] - 1) / 2));
  assert.deepEqual([shown.label, shown.probabilities], ["run", { walk: 0.25, run: 0.75, sit: 0 }]);
  const none = { ...model, weight: new Float64Array(6), bias: Float64Array.of(-2, -1, -3) };
  const unsure = await recognize(x, { model: none, normalization: null }, embedder, LABELS);
  assert.equal(seen[1], x);
  assert.deepEqual([unsure.label, unsure.probability], ["run", 1]);
  const broken = { ...model, bias: Float64Array.of(NaN, 0, 0) };
  await assert.rejects(recognize(x, { model: broken, normalization }, embedder, LABELS), /gives no number/);
});
