/**
 * A round on a phone: what it sends, and whether it uses the model that came of it. The network is frozen; a client
 * sends the mean embedding of each class of its own training windows, and the server's average is the model (FedProto,
 * arXiv 2105.00243, eq. 6).
 */

import { WireError } from "./errors.js";
import { Safetensors, encode } from "./safetensors.js";

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.generated.js").BlobPointer} Pointer */
/** @typedef {import("./messages.generated.js").Release} Release */
/** @typedef {import("./agent_state.js").Memory} Memory */
/** @typedef {import("./agent_state.js").KeptModel} KeptModel */
/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("../types.js").Prototypes} Prototypes */
/** @typedef {import("../types.js").Verdict} Verdict */
/** @typedef {{learner: import("../types.js").Learner, embedder: import("../types.js").Embedder}} Means */

const METRIC = "macro_f1";
const REASON = 500;
/** Models before the present one that are kept, for a rollout that is withdrawn. */
const MAX_BEFORE = 2;

/**
 * What a client sends of a round: `counts` (C) and `prototypes` (C, D), as `federation.wire.encode` writes them.
 * @param {Means} means the light model is loaded @param {Plan} plan @param {import("../types.js").Examples} train
 * @returns {Promise<{bytes: Uint8Array, classCounts: number[]}>}
 */
export async function learnt({ learner, embedder }, plan, train) {
  const [classes, dim] = [plan.labels.length, plan.training.feature_dim];
  const embeddings = await embedder.embed(train.x);
  if (embeddings.length !== train.y.length * dim) {
    const came = embeddings.length / train.y.length;
    throw new WireError(`the light model's embeddings have ${came} numbers, and the plan says ${dim}`);
  }
  const { prototypes, counts } = learner.classMeans(embeddings, train.y, classes, dim);
  if (!prototypes.every(Number.isFinite)) throw new WireError("the light model's embeddings are not finite");
  const bytes = encode([
    ["prototypes", { shape: [classes, dim], data: prototypes }],
    ["counts", { shape: [classes], data: counts }],
  ]);
  return { bytes, classCounts: Array.from(counts) };
}

/**
 * What the holdout says of the model that a round begins with; nothing while no class is known.
 * @param {Means} means @param {Plan} plan @param {Prepared} prepared @param {Prototypes | null} model
 * @returns {Promise<Record<string, number>>}
 */
export async function measured({ learner, embedder }, plan, { holdout }, model) {
  return model ? learner.measure(model, holdout, await embedder.embed(holdout.x), plan.labels) : {};
}

/**
 * What the manifest of such an update says.
 * @param {Announcement} a @param {import("./messages.js").Invitation} mine @param {number[]} classCounts
 * @param {Record<string, number>} metrics
 */
export function described(a, mine, classCounts, metrics) {
  return {
    instance: a.instance,
    round: mine.round,
    method: a.plan.method.name,
    base: mine.model.sha256,
    examples: classCounts.reduce((sum, count) => sum + count, 0),
    steps: 0, // nobody trains
    classCounts,
    metrics,
    chunkBytes: a.chunk_bytes,
  };
}

/**
 * The prototypes of a broadcast; null where no class has one yet.
 * @param {Uint8Array} file @param {Announcement} a @param {number} round that made it @returns {Prototypes | null}
 */
export function candidateOf(file, { plan, feature_model: light }, round) {
  const tensors = new Safetensors(file, file.length);
  const [classes, dim] = [plan.labels.length, plan.training.feature_dim];
  const known = tensors.float32("known", [classes]);
  const prototypes = tensors.float32("prototypes", [classes, dim]);
  return known.some((each) => each > 0) ? { prototypes, known, round, sha256: light?.sha256 ?? "" } : null;
}

/** @typedef {{pointer: Pointer, round: number, rollout: number, key: string}} Target what to judge; 0: of no rollout */

