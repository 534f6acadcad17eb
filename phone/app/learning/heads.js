/**
 * The heads that one exchange of sums gives a phone, and which of them it uses: federation/methods/analytic.py and
 * edge_agent/serving/heads.py, with the same decisions and words. A head is the shared one, or the phone's own, in
 * which its sums weigh as all others'; both also on those features alone that are the same however the phone is turned,
 * which the first two are the mean with.
 */

import { byStretch, Paired, PairedGain, STRETCHES } from "./comparison.js";
import { threeDecimals, withDecimals } from "./numbers.js";
import { distanceFromAll, headScores, solve, solveMean } from "./ridge.js";
import { ClassSoundness, METRIC } from "./soundness.js";

/** Labelled windows of one activity in one session: of fewer, a holdout says nothing. */
const MIN_CONTIGUOUS = 5;
const MIN_CLASSES = 2;
/** Deviations of everybody's windows, root mean square over the acceleration's axes: federation/aggregation/ridge_numpy.py. */
const FAR = 1;
/** Added to everybody's variance on each axis. */
const MIN_VARIANCE = 0.05;
/** The simplest first. @type {Record<Model["head"], string>} */
export const HEADS_IN_WORDS = {
  shared: "shared head",
  shared_any_orientation: "shared head for any orientation",
  adapted: "shared head adapted to own windows",
  personalized: "personal head",
  personalized_any_orientation: "personal head for any orientation",
  shared_network: "shared network",
  personal_network: "personal network",
};

/** @typedef {"shared" | "shared_any_orientation" | "adapted" | "personalized" | "personalized_any_orientation"} HeadName */
/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").HeadModel} HeadModel */
/** @typedef {import("../types.js").Examples} Examples */
/** @typedef {import("../types.js").Verdict} Verdict */
/** @typedef {import("./ridge.js").FixedSums} FixedSums */

/**
 * @typedef {object} Exchange what heads are solved of
 * @property {FixedSums} shared @property {number} clients whose sums they are
 * @property {FixedSums | null} own null: nothing here has a label
 * @property {import("../protocol/versions.js").Method} method
 * @property {readonly number[]} orientationFree columns; none where the network does not say which
 * @property {number} version @property {string} sha256 of the network below the heads
 */

/**
 * Solve every head that there is something for, the simplest first.
 * @param {Exchange} exchange @returns {Promise<HeadModel[]>}
 */
export async function solveHeads({ shared, clients, own, method, orientationFree, version, sha256 }) {
  const others = method.own_weight * Math.max(1, clients);
  /** @type {[HeadName, FixedSums | null, readonly number[] | null][]} */
  const wanted = [];
  if (clients) wanted.push(["shared", null, null]);
  if (clients && orientationFree.length) wanted.push(["shared_any_orientation", null, orientationFree]);
  if (own) wanted.push(["personalized", own, null]);
  if (own && orientationFree.length) wanted.push(["personalized_any_orientation", own, orientationFree]);
  const found = [];
  for (const [head, mine, columns] of wanted) {
    const solved = columns
      ? await solve(shared, mine, others, method, columns)
      : await solveMean(shared, mine, others, method, orientationFree, method.orientation_free_share);
    found.push({ head, ...solved, version, sha256 });
  }
  return found;
}

/** Whether the phone's own windows are in it in particular. @param {Model} model */
export function isPersonal({ head }) {
  return head.startsWith("personal") || head === "adapted";
}

/** What a model is called. @param {Model} model */
export function nameOf({ head, version }) {
  return `${HEADS_IN_WORDS[head]} of ${head === "personal_network" ? "round" : "version"} ${version}`;
}

/**
 * Recognize one window by its embedding. A ridge regression on 0 and 1 estimates how likely each class is; what comes
 * out below 0 counts as 0.
 * @param {ArrayLike<number>} embedding (D) @param {import("./ridge.js").Head} model
 * @returns {{code: number, probabilities: Float64Array}}
 */
