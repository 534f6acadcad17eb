/**
 * What a phone does for a federation in rounds: it trains the rounds that it is invited to with the federation's program,
 * goes on where a closed page has stopped, sends what came of it, and takes up the server's models: edge_agent/machine/rounds.py.
 */

import { holdoutMetrics } from "../learning/metrics.js";
import { inFloat32, insideModel, normalized } from "../learning/normalization.js";
import { ClassSoundness } from "../learning/soundness.js";
import { judgeNetworks, measuredGains, midway } from "../training/network_models.js";
import { CANDIDATES, CLIENT, PROGRAM, ROUND, ROUND_BROADCAST, isOf, roundKey, withDone, withReported } from "./agent_state.js";
import { isPrivate } from "./private_sums.js";
import { releaseFor } from "./releases.js";
import { sha256, utf8 } from "./signing.js";
import { pendingUpdate } from "./upload.js";
import { adoptionReport, keptAfter, newest, planOf, releaseReport, targetOf } from "./versions.js";

/** At the most, as a native device's max_round_s. */
const MAX_ROUND_MS = 1_800_000;
/** Of the time until a round's deadline: the rest is for what is sent. */
const TRAINING_SHARE = 0.8;
const SHOWN_EVERY_MS = 500;
const BLOCKED_MS = 60_000;

/** @typedef {import("./messages.js").Announcement} Announcement */
/** @typedef {import("./messages.js").Invitation} Invitation */
/** @typedef {import("./device_worker.js").Means} Means */
/** @typedef {import("./versions.js").Target} Target */
/** @typedef {import("../types.js").Prepared} Prepared */
/** @typedef {import("../training/host.js").RoundResult} RoundResult */
/** @typedef {import("../training/host.js").ProgramSource} ProgramSource */
/** @typedef {import("../training/tensors.js").Tensors} Tensors */
/** @typedef {{instance: string, program: string, id: string, values: Tensors}} KeptClient id: of the update that it sent */
/** @typedef {{head: import("../types.js").NetworkModel["head"], values: Tensors | null, version: number}} Candidate */
/** @typedef {() => Promise<string>} Conditions why this phone does not train now, in words; empty where it may */
/** @typedef {{round: number, steps: number, all: number}} RoundProgress */

export class RoundWorker {
  /**
   * @param {import("./device_worker.js").DeviceWorker} worker @param {import("../types.js").TrainingHost} host
   * @param {Conditions} [conditions]
   */
  constructor(worker, host, conditions = async () => "") {
    this.worker = worker;
    this.host = host;
    this.conditions = conditions;
    /** @type {RoundProgress | null} */ this.progress = null;
    this.shownAtMs = -Infinity;
  }

  /** Train a round, or take up a model; false where neither is due. @param {Announcement} a @param {Means} means */
  async step(a, means) {
    const { memory, outbox } = this.worker.stateStore.current;
    const { prepared } = this.worker;
    if (!prepared) return false;
    if (memory.trained) return this.judgeTrained(a, prepared, means);
    const invitation = dueInvitation(a, memory);
    const mayTrain = memory.takesPart && prepared.train.y.length && !outbox.length;
    if (!invitation || !mayTrain || this.worker.clock.now() < this.worker.contributeAtMs) return this.adopt(a, means);
    const blocker = await this.conditions();
    if (blocker) {
      this.worker.report(`round ${invitation.round} waits: ${blocker}`);
      this.worker.wakeAt(this.worker.clock.now() + BLOCKED_MS, means.signal);
      return false;
    }
    return this.train(a, invitation, prepared, means);
  }

  /** @param {Announcement} a @param {Invitation} invitation @param {Prepared} prepared @param {Means} means */
  async train(a, invitation, prepared, means) {
    const { worker } = this;
    const key = roundKey(invitation);
    worker.begin("learning");
    try {
      const result = await worker.usingModel(a, invitation.model, () => this.trained(a, invitation, prepared, means));
      const dropped = result && droppedReason(a, result);
      if (result && !dropped) await this.keep(a, invitation, prepared, result, means);
      else if (dropped) await this.leaveOut(key, dropped);
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (!worker.countFailure(key, error)) throw error;
      await this.leaveOut(key, `round ${invitation.round} is left out: ${/** @type {Error} */ (error).message}`);
      return true;
    } finally {
      this.progress = null;
    }
  }

