/**
 * Which model a phone uses: edge_agent/serving/acceptance.py for classification, with the same decisions and words. It is
 * the federation's, unless the phone's own windows show that what was learnt here is better; where the holdout is small,
 * by the answers of cross-validation.
 */

import { byStretch, isSmall, Paired, STRETCHES } from "./comparison.js";
import { general, threeDecimals } from "./numbers.js";
import { ClassSoundness, LABEL, METRIC, TRIVIAL_ANSWER } from "./soundness.js";

/** @typedef {"train" | "export" | "adopt"} Kind */
/** @typedef {"adopted" | "kept" | "refused" | "failed" | "undecided"} Answer */

/** @typedef {{source: string, round: number}} Named what a model is called by */

/** @typedef {import("../types.js").VersionScore} VersionScore */

/**
 * @typedef {object} Asked
 * @property {Kind} kind adopt: the server's model; otherwise one that was made here
 * @property {number} [release] number of the rollout that gave it, 0: none
 * @property {VersionScore | null} [serverScore] of its version, or of the one that it began from
 */

/**
 * @template {Named} M
 * @typedef {object} Attempt a model and what it answered
 * @property {M} model
 * @property {Int32Array | null} answered (n) class of each holdout window; null: it does not run
 * @property {string} [error] why it does not
 * @property {Int32Array | null} [validated] (m) its answers to all labelled windows: of what was learnt here those of
 *   cross-validation, −1 where there are none; null: there was none
 */

/**
 * @template {Named} M
 * @typedef {object} Run @property {M} model @property {ClassSoundness} found
 * @property {Uint8Array} right (n) 1 where the answer is right @property {number} score @property {boolean} isGlobal
 * @property {Int32Array | null} validated
 */

/**
 * @typedef {object} Holdout n windows
 * @property {Int32Array} y (n) @property {import("./comparison.js").Groups} groups @property {readonly string[]} labels
 * @property {Timed | null} [labelled] m windows: all that cross-validation may have answered
 */

/** @typedef {{startS: Float64Array, y: Int32Array, session: Int32Array}} Timed */

/**
 * @typedef {object} Evidence how much one model scores better than another, and by which windows
 * @property {number} gain @property {Paired} paired @property {ClassSoundness} found of the one by these windows
 * @property {number} otherScore @property {boolean} validated by answers of cross-validation, not on the holdout
 */

/**
 * @template {Named} M
 * @typedef {object} Verdict
 * @property {Answer} answer @property {string} reason for people
 * @property {ClassSoundness | null} found what the holdout says of the candidate; null: it does not run
 * @property {M | null} instead another model of the phone that is better than the present one, to be used now
 * @property {Compared | null} compared every model that ran; null: the candidate does not run
 */

/**
 * @typedef {object} Compared
 * @property {string} metric @property {number} windows @property {number} classes @property {number} stretches
 * @property {string} unit
 * @property {(Named & {score: number | null, better?: number, worse?: number, p?: number, validated?: true})[]} models
 */

/**
 * @template {Named} M
 * @typedef {object} Field what a candidate is compared with
 * @property {Holdout} holdout @property {Run<M> | null} present @property {boolean} hasModel
 * @property {number} margin @property {boolean} released
 */

/**
 * Say whether the candidate is used.
 * @template {Named} M
 * @param {Attempt<M>} candidate @param {Asked} asked @param {Holdout} holdout @param {Attempt<M> | null} present
 * @param {readonly Attempt<M>[]} [others] models of the phone that were judged before
 * @param {{margin?: number}} [options] least gain in macro-F1, beside the paired test
 * @returns {Verdict<M>}
 */