export function recognizeBy(embedding, model) {
  const scores = headScores(embedding, model);
  if (!scores.every(Number.isFinite)) throw new Error("the model gives no number on the phone's own windows");
  const code = scores.indexOf(Math.max(...scores));
  const likely = scores.map((score) => Math.max(score, 0));
  const sum = likely.reduce((total, each) => total + each, 0);
  return { code, probabilities: sum > 0 ? likely.map((each) => each / sum) : scores.map((_, i) => Number(i === code)) };
}

/**
 * The class of each embedding. @param {Float32Array} embeddings (n × D) @param {number} count n @param {HeadModel} model
 * @returns {Int32Array} (n)
 */
export function answersOf(embeddings, count, model) {
  const width = embeddings.length / Math.max(count, 1);
  return Int32Array.from({ length: count }, (_, row) => {
    return recognizeBy(embeddings.subarray(row * width, (row + 1) * width), model).code;
  });
}

/**
 * Whether the phone lies otherwise than those of the shared sums, by the mean embedding of its windows: a warning sign,
 * no proof.
 * @param {Float32Array} embeddings (n × D) @param {readonly number[]} gravity columns @param {FixedSums} shared
 * @returns {Promise<boolean>}
 */
export async function isFar(embeddings, gravity, shared) {
  const width = shared.moment.length / shared.classes - 1;
  const count = embeddings.length / width;
  if (!count || !gravity.length) return false;
  const mean = gravity.map((column) => {
    let sum = 0;
    for (let row = 0; row < count; row++) sum += embeddings[row * width + column];
    return sum / count;
  });
  return (await distanceFromAll(shared, gravity, mean, MIN_VARIANCE)) > FAR;
}

/**
 * @typedef {object} Question which head, or network, is used?
 * @property {readonly Model[]} heads the simplest first @property {Model | null} present the one in use
 * @property {Examples} holdout @property {Examples} train
 * @property {(model: Model) => Int32Array} answersOf (n) the holdout's windows, of a model that runs by what these do
 * @property {readonly string[]} labels @property {boolean} isFar
 */

/** @typedef {{model: Model, right: Uint8Array, soundness: ClassSoundness, score: number}} Run */

/**
 * Say which head is used from now on. The winner takes the place of the present model, unless that one is shown to be
 * better on the same windows. @param {Question} question @returns {Verdict}
 */
export function evaluate({ heads, present, holdout, train, answersOf: answersBy, labels, isFar: far }) {
  const places = comparable(train, holdout);
  const y = places.map((i) => holdout.y[i]);
  const groups = byStretch({
    y,
    startS: Float64Array.from(places, (i) => holdout.startS[i]),
    session: places.map((i) => holdout.session[i]),
  });
  const run = (/** @type {Model} */ model) => {
    const all = answersBy(model);
    const answered = places.map((i) => all[i]);
    const soundness = ClassSoundness.of(y, answered, labels);
    const right = Uint8Array.from(y, (code, i) => Number(answered[i] === code));
    return { model, right, soundness, score: soundness.score ?? 0 };
  };
  const runs = heads.map(run);
  const { best, why, gains } = choose(runs, groups, y.length, far);
  const now = present && y.length && present.sha256 === best.model.sha256 ? run(present) : null;
  return verdictOf(best, why, now, present, groups, { runs, gains });
}

/**
 * @param {Run} best @param {string} because @param {Run | null} now @param {Model | null} present
 * @param {import("./comparison.js").Groups} groups @param {{runs: Run[], gains: Map<Run, PairedGain>}} all
 * @returns {Verdict}
 */