  /**
   * Train, from what was saved of this very round if there is something; null where the round is over, or the phone may
   * not go on: what was saved stays.
   * @param {Announcement} a @param {Invitation} invitation @param {Prepared} prepared @param {Means} means
   * @returns {Promise<RoundResult | null>}
   */
  async trained(a, invitation, prepared, means) {
    const { store, clock } = this.worker;
    const program = await this.program(a, means);
    const { file: broadcast } = await this.worker.file(ROUND_BROADCAST, invitation.model, means);
    const client = await this.client(a);
    const examples = asTrained(prepared, planOf(a));
    const round = await roundDigest(means.device, invitation, client?.id ?? "", program.sha256, a, examples.train);
    const saved = await store.get(ROUND);
    const deadlineMs = a.deadline === null ? Infinity : TRAINING_SHARE * (1000 * a.deadline - clock.now());
    const resumed = saved?.round === round ? saved : null;
    const budgetMs = Math.min(MAX_ROUND_MS, deadlineMs + (resumed?.usedMs ?? 0));
    const ended = new AbortController();
    const stop = () => this.stopReason(invitation, means).then((reason) => reason && ended.abort(new Error(reason)));
    const watched = setInterval(() => void stop(), SHOWN_EVERY_MS);
    try {
      return await this.host.train(
        {
          program,
          broadcast,
          client: client?.values ?? null,
          ...examples,
          identity: { client: means.device, round: invitation.round },
          saved: resumed,
          budgetMs,
        },
        ({ steps, stepsAsked, saved: values, usedMs }) => {
          this.show({ round: invitation.round, steps, all: stepsAsked });
          if (values) void store.set(ROUND, { round, saved: values, usedMs }).catch(() => {}); // it would begin anew
        },
        AbortSignal.any([means.signal, ended.signal]),
      );
    } catch (error) {
      if (!ended.signal.aborted || means.signal.aborted) throw error;
      this.worker.report(ended.signal.reason.message);
      this.worker.wakeAt(clock.now() + BLOCKED_MS, means.signal);
      return null;
    } finally {
      clearInterval(watched);
    }
  }

  /** Why a round that is being trained is stopped; empty where it goes on. @param {Invitation} invitation @param {Means} means */
  async stopReason(invitation, { signal }) {
    const { announcement: a } = this.worker.serverState;
    const { memory } = this.worker.stateStore.current;
    if (signal.aborted) return "";
    if (!memory.takesPart) return "this phone takes part no more";
    if (!a || !isCurrent(a, invitation)) return `round ${invitation.round} is over`;
    const blocker = await this.conditions();
    return blocker && `round ${invitation.round} waits: ${blocker}`;
  }

  /**
   * Have the trained client, its update and the model in use on the disk, all or nothing.
   * @param {Announcement} a @param {Invitation} invitation @param {Prepared} prepared @param {RoundResult} result
   * @param {Means} means
   */
  async keep(a, invitation, prepared, result, means) {
    const { worker } = this;
    const { labels, rollout } = a.plan;
    const { round, model } = invitation;
    const examples = prepared.train.y.length;
    const isJudged = rollout.mode === "off"; // else devices use what is released
    const networks = networksOf(result, round);
    const program = await this.program(a, means);
    // a network that gives no number has no gain
    const gains = isJudged ? await measuredGains(this.host, program, networks, prepared.holdout, planOf(a)).catch(() => null) : null;
    const sum = isPrivate(a) && (await this.summed(a, invitation, prepared, result.upload, gains, means));
    const update = sum ? sum.update : await pendingUpdate(
      means.key,
      {
        federation: means.federation,
        device: means.device,
        instance: a.instance,
        method: String(a.plan.method.name),
        base: model.sha256,
        round,
        sequence: null,
        examples,
        steps: result.steps,
        classCounts: labels.map((_, code) => prepared.train.y.filter((each) => each === code).length),
        metrics: metricsOf(result, prepared, labels),
        gains,
        chunkBytes: a.chunk_bytes,
        createdS: worker.clock.now() / 1000,
        windows: prepared.ids,
      },
      result.upload,
    );
    const client = { instance: a.instance, program: a.program?.sha256, id: update.updateId, values: result.client };
    const candidates = { round, broadcast: model.sha256, gains: model.gains, networks };
    await worker.stateStore.change(({ memory, outbox }) => {
      if (!isOf(memory, a) || !memory.takesPart) return null;
      const done = withReported(withDone(memory, roundKey(invitation)), round, gains);
      const now = { ...done, ...(isJudged && { trained: round }) };
      const also = { [CLIENT]: client, [ROUND]: null, ...(sum && sum.also), ...(isJudged && { [CANDIDATES]: candidates }) };
      return { memory: now, outbox: [...outbox, update], also };
    });
    worker.detail = "";
  }

  /**
   * What a round's secure sum gets in place of the update.
   * @param {Announcement} a @param {Invitation} invitation @param {Prepared} prepared @param {Uint8Array} upload
   * @param {Record<string, number[]> | null} gains @param {Means} means
   */
  async summed(a, invitation, prepared, upload, gains, means) {
    const { beginRoundSum } = await import("../secure_sums/sum_worker.js");
    const { file: broadcast } = await this.worker.file(ROUND_BROADCAST, invitation.model, means);
    const trained = { upload, broadcast, gains, examples: prepared.train.y.length, windows: prepared.ids };
    return beginRoundSum(this.worker, a, invitation, trained, means);
  }