export function evaluate(candidate, asked, holdout, present, others = [], { margin = 0 } = {}) {
  const name = nameOf(candidate.model);
  const mine = runOf(candidate, holdout);
  if (!mine) {
    const told = `not adopted${inUse(present?.model)}`;
    const reason = `${name}: ${told}, it does not work: ${candidate.error ?? "it does not run"}`;
    return { answer: "failed", reason, found: null, instead: null, compared: null };
  }
  const released = (asked.release ?? 0) > 0;
  const now = present && runOf(present, holdout);
  const field = { holdout, present: now, hasModel: present !== null, margin, released };
  const rivals = released ? [] : others.map((one) => runOf(one, holdout)).filter((run) => run !== null);
  let { answer, why } = decide(mine, field, asked);
  const better = best(rivals, answer === "adopted" ? mine : now, field);
  if (better) {
    if (answer === "adopted") answer = "kept";
    const score = threeDecimals(better.score);
    why += `; the ${nameOf(better.model)}, which was judged before, has ${score} there and is used now`;
  }
  const told = answer === "adopted" ? "adopted" : `not adopted${inUse(better?.model ?? present?.model)}`;
  const compared = comparedOf(mine, rivals, field);
  return { answer, reason: `${name}: ${told}, ${why}`, found: mine.found, instead: better?.model ?? null, compared };
}

/** @param {Named | undefined} model */
function inUse(model) {
  return model ? ` (in use: ${nameOf(model)})` : "";
}

/** @param {Named} model */
export function nameOf({ source, round }) {
  return `${source} model of round ${round}`;
}

/** @template {Named} M @param {Attempt<M>} attempt @param {Holdout} holdout @returns {Run<M> | null} */
function runOf({ model, answered, validated = null }, { y, labels }) {
  if (!answered) return null;
  if (answered.length !== y.length) throw new Error(`${answered.length} answers to ${y.length} holdout windows`);
  const found = ClassSoundness.of(y, answered, labels);
  const isGlobal = model.source === "global";
  return { model, found, right: rightOf(y, answered), score: found.score ?? 0, isGlobal, validated };
}

/** @param {Int32Array} y @param {Int32Array} answered @returns {Uint8Array} 1 where the answer is right */
function rightOf(y, answered) {
  return Uint8Array.from(y, (code, i) => (answered[i] === code ? 1 : 0));
}

/**
 * Compare two models, by cross-validation where there is one, else on the holdout; null where it is empty.
 * @param {Holdout} holdout @param {Run<Named>} run @param {Run<Named>} other @returns {Evidence | null}
 */
function compare(holdout, run, other) {
  const validated = compareValidated(holdout, run, other);
  if (validated) return validated;
  if (!holdout.groups.count) return null;
  const paired = Paired.of(holdout.groups, run.right, other.right);
  return { gain: run.score - other.score, paired, found: run.found, otherScore: other.score, validated: false };
}

/**
 * Compare what was learnt here and the server's model on the windows that cross-validation has answered; null: none.
 * @param {Holdout} holdout @param {Run<Named>} run @param {Run<Named>} other @returns {Evidence | null}
 */
function compareValidated({ labelled, groups, labels }, run, other) {
  const [mine, its] = [run.validated, other.validated];
  if (!labelled || !isSmall(groups) || !mine || !its || run.isGlobal === other.isGlobal) return null;
  const known = Int32Array.from(labelled.y.keys()).filter((i) => mine[i] >= 0 && its[i] >= 0);
  if (!known.length) return null;
  const y = known.map((i) => labelled.y[i]);
  const startS = Float64Array.from(known, (i) => labelled.startS[i]);
  const stretches = byStretch({ y, startS, session: known.map((i) => labelled.session[i]) });
  const [own, others] = [known.map((i) => mine[i]), known.map((i) => its[i])];
  const found = ClassSoundness.of(y, own, labels, "labelled");
  const otherScore = ClassSoundness.of(y, others, labels).score ?? 0;
  const paired = Paired.of(stretches, rightOf(y, own), rightOf(y, others));
  return { gain: (found.score ?? 0) - otherScore, paired, found, otherScore, validated: true };
}

/** @param {Evidence} evidence @param {number} margin */
function isBetter({ gain, paired }, margin) {
  return gain > 0 && gain >= margin && paired.isBetter;
}

/** @param {Evidence} evidence @param {number} [margin] */
function isWorse({ gain, paired }, margin = 0) {
  return gain <= 0 && -gain >= margin && paired.isWorse;
}

