/**
 * Which model a phone uses: edge_agent/serving/acceptance.py for classification, with the same decisions and words. A
 * candidate is run beside the models that the phone has, on the same holdout windows, and the best stays.
 */

import { Paired, STRETCHES } from "./comparison.js";
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
 */

/**
 * @template {Named} M
 * @typedef {object} Run @property {M} model @property {ClassSoundness} found
 * @property {Uint8Array} right (n) 1 where the answer is right @property {number} score
 */

/**
 * @typedef {object} Holdout n windows
 * @property {Int32Array} y (n) @property {import("./comparison.js").Groups} groups @property {readonly string[]} labels
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
 * @property {(Named & {score: number | null, better?: number, worse?: number, p?: number})[]} models
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
    const reason = `${name}: not adopted, it does not work: ${candidate.error ?? "it does not run"}`;
    return { answer: "failed", reason, found: null, instead: null, compared: null };
  }
  const released = (asked.release ?? 0) > 0;
  const now = present && runOf(present, holdout);
  const field = { holdout, present: now, hasModel: present !== null, margin, released };
  const rivals = released ? [] : others.map((one) => runOf(one, holdout)).filter((run) => run !== null);
  let { answer, why } = decide(mine, field, asked);
  const better = best(
    rivals.filter((run) => answer !== "adopted" || run.score - mine.score > 0),
    field,
  );
  if (better) {
    if (answer === "adopted") answer = "kept";
    const score = threeDecimals(better.score);
    why += `; the ${nameOf(better.model)}, which was judged before, has ${score} there and is used now`;
  }
  const reason = `${name}: ${answer === "adopted" ? "adopted" : "not adopted"}, ${why}`;
  const compared = comparedOf(mine, rivals, field);
  return { answer, reason, found: mine.found, instead: better?.model ?? null, compared };
}

/** @param {Named} model */
export function nameOf({ source, round }) {
  return `${source} model of round ${round}`;
}

/** @template {Named} M @param {Attempt<M>} attempt @param {Holdout} holdout @returns {Run<M> | null} */
function runOf({ model, answered }, { y, labels }) {
  if (!answered) return null;
  if (answered.length !== y.length) throw new Error(`${answered.length} answers to ${y.length} holdout windows`);
  const found = ClassSoundness.of(y, answered, labels);
  const right = Uint8Array.from(y, (code, i) => (answered[i] === code ? 1 : 0));
  return { model, found, right, score: found.score ?? 0 };
}

/**
 * Compare a run with the present model's; null where there is nothing to compare.
 * @param {Run<Named>} run @param {Field<Named>} field
 */
function pairedOf(run, { present, holdout }) {
  return present && holdout.groups.count ? Paired.of(holdout.groups, run.right, present.right) : null;
}

/**
 * Say what becomes of a candidate that runs, and why.
 * @param {Run<Named>} mine @param {Field<Named>} field @param {Asked} asked @returns {{answer: Answer, why: string}}
 */
function decide(mine, field, asked) {
  const { present } = field;
  if (!mine.found.obstacle) return judge(mine, field);
  let { answer, why } = byTheServer(asked.kind, present !== null, asked.serverScore ?? null);
  if (answer === "adopted" && asked.kind !== "adopt" && present) {
    answer = "undecided";
    why += "; of what was trained here it says nothing, so the present model stays";
  }
  why = `whether it works cannot be checked here (${mine.found.obstacle}); ${why}`;
  if (!present || !field.holdout.groups.count) return { answer, why };
  if (answer === "adopted" && mine.score - present.score < 0) answer = "kept";
  return { answer, why: `${why}; ${mine.found.words} and ${threeDecimals(present.score)} of the present model` };
}

/**
 * Say what becomes of a model where the holdout can tell, and why.
 * @param {Run<Named>} run @param {Field<Named>} field @returns {{answer: Answer, why: string}}
 */
function judge(run, field) {
  const { present, margin, released } = field;
  if (run.found.fault) {
    return { answer: "failed", why: `it does not work: ${run.found.fault}; ${run.found.words}` };
  }
  const paired = pairedOf(run, field);
  if (!present || !paired) {
    const none = field.hasModel ? "the present model does not run any more" : "there was no model before";
    return { answer: "adopted", why: `${run.found.words}; ${none}` };
  }
  const gain = run.score - present.score;
  const why = `${run.found.words} and ${threeDecimals(present.score)} of the present model; ${paired.words}`;
  if (gain >= 0 && present.found.fault) {
    return { answer: "adopted", why: `${why}; the present model does not work: ${present.found.fault}` };
  }
  if (released && gain >= 0 && !paired.isWorse) {
    return { answer: "adopted", why: `${why}; a released model need not be better, and it is no worse` };
  }
  if (gain > 0 && gain >= margin && paired.isBetter) return { answer: "adopted", why: `${why}; it is better` };
  if (gain <= 0 && paired.isWorse) return { answer: "refused", why: `${why}; it is worse` };
  const least = margin && !released ? ` by ${general(margin)}` : "";
  const told = released ? "it scores lower here" : `it is not shown to be better${least}`;
  return { answer: "kept", why: `${why}; ${told}, so the present model stays` };
}

/**
 * The best of those that may replace the present model; null if none may.
 * @template {Named} M @param {readonly Run<M>[]} runs @param {Field<Named>} field @returns {Run<M> | null}
 */
function best(runs, field) {
  const able = runs.filter((run) => !run.found.obstacle && judge(run, field).answer === "adopted");
  const better = (/** @type {Run<M> | null} */ one, /** @type {Run<M>} */ other) => {
    return one && one.score >= other.score ? one : other;
  };
  return able.reduce(better, null);
}

/**
 * Let what the server knows of the version stand in for a check of one's own.
 * @param {Kind} kind @param {boolean} hasModel @param {VersionScore | null} score
 * @returns {{answer: Answer, why: string}}
 */
function byTheServer(kind, hasModel, score) {
  const version = kind === "adopt" ? "it" : "the version that it began from";
  if (!score) {
    const so = hasModel ? "so the present model stays" : "and there is no model yet, so it is used unchecked";
    return { answer: hasModel ? "undecided" : "adopted", why: `the server has no score of ${version}, ${so}` };
  }
  if (2 * score.working > score.devices) {
    return { answer: "adopted", why: `the server's score of ${version} stands in: ${scoreInWords(score)}` };
  }
  const why = `the server's score of ${version} speaks against it: ${scoreInWords(score)}`;
  return { answer: kind === "adopt" ? "failed" : "undecided", why };
}

/** @param {VersionScore} score */
function scoreInWords({ metric = METRIC, devices, working, measured, ...figures }) {
  const value = figures.value ?? figures.macro_f1 ?? NaN;
  const trivial = figures.trivial ?? figures.most_frequent ?? NaN;
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
      const paired = run === field.present ? null : pairedOf(run, field);
      const against = paired ? { better: paired.better, worse: paired.worse, p: paired.pBetter } : {};
      return { source: run.model.source, round: run.model.round, ...against, score: run.found.score };
    }),
  };
}