  /**
   * Judge what the last trained round has left, once its update is on its way: nobody waits for it.
   * @param {Announcement} a @param {Prepared} prepared @param {Means} means
   */
  async judgeTrained(a, prepared, means) {
    const { worker } = this;
    worker.begin("adopting");
    const left = await worker.store.get(CANDIDATES);
    try {
      const others = { sums: left?.gains ?? {}, own: reportedFor(worker, left?.round - 1) };
      const verdict = left && (await this.verdict(a, await this.program(a, means), left.networks, prepared, { others }));
      await worker.stateStore.change(({ memory, kept }) => {
        if (!isOf(memory, a)) return null;
        const tried = { ...memory, trained: null };
        if (!verdict) return { memory: tried, also: { [CANDIDATES]: null } };
        const version = verdict.source === "personalized" ? left.round : left.round - 1;
        const now = newest(a);
        // the model that the round began with was judged with it
        const key = now && now.pointer.sha256 === left.broadcast ? now.key : memory.judged;
        const target = { pointer: /** @type {any} */ (a.model), version, rollout: 0, key };
        return { ...this.judged(a, target, verdict, tried, kept), also: { [CANDIDATES]: null } };
      });
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (worker.countFailure("trained", error)) {
        const also = { [CANDIDATES]: null };
        await worker.stateStore.change(({ memory }) => ({ memory: { ...memory, trained: null }, also }));
      }
      throw error;
    }
  }

  /** Take up a model that the server has published, or released. @param {Announcement} a @param {Means} means */
  async adopt(a, means) {
    const { worker } = this;
    const { prepared } = worker;
    const { kept, memory: before } = worker.stateStore.current;
    const release = a.plan.rollout.mode === "off" ? null : await releaseFor(means.device, a, before.offer);
    const target = targetOf(a, release, before, kept, worker.clock.now());
    if (!target || !prepared) return false;
    worker.begin("adopting");
    try {
      const program = await this.program(a, means);
      const { file: broadcast } = await worker.file(ROUND_BROADCAST, target.pointer, means);
      const client = (await this.client(a))?.values ?? null;
      const values = await worker.usingModel(a, target.pointer, () => this.host.sharedNetwork(program, broadcast, client));
      const candidates = [{ head: /** @type {const} */ ("shared_network"), values, version: target.version }];
      const others = { sums: target.pointer.gains, own: reportedFor(worker, target.version) };
      const verdict = await this.verdict(a, program, candidates, prepared, { others, isReleased: target.rollout > 0 });
      await worker.stateStore.change(({ memory, kept: now }) => {
        if (!isOf(memory, a)) return null;
        return verdict ? this.judged(a, target, verdict, memory, now) : { memory: { ...memory, judged: target.key } };
      });
      worker.detail = "";
      return true;
    } catch (error) {
      means.signal.throwIfAborted();
      if (worker.countFailure(target.key, error)) {
        await worker.stateStore.change(({ memory }) => ({ memory: { ...memory, judged: target.key } }));
      }
      throw error;
    }
  }

  /**
   * Which network is used, of those that there are; null: there is none.
   * @param {Announcement} a @param {ProgramSource} program
   * @param {Candidate[]} candidates @param {Prepared} prepared
   * @param {import("../learning/heads.js").Rules} rules
   */
  async verdict(a, program, candidates, prepared, rules) {
    const { sha256: runBy } = program;
    const networks = candidates.flatMap(({ values, ...network }) => (values ? [{ ...network, values, sha256: runBy }] : []));
    if (!networks.length) return null;
    const present = this.worker.stateStore.current.kept?.model ?? null;
    return judgeNetworks(this.host, program, { networks, present, prepared, plan: planOf(a), ...rules });
  }

  /**
   * What is remembered of a verdict.
   * @param {Announcement} a @param {Target} target @param {import("../types.js").Verdict} verdict
   * @param {import("./agent_state.js").Memory} memory @param {import("./agent_state.js").KeptModel | null} kept
   */
  judged(a, target, verdict, memory, kept) {
    const changes = {
      verdict: { ...verdict, model: null }, // a network is kept once
      judged: target.key,
      adoption: adoptionReport(a, target, verdict),
      ...(target.rollout && { release: releaseReport(a, target.rollout, verdict) }),
    };
    return { memory: { ...memory, ...changes }, kept: keptAfter(verdict, target.rollout, kept) };
  }

  /** @param {string} key of the round @param {string} reason */
  async leaveOut(key, reason) {
    await this.worker.stateStore.change(({ memory }) => ({ memory: withDone(memory, key), also: { [ROUND]: null } }));
    this.worker.report(reason);
  }