/** @param {Evidence} evidence */
function wordsOf({ found, otherScore, validated }) {
  const how = validated ? "by cross-validation over stretches of time, " : "";
  return `${how}${found.words} and ${threeDecimals(otherScore)} of the present model`;
}

/** @param {Run<Named>} run @param {Field<Named>} field */
function beside(run, { holdout, present }) {
  return present && compare(holdout, run, present);
}

/**
 * Say what becomes of a candidate that runs, and why.
 * @param {Run<Named>} mine @param {Field<Named>} field @param {Asked} asked @returns {{answer: Answer, why: string}}
 */
function decide(mine, field, asked) {
  const { present } = field;
  if (!mine.found.obstacle) return judge(mine, field);
  let { answer, why } = byTheServer(mine, field, asked.serverScore ?? null);
  why = `whether it works cannot be checked here (${mine.found.obstacle}); ${why}`;
  const evidence = beside(mine, field);
  if (!evidence) return { answer, why };
  if (evidence.validated && answer !== "failed") {
    const found = judge(mine, field);
    return { answer: found.answer, why: `${why}; ${found.why}` };
  }
  const isDefault = mine.isGlobal && present && !present.isGlobal;
  if (answer === "adopted" && evidence.gain < 0 && !isDefault) answer = "kept";
  return { answer, why: `${why}; ${wordsOf(evidence)}` };
}

/**
 * Say what becomes of a model where windows can tell, and why.
 * @param {Run<Named>} run @param {Field<Named>} field @returns {{answer: Answer, why: string}}
 */
function judge(run, field) {
  const { present, margin, released } = field;
  const evidence = beside(run, field);
  const found = evidence && run.found.obstacle ? evidence.found : run.found;
  if (found.fault) return { answer: "failed", why: `it does not work: ${found.fault}; ${found.words}` };
  if (!present || !evidence) {
    const none = field.hasModel ? "the present model does not run any more" : "there was no model before";
    return { answer: "adopted", why: `${run.found.words}; ${none}` };
  }
  const why = `${wordsOf(evidence)}; ${evidence.paired.words}`;
  if (evidence.gain >= 0 && present.found.fault) {
    return { answer: "adopted", why: `${why}; the present model does not work: ${present.found.fault}` };
  }
  return released || !run.isGlobal ? withReason(evidence, field, why) : byDefault(evidence, present, margin, why);
}

/**
 * Decide about a model that needs a reason to replace the present one: it is better, or was asked for.
 * @param {Evidence} evidence @param {Field<Named>} field @param {string} why @returns {{answer: Answer, why: string}}
 */
function withReason(evidence, { released, margin }, why) {
  if (released && evidence.gain >= 0 && !evidence.paired.isWorse) {
    return { answer: "adopted", why: `${why}; a released model need not be better, and it is no worse` };
  }
  if (!released && isBetter(evidence, margin)) return { answer: "adopted", why: `${why}; it is better` };
  if (isWorse(evidence)) return { answer: "refused", why: `${why}; it is worse` };
  const least = margin ? ` by ${general(margin)}` : "";
  const told = released ? "it scores lower here" : `it is not shown to be better${least}`;
  return { answer: "kept", why: `${why}; ${told}, so the present model stays` };
}

/**
 * Decide about the server's model: it is used unless the present one is shown to be better.
 * @param {Evidence} evidence @param {Run<Named>} present @param {number} margin @param {string} why
 * @returns {{answer: Answer, why: string}}
 */
function byDefault(evidence, present, margin, why) {
  if (isWorse(evidence, present.isGlobal ? 0 : margin)) return { answer: "refused", why: `${why}; it is worse` };
  const other = present.isGlobal ? "it is not shown to be worse" : "this device's own is not shown to be better";
  return { answer: "adopted", why: `${why}; ${other}, so the federation's is used` };
}

/**
 * The best of the models judged before that take the place of the one to be used; null if none does.
 * @template {Named} M @param {readonly Run<M>[]} rivals @param {Run<M> | null} used @param {Field<Named>} field
 * @returns {Run<M> | null}
 */