/**
 * The model that is to be judged now: what was released or, without rollouts, the newest broadcast; null: none.
 * @param {Announcement} a @param {Release | null} release that is for this phone @param {Memory} memory
 * @param {KeptModel | null} kept @returns {Target | null}
 */
export function targetOf(a, release, memory, kept) {
  const used = a.plan.rollout.mode !== "off";
  const pointer = used ? (release?.model ?? null) : a.model;
  const round = used ? (release?.round ?? null) : madeBy(a);
  if (!pointer || round === null) return null;
  const rollout = used ? (release?.rollout ?? 0) : 0;
  if (rollout && (kept?.release === rollout || memory.release?.rollout === rollout)) return null;
  const name = nameOf(round, pointer);
  const key = pointer.score ? `${name} measured` : name;
  // what nobody could check waits for what others have measured; all else is judged once
  const again = memory.verdict?.answer === "undecided" && key !== memory.judged;
  return memory.judged.startsWith(name) && !again ? null : { pointer, round, rollout, key };
}

/** Whether the last model of a finished federation was dealt with. @param {Announcement} a @param {Memory} memory */
export function lastWasJudged({ model, plan, round }, memory) {
  return !model || plan.rollout.mode !== "off" || memory.judged.startsWith(nameOf(round, model));
}

/** A version's name: two rounds may have made the same bytes. @param {number} round @param {Pointer} pointer */
function nameOf(round, { sha256 }) {
  return `${round} ${sha256}`;
}

/** The round that made the announced model; null where the announcement does not tell. @param {Announcement} a */
function madeBy({ state, round }) {
  if (state === "paused") return null;
  return state === "collecting" || state === "aggregating" ? Math.max(0, round - 1) : round;
}

/**
 * Judge a candidate. Where models are released a phone uses those alone; else also what it can learn by itself.
 * @param {Means} means @param {Plan} plan @param {Prepared} prepared @param {Prototypes} candidate
 * @param {Target} target @param {KeptModel | null} kept @returns {Promise<{verdict: Verdict, kept: KeptModel | null}>}
 */
export async function judgement({ learner, embedder }, plan, prepared, candidate, target, kept) {
  const [labels, score, present] = [plan.labels, target.pointer.score ?? null, kept?.model ?? null];
  const embeddings = {
    train: await embedder.embed(prepared.train.x),
    holdout: await embedder.embed(prepared.holdout.x),
  };
  const choice = { candidate, present, prepared, embeddings, labels, score, release: target.rollout };
  const { model, verdicts } = await learner.choose(choice);
  const verdict = { ...verdicts[0], why: verdicts[verdicts.length - 1].reason };
  return { verdict, kept: model && model !== present ? keptOf(model, target.rollout, kept) : kept };
}

/** @param {import("../types.js").Model} model @param {number} release @param {KeptModel | null} before */
function keptOf(model, release, before) {
  /** @param {KeptModel | null} one @param {number} depth @returns {KeptModel | null} */
  const cut = (one, depth) => one && (depth ? { ...one, before: cut(one.before, depth - 1) } : null);
  return { model, release, before: cut(before, MAX_BEFORE) };
}

/**
 * @param {Announcement} a @param {Target} target @param {Verdict} verdict
 * @returns {import("./messages.generated.js").AdoptionReport}
 */
export function adoptionReport(a, target, { answer, score, trivial, reason }) {
  return {
    metric: METRIC,
    instance: a.instance,
    epoch: a.epoch,
    round: target.round,
    source: "global",
    answer,
    score,
    trivial,
    reason: reason.slice(0, REASON),
  };
}

/**
 * @param {Announcement} a @param {Release} release @param {Verdict} verdict
 * @returns {import("./messages.generated.js").ReleaseReport | null} null of what nobody could check: it waits for a score
 */
export function releaseReport(a, release, { answer, score, reason }) {
  if (answer === "undecided") return null;
  const { instance, epoch } = a;
  return { metric: METRIC, instance, epoch, rollout: release.rollout, answer, score, reason: reason.slice(0, REASON) };
}
