/**
 * The heads that one exchange of sums gives a phone, and which of them it uses: federation/methods/analytic.py and
 * edge_agent/serving/heads.py, with the same decisions and words. A head is the shared one, or the phone's own, in
 * which its sums weigh as all others'; both also on those features alone that are the same however the phone is turned,
 * which the first two are the mean with.
 */

import { UnusableModelError } from "../protocol/errors.js";
import { GAINS } from "../protocol/messages.generated.js";
import { signTest } from "./comparison.js";
import { threeDecimals, withDecimals } from "./numbers.js";
import { evidenceOf, expectedGains, likeliest, priorOf, reportOf } from "./preference.js";
import { distanceFromAll, headScores, solve, solveMean } from "./ridge.js";
import { ClassSoundness, METRIC } from "./soundness.js";

/** Labelled windows of one activity in one session: of fewer, a holdout says nothing. */
const MIN_CONTIGUOUS = 5;
const MIN_CLASSES = 2;
/** Deviations of everybody's windows, root mean square over the acceleration's axes: federation/aggregation/ridge_numpy.py. */
const FAR = 1;
/** Added to everybody's variance on each axis. */
const MIN_VARIANCE = 0.05;
/** Of equally good ones the first serves. @type {Record<Model["head"], string>} */
export const HEADS_IN_WORDS = {
  midway_network: "network midway between shared and personal",
  personal_network: "personal network",
  personalized: "personal model",
  shared_network: "shared network",
  shared: "shared model",
  adapted: "shared model adapted to own windows",
  personalized_any_orientation: "personal model for any orientation",
  shared_any_orientation: "shared model for any orientation",
};
const ORDER = Object.keys(HEADS_IN_WORDS);
/** @type {Partial<Record<Model["head"], string>>} */
const NAMES = {
  shared_network: "the shared model",
  shared: "the shared model",
  personal_network: "your own model",
  personalized: "your own model",
  midway_network: "the model midway between the two",
};
/** What a network is called in the sums of gains; heads of sums are in none. @type {Partial<Record<Model["head"], string>>} */
const GAIN_NAMES = { personal_network: "personalized", midway_network: "midway" };
/** They lose the classes that the phone was not trained on; a head of sums keeps them. @type {Model["head"][]} */
const FORGETFUL = ["personal_network", "midway_network"];
const EXPECTED = "it is expected to be the best over all activities";

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
 * Solve every head that there is something for, the simplest first; throws an UnusableModelError where the shared sums
 * give none.
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
  for (const [head, ownSums, columns] of wanted) {
    const solved = columns
      ? await solve(shared, ownSums, others, method, columns)
      : await solveMean(shared, ownSums, others, method, orientationFree, method.orientation_free_share);
    if (![...solved.weight, ...solved.bias].every(Number.isFinite)) {
      throw new UnusableModelError(`the ${HEADS_IN_WORDS[head]} holds NaN or infinity: the broadcast's sums are not sound`);
    }
    found.push({ head, ...solved, version, sha256 });
  }
  return found;
}

/** Whether the phone's own windows are in it in particular. @param {Model} model */
export function isPersonal({ head }) {
  return !head.startsWith("shared");
}