function verdictOf(best, because, now, present, groups, { runs, gains }) {
  const worse = now && Paired.of(groups, best.right, now.right);
  /** @type {Verdict["answer"]} */
  let answer = "adopted";
  let why = because;
  if (now && worse?.isWorse && now.score >= best.score && !now.soundness.failureReason) {
    [answer, why] = ["refused", `${why}; but the ${nameOf(now.model)} has ${threeDecimals(now.score)} there: ${worse.words}`];
  } else if (best.soundness.failureReason) {
    [answer, why] = ["failed", `${why}; it does not work: ${best.soundness.failureReason}`];
  }
  const inUse = present && answer !== "adopted" ? ` (in use: ${nameOf(present)})` : "";
  const outcome = answer === "adopted" ? "adopted" : `not adopted${inUse}`;
  return {
    answer,
    reason: `${nameOf(best.model)}: ${outcome}, ${why}`,
    score: best.soundness.score,
    trivial: best.soundness.undecidedReason ? null : best.soundness.trivial,
    source: isPersonal(best.model) ? "personalized" : "global",
    model: answer === "adopted" ? best.model : present,
    compared: {
      metric: METRIC,
      windows: best.soundness.examples,
      classes: best.soundness.classes,
      stretches: groups.count,
      unit: STRETCHES,
      models: runs.map((each) => ({
        head: each.model.head,
        name: nameOf(each.model),
        score: each.soundness.score,
        gain: gains.get(each)?.gain ?? null,
        standard_error: gains.get(each)?.error ?? null,
      })),
    },
  };
}

/**
 * Places of those holdout windows whose activity has enough labelled ones in one session; none where that are too few
 * activities. @param {Examples} train @param {Examples} holdout @returns {Int32Array}
 */
export function comparable(train, holdout) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { y, session } of [train, holdout]) {
    y.forEach((code, i) => counts.set(`${code} ${session[i]}`, 1 + (counts.get(`${code} ${session[i]}`) ?? 0)));
  }
  const long = new Set([...counts].filter(([, count]) => count >= MIN_CONTIGUOUS).map(([key]) => Number(key.split(" ")[0])));
  const able = new Set(holdout.y.filter((code) => long.has(code)));
  if (able.size < MIN_CLASSES) return new Int32Array(0);
  return Int32Array.from(holdout.y.keys()).filter((i) => able.has(holdout.y[i]));
}

/**
 * The simplest head that no other beats by more than a standard error; by how the phone lies without labels.
 * @param {Run[]} runs the simplest first @param {import("./comparison.js").Groups} groups
 * @param {number} count of windows @param {boolean} far
 * @returns {{best: Run, why: string, gains: Map<Run, PairedGain>}}
 */
function choose(runs, groups, count, far) {
  const [first] = runs;
  /** @type {Map<Run, PairedGain>} */
  const gains = new Map();
  if (!count) return { ...withoutLabels(runs, far), gains };
  let best = first;
  for (const run of runs.slice(1)) {
    gains.set(run, PairedGain.of(groups, run.right, first.right));
    if (PairedGain.of(groups, run.right, best.right).isBetter) best = run;
  }
  const gain = gains.get(best);
  if (!gain) {
    const others = runs.slice(1).map((each) => `${HEADS_IN_WORDS[each.model.head]} ${threeDecimals(each.score)}`).join(", ");
    const beats = others && `; no other is better by more than a standard error (${others})`;
    return { best, why: `${first.soundness.words}${beats}`, gains };
  }
  const error = gain.error === null ? "" : ` ± ${withDecimals(100 * gain.error, 1)}`;
  const why =
    `${best.soundness.words}; on ${gain.groups} ${STRETCHES} it is right ${withDecimals(100 * gain.gain, 1)}${error} points more ` +
    `often than the ${HEADS_IN_WORDS[first.model.head]}, which has ${threeDecimals(first.score)}`;
  return { best, why, gains };
}

/** @param {Run[]} runs @param {boolean} far @returns {{best: Run, why: string}} */
function withoutLabels(runs, far) {
  const named = (/** @type {HeadName} */ name) => runs.find(({ model }) => model.head === name);
  const few =
    `fewer than ${MIN_CLASSES} activities have ${MIN_CONTIGUOUS} labelled windows in a row, so that no head is scored`;
  const free = far ? named("shared_any_orientation") : undefined;
  if (free) {
    const why = `${few}; this device seems to lie otherwise than most, and this head does not know how it lies`;
    return { best: free, why };
  }
  const adapted = far ? undefined : named("adapted");
  if (!adapted) return { best: named("shared") ?? runs[0], why: few };
  return { best: adapted, why: `${few}; its windows without labels count a little as what the shared head names them` };
}