  /** The program of the announcement. @param {Announcement} a @param {Means} means @returns {Promise<ProgramSource>} */
  async program(a, means) {
    const pointer = /** @type {import("./messages.generated.js").BlobPointer} */ (a.program);
    const { sha256, file } = await this.worker.file(PROGRAM, pointer, means);
    return { sha256, file, rounds: a.plan.rounds.rounds };
  }

  /**
   * What the phone's last round has left of its network; null: it is new.
   * @param {Announcement} a @returns {Promise<KeptClient | null>}
   */
  async client({ instance, program }) {
    const kept = await this.worker.store.get(CLIENT);
    return kept?.instance === instance && kept.program === program?.sha256 ? kept : null;
  }

  /** Tell the page how far it has come, some times a second. @param {RoundProgress} progress */
  show(progress) {
    this.progress = progress;
    const now = this.worker.clock.now();
    if (now - this.shownAtMs < SHOWN_EVERY_MS && progress.steps < progress.all) return;
    this.shownAtMs = now;
    this.worker.changed();
  }
}

/** The networks that a round has left, the shared one first. @param {RoundResult} result @param {number} round */
function networksOf({ shared, personal }, round) {
  const between = shared && personal && midway(shared, personal);
  /** @type {[import("../types.js").NetworkModel["head"], Tensors | null, number][]} */
  const all = [["shared_network", shared, round - 1], ["personal_network", personal, round], ["midway_network", between, round]];
  return all.flatMap(([head, values, version]) => (values ? [{ head, values, version }] : []));
}

/** What the phone has reported of a round. @param {import("./device_worker.js").DeviceWorker} worker @param {number} round */
function reportedFor(worker, round) {
  return worker.stateStore.current.memory.reported?.[round];
}

/**
 * The invitation that is to be followed now; null: none, or it was followed.
 * @param {Announcement} a @param {import("./agent_state.js").Memory} memory @returns {Invitation | null}
 */
export function dueInvitation(a, { invitation, done = [] }) {
  if (!invitation || a.state !== "collecting" || a.round !== invitation.round) return null;
  const isHere = invitation.instance === a.instance && invitation.epoch === a.epoch;
  return isHere && !done.includes(roundKey(invitation)) ? invitation : null;
}

/** Whether a round that was begun is still worth its end. @param {Announcement} a @param {Invitation} invitation */
function isCurrent(a, { instance, epoch, round }) {
  if (a.instance !== instance || a.epoch !== epoch || a.state === "finished" || a.state === "stopped") return false;
  if (a.round === round && a.state !== "aggregating" && a.state !== "waiting") return true;
  return a.plan.rounds.late === "next" && a.round >= round;
}

/** Why partial work is not sent; empty where it is, or all was done. @param {Announcement} a @param {RoundResult} result */
function droppedReason({ plan }, { steps, stepsAsked, usesPartialWork }) {
  const { partial_work: wanted } = plan.rounds;
  if (steps >= stepsAsked || (wanted === "method" ? usesPartialWork : wanted === "use")) return "";
  return `the time for a round was over after ${steps} of ${stepsAsked} steps, and this federation drops partial work`;
}

/**
 * Examples as the network takes them in training: statistics that its graph applies when it serves are applied here.
 * @param {Prepared} prepared @param {import("../types.js").Plan} plan
 */
function asTrained({ train, holdout }, { data }) {
  const by = data.normalization === "federated" ? inFloat32(insideModel(data)) : null;
  const made = (/** @type {import("../types.js").Examples} */ { x, y }) => ({ x: by ? normalized(x, by) : x, y, scale: by });
  return { train: made(train), holdout: made(holdout) };
}

/**
 * Names a round by everything that it depends on, so that what was saved is found again by the same round on the same
 * windows alone. @param {string} device @param {Invitation} invitation @param {string} client id of the kept one
 * @param {string} program @param {Announcement} a @param {import("../training/round.js").TrainingExamples} train
 */
async function roundDigest(device, { round, model, instance }, client, program, { plan }, { x, y }) {
  const bytes = [x, y].map(({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer, byteOffset, byteLength));
  const windows = await Promise.all(bytes.map(sha256));
  return sha256(utf8(JSON.stringify([device, instance, round, model.sha256, client, program, plan, windows])));
}

/** What an update says of the models. @param {RoundResult} result @param {Prepared} prepared @param {readonly string[]} labels */
function metricsOf({ before, after, loss, steps, stepsAsked, epochs }, { holdout }, labels) {
  const scored = (/** @type {number[][]} */ matrix) => (holdout.y.length ? new ClassSoundness(matrix, labels) : null);
  const metrics = { ...holdoutMetrics(scored(before), scored(after)), train_loss: loss };
  return steps < stepsAsked ? { ...metrics, epochs } : metrics;
}