/** What a model is called. @param {Model} model */
export function nameOf({ head, version }) {
  return `${HEADS_IN_WORDS[head]} of ${FORGETFUL.includes(head) ? "round" : "version"} ${version}`;
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
 * @property {readonly Model[]} heads of one version @property {Model | null} present the one in use
 * @property {Examples} holdout @property {Examples} train
 * @property {(model: Model) => Int32Array} answersOf (n) the holdout's windows, of a model that runs by what these do
 * @property {readonly string[]} labels @property {boolean} isFar
 */

/** @typedef {Readonly<Record<string, import("./preference.js").GainSums>>} Gains by model, as they travel */
/** @typedef {{sums: Gains, own?: Gains}} Others what a version's devices gain; own: the phone's own report, which is in it */
/** @typedef {{others?: Others, isReleased?: boolean}} Rules others: of networks; isReleased: the operator gives the version to phones */
/** @typedef {{model: Model, right: Uint8Array, soundness: ClassSoundness}} Run */
/** @typedef {{y: Int32Array, session: Int32Array, startS: Float64Array}} Windows that models are compared on */
/** @typedef {{best: Run, why: string, gains?: Map<Run, number>, answer?: Verdict["answer"]}} Chosen */

/** Say which head is used from now on: one of these, or still the present one. @param {Question & Rules} question @returns {Verdict} */
export function evaluate({ heads, present, holdout, train, answersOf: answersBy, labels, isFar: far, others, isReleased }) {
  const places = comparable(train, holdout);
  const windows = {
    y: places.map((i) => holdout.y[i]),
    session: places.map((i) => holdout.session[i]),
    startS: Float64Array.from(places, (i) => holdout.startS[i]),
  };
  const run = (/** @type {Model} */ model) => {
    const all = answersBy(model);
    const soundness = ClassSoundness.of(windows.y, places.map((i) => all[i]), labels);
    return { model, right: Uint8Array.from(places, (i) => Number(all[i] === holdout.y[i])), soundness };
  };
  const runs = heads.map(run);
  const now = present && present.sha256 === heads[0].sha256 ? run(present) : null;
  const held = now && !runs.some((each) => isSame(each, now)) ? [now] : [];
  const trained = labels.map((_, code) => train.y.includes(code));
  const rivals = isReleased ? [] : held.filter(({ soundness }) => !soundness.failureReason);
  /** @type {Chosen} */
  let chosen = places.length || "values" in heads[0] ? choose(runs, rivals, windows, { trained, others }) : withoutLabels(runs, far);
  if (isReleased && now && places.length) chosen = judgeRelease(chosen, now, windows);
  return verdictOf(chosen, runs, held, present);
}

/**
 * What a phone reports of its networks' gains over the shared one, by the answers (n) of each; null where it can't tell.
 * @param {Pick<Examples, "y" | "session">} windows @param {(readonly [Model["head"], Int32Array])[]} answers
 * @param {number} classes @returns {Record<string, number[]> | null}
 */
export function reportedGains({ y, session }, answers, classes) {
  const right = answers.map(([head, codes]) => /** @type {const} */ ([head, codes.map((code, i) => Number(code === y[i]))]));
  const shared = right.find(([head]) => isShared(head));
  if (!shared || right.length < 2 || !y.length || classes > GAINS.maxClasses) return null;
  const rivals = right.filter((each) => each !== shared);
  const report = (/** @type {Int32Array} */ mine) => reportOf(evidenceOf(y, mine, shared[1], session, classes));
  return Object.fromEntries(rivals.map(([head, mine]) => [GAIN_NAMES[head], report(mine)]));
}

/**
 * @param {Chosen} chosen @param {Run[]} runs @param {Run[]} held @param {Model | null} present @returns {Verdict}
 */
function verdictOf({ best, why: because, gains, answer: given }, runs, held, present) {
  const shown = runs.includes(best) ? best : runs[0];
  const failure = shown === best && best.soundness.failureReason;
  const why = failure ? `${because}; it does not work: ${failure}` : because;
  const answer = failure ? "failed" : (given ?? (shown === best ? "adopted" : "kept"));
  const inUse = present && answer !== "adopted" ? ` (in use: ${nameOf(present)})` : "";
  const outcome = answer === "adopted" ? "adopted" : `not adopted${inUse}`;
  const { score, trivial, undecidedReason, examples, classes } = shown.soundness;
  return {
    answer,
    why,
    reason: `${nameOf(shown.model)}: ${outcome}. ${why}`,
    score,
    trivial: undecidedReason ? null : trivial,
    source: isPersonal(shown.model) ? "personalized" : "global",
    model: answer === "adopted" ? best.model : present,
    compared: {
      metric: METRIC,
      windows: examples,
      classes,
      models: [...runs, ...held].map((each) => ({
        head: each.model.head,
        name: nameOf(each.model),
        score: each.soundness.score,
        gain: gains?.get(each) ?? null,
      })),
    },
  };
}

/** Whether two are one model, as far as these windows tell. @param {Run} one @param {Run} other */
function isSame(one, other) {
  const isNamed = one.model.head === other.model.head && one.model.version === other.model.version;
  return isNamed && one.right.every((each, i) => each === other.right[i]);
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
 * The likeliest of those that work and the present one, and why in a sentence: edge_agent/serving/choice.py. They are
 * compared with the newest shared model; without any, with the newest of the phone's own.
 * @param {Run[]} runs @param {Run[]} held @param {Windows} windows
 * @param {{trained: boolean[], others?: Others}} by @returns {Chosen}
 */
function choose(runs, held, { y, session }, { trained, others }) {
  const working = runs.filter(({ soundness }) => !soundness.failureReason);
  const able = [...(working.length ? working : [runs[0]]), ...held];
  const newestFirst = able.sort((one, other) => other.model.version - one.model.version);
  const reference = newestFirst.find(({ model }) => isShared(model.head)) ?? newestFirst[0];
  const ranked = [...newestFirst].sort((one, other) => ORDER.indexOf(one.model.head) - ORDER.indexOf(other.model.head));
  const candidates = ranked.filter((run) => run !== reference).map((run) => {
    const evidence = y.length ? evidenceOf(y, run.right, reference.right, session, trained.length) : null;
    const { head } = run.model;
    const none = { mean: 0, variance: 0, byClass: trained.map(() => 0) }; // of an older one no gain is expected
    const prior = isShared(head) ? none : isShared(reference.model.head) ? priorAmong(others, head, trained.length) : null;
    const forgets = isShared(reference.model.head) && FORGETFUL.includes(head);
    return /** @type {const} */ ([run, { evidence, prior, forgets }]);
  });
  const gains = expectedGains(new Map(candidates), trained, lowestRecall(reference));
  const best = likeliest(gains, ranked, reference);
  const isSurprise = ranked.some(({ soundness }) => (soundness.score ?? 0) > (best.soundness.score ?? 0));
  return { best, gains, why: sentence(best, [reference, ...ranked]) + (isSurprise ? `; ${EXPECTED}` : "") };
}

/** Whether the others are compared with it. @param {Model["head"]} head */
function isShared(head) {
  return head === "shared" || head === "shared_network";
}

/** @param {Others | undefined} others @param {Model["head"]} head @param {number} classes */
function priorAmong(others, head, classes) {
  const name = GAIN_NAMES[head];
  const sums = name && others?.sums[name];
  return sums && sums.length === 3 + 2 * classes ? priorOf(sums, others?.own?.[name]) : null;
}

/** The lowest recall of a class with windows; 0 without any. @param {Run} run */
function lowestRecall({ soundness: { matrix, rows } }) {
  const recalls = rows.flatMap((count, code) => (count ? [matrix[code][code] / count] : []));
  return recalls.length ? Math.min(...recalls) : 0;
}

/** The score of the model that serves, and those of the others. @param {Run} best @param {Run[]} others */
function sentence(best, others) {
  const named = new Set();
  const [first, ...rest] = [...new Set([best, ...others])].map(({ model, soundness: { score } }) => {
    let words = NAMES[model.head] ?? `the ${HEADS_IN_WORDS[model.head]}`;
    if (named.has(words)) words += ` of ${model.head.endsWith("network") ? "round" : "version"} ${model.version}`;
    named.add(words);
    return `${words}: ${score === null ? "no score" : `${withDecimals(100 * score, 0)} %`}`;
  });
  const all = [`${first} on ${best.soundness.size}`, ...rest].join("; ");
  return all[0].toUpperCase() + all.slice(1);
}

/**
 * Whether a released version's best model replaces the present one: it need not be better, but it takes significance to
 * refuse it, since that can halt the rollout (edge_agent/serving/acceptance.py).
 * @param {Chosen} chosen @param {Run} now @param {Windows} windows @returns {Chosen}
 */
function judgeRelease(chosen, now, windows) {
  const { best } = chosen;
  const paired = signTest(windows, best.right, now.right);
  const gain = (best.soundness.score ?? 0) - (now.soundness.score ?? 0);
  const why = `${best.soundness.words} and ${threeDecimals(now.soundness.score ?? 0)} of the present model; ${paired.words}`;
  if (gain >= 0 && (now.soundness.failureReason || !paired.isWorse)) return { ...chosen, why };
  return { ...chosen, why, answer: gain <= 0 && paired.isWorse ? "refused" : "kept" };
}

/** @param {Run[]} runs @param {boolean} far @returns {Chosen} */
function withoutLabels(runs, far) {
  const named = (/** @type {HeadName} */ name) => runs.find(({ model }) => model.head === name);
  const few =
    `No head is scored: fewer than ${MIN_CLASSES} activities have ${MIN_CONTIGUOUS} labelled windows in a row`;
  const free = far ? named("shared_any_orientation") : undefined;
  if (free) {
    const why = `${few}; this device seems to lie otherwise than most, and this head does not know how it lies`;
    return { best: free, why };
  }
  const adapted = far ? undefined : named("adapted");
  if (!adapted) return { best: named("shared") ?? runs[0], why: few };
  return { best: adapted, why: `${few}; its windows without labels count a little as what the shared head names them` };
}