function best(rivals, used, field) {
  const able = rivals.filter(({ found, ...run }) => {
    return !found.obstacle && !found.fault && (!used || replaces({ found, ...run }, used, field));
  });
  const better = (/** @type {Run<M> | null} */ one, /** @type {Run<M>} */ other) => {
    return one && one.score >= other.score ? one : other;
  };
  return able.reduce(better, null);
}

/**
 * Whether a model that was judged before is used in place of another: it is better, or it is the default.
 * @param {Run<Named>} run @param {Run<Named>} used @param {Field<Named>} field
 */
function replaces(run, used, { holdout, margin }) {
  const evidence = compare(holdout, run, used);
  if (!evidence) return false;
  if (used.found.fault) return evidence.gain >= 0;
  return run.isGlobal ? !used.isGlobal && !isWorse(evidence, margin) : isBetter(evidence, margin);
}

/**
 * Let what the server knows of the version stand in for a check of one's own.
 * @param {Run<Named>} mine @param {Field<Named>} field @param {VersionScore | null} score
 * @returns {{answer: Answer, why: string}}
 */
function byTheServer(mine, field, score) {
  const version = mine.isGlobal ? "it" : "the version that it began from";
  const unknown = byNothing(mine, field);
  if (!score) return { answer: unknown.answer, why: `the server has no score of ${version}, ${unknown.why}` };
  if (2 * score.working <= score.devices) {
    const why = `the server's score of ${version} speaks against it: ${scoreInWords(score)}`;
    return { answer: mine.isGlobal ? "failed" : "undecided", why };
  }
  const why = `the server's score of ${version} stands in: ${scoreInWords(score)}`;
  if (mine.isGlobal || !field.present) return { answer: "adopted", why };
  return { answer: unknown.answer, why: `${why}; of what was trained here it says nothing, ${unknown.why}` };
}

/**
 * Decide about a model of which nobody knows whether it works: the federation's is the default, or the newer.
 * @param {Run<Named>} mine @param {Field<Named>} field @returns {{answer: Answer, why: string}}
 */
function byNothing(mine, { present, released }) {
  if (!present) return { answer: "adopted", why: "and there is no model yet, so it is used unchecked" };
  if (released || present.isGlobal) return { answer: "undecided", why: "so the present model stays" };
  if (mine.isGlobal) {
    const why = "and the present one was never shown to be better, so the federation's is used unchecked";
    return { answer: "adopted", why };
  }
  const why = "and nobody could check the present one either, so the newer one is used unchecked";
  return { answer: "adopted", why };
}

/** @param {VersionScore} score */
function scoreInWords({ metric, value, trivial, devices, working, measured }) {
  const what = measured === "version" ? "it" : "the models that it was made from";
  const label = metric === METRIC ? LABEL : metric;
  const against = metric === METRIC ? TRIVIAL_ANSWER : "of a trivial answer";
  return (
    `by ${working} of ${devices} devices that have measured ${what} it works: ${label} ` +
    `${threeDecimals(value / 1e6)} on their holdouts against ${threeDecimals(trivial / 1e6)} ${against}`
  );
}

/**
 * Describe every model that ran by the same windows: the candidate, the present one, and the others.
 * @param {Run<Named>} mine @param {readonly Run<Named>[]} rivals @param {Field<Named>} field @returns {Compared}
 */
function comparedOf(mine, rivals, field) {
  const runs = [mine, ...(field.present ? [field.present] : []), ...rivals];
  return {
    metric: METRIC,
    windows: mine.found.examples,
    classes: mine.found.classes,
    stretches: field.holdout.groups.count,
    unit: STRETCHES,
    models: runs.map((run) => {
      const evidence = run === field.present ? null : beside(run, field);
      const { better, worse, pBetter } = evidence?.paired ?? {};
      const against = {
        ...(evidence && { better, worse, p: pBetter }),
        ...(evidence?.validated && { validated: /** @type {const} */ (true) }),
      };
      return { source: run.model.source, round: run.model.round, ...against, score: run.found.score };
    }),
  };
}
