// A phone in a federation in rounds, whose training is given: invitations, kills at every step, and what stops a round.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { UnusableModelError } from "../../../phone/app/protocol/errors.js";
import { DEVICE, INSTANCE, PLAN, SmallServer, utf8 } from "./small_server.mjs";
import { MemoryStore, agentOf, clock, stopAll, until } from "./parts.mjs";

const servers = [];
after(async () => {
  await stopAll();
  await Promise.all(servers.map((server) => server.stop()));
});

async function started() {
  const server = await SmallServer.start();
  servers.push(server);
  return server;
}

const ROUNDS = { ...PLAN, method: { name: "fedavg" }, rounds: { rounds: 9 } };
const tensor = (value) => ({
  "served/params/w": { shape: [1], data: Float32Array.of(value) },
  "served/buffers/count": { shape: [], data: BigInt64Array.of(BigInt(2 * value)) },
});

/** Trains in two epochs of three steps; a network answers rightly where its number is 1. */
class GivenHost {
  constructor({ steps = 6, slow = false } = {}) {
    Object.assign(this, { steps, slow, jobs: [] });
  }

  async train(job, onProgress, signal) {
    this.jobs.push(job);
    const first = job.saved?.saved.progress.steps ?? 0;
    for (let step = first + 1; step <= this.steps; step++) {
      await clock.wait(this.slow ? 5 : 0, signal);
      signal.throwIfAborted();
      const saved = step % 3 ? {} : { saved: { values: {}, progress: { epoch: step / 3, batch: 0, steps: step } } };
      onProgress({ steps: step, stepsAsked: 6, epoch: Math.floor(step / 3), usedMs: step, ...saved });
    }
    const { y } = job.holdout;
    const matrix = [0, 1].map((code) => [0, 1].map((other) => (code === other ? y.filter((each) => each === code).length : 0)));
    return {
      ...{ client: tensor(5), upload: utf8(`trained from ${first}`), loss: 0.5, steps: this.steps, stepsAsked: 6 },
      ...{ epochs: Math.floor(this.steps / 3), usesPartialWork: false, before: matrix, after: matrix },
      ...{ personal: tensor(1), shared: tensor(0) },
    };
  }

  async sharedNetwork() {
    return tensor(1);
  }

  /** Windows of the second label are negative (parts.mjs). */
  async logits(program, network, x) {
    const isRight = network["served/params/w"].data[0] === (this.right ?? 1);
    return Float32Array.from({ length: (2 * x.length) / 768 }, (_, i) => Number(x[768 * (i >> 1)] < 0 === Boolean(i % 2) && isRight));
  }
}

/** Open a round, to which the phone is invited. */
async function invite(server, round, { state = "collecting", gains = {}, ...changes } = {}) {
  const model = { ...(await server.blob(utf8(`broadcast ${round}`))), gains };
  const program = await server.blob(utf8("a program"));
  const said = { continuous: false, plan: ROUNDS, state, round, model, program, deadline: null, ...changes };
  const invitation = { schema_version: 1, instance: INSTANCE, epoch: 1, round, model };
  await server.retain(
    ["announcement", await server.signed("announcement", server.announcement(said))],
    ["invitation", await server.signed("invitation", invitation)],
  );
}

test("a phone trains the rounds that it is invited to, keeps its client, and uses the better network", async () => {
  const server = await started();
  const host = new GivenHost();
  const { agent, store, states } = await agentOf(server, { host, count: 100 });
  await invite(server, 1);
  await until(() => agent.memory.uploads.length === 1, () => JSON.stringify(agent.state()));
  const { manifest } = server.begun[0];
  assert.deepEqual([manifest.runtime, manifest.steps, manifest.round, manifest.examples], ["onnxruntime-web", 6, 1, 80]);
  assert.ok(!("sequence" in manifest) && !("withdraw" in manifest));
  assert.ok(manifest.update_id.startsWith(`r1-${DEVICE}-`));
  assert.equal(manifest.base_version, agent.memory.invitation.model.sha256);
  assert.deepEqual([manifest.metrics.train_loss, manifest.metrics.macro_f1_after, manifest.class_counts], [0.5, 1, [40, 40]]);
  assert.equal(new TextDecoder().decode(server.accepted[0].bytes), "trained from 0");
  assert.ok(states.some(({ progress, name }) => progress?.all === 6 && name === "training"));
  await until(() => agent.state().model);
  assert.deepEqual([agent.state().model.head, agent.state().model.version], ["personal_network", 1]);
  assert.deepEqual([agent.memory.adoption.answer, agent.memory.adoption.source], ["adopted", "personalized"]);
  await invite(server, 2);
  await until(() => agent.memory.uploads.length === 2);
  assert.deepEqual([host.jobs[0].client, host.jobs[1].client], [null, tensor(5)]);
  assert.deepEqual(host.jobs[1].identity, { client: DEVICE, round: 2 });
  await invite(server, 2);
  await invite(server, 2, { state: "finished", model: await server.blob(utf8("the last broadcast")) });
  await until(() => agent.state().name === "finished", () => JSON.stringify(agent.state()));
  assert.equal(host.jobs.length, 2, "a round that is announced again is not trained again");
  assert.equal((await store.get("round")) ?? null, null);
});

test("the network midway between the shared and the phone's own serves where it is the best", async () => {
  const server = await started();
  const { agent } = await agentOf(server, { host: Object.assign(new GivenHost(), { right: 0.5 }), count: 100 });
  await invite(server, 1);
  await until(() => agent.state().model, () => JSON.stringify(agent.state()));
  const { head, version, values } = agent.state().model;
  const midway = { ...tensor(1), "served/params/w": { shape: [1], data: Float32Array.of(0.5) } }; // the count is its own
  assert.deepEqual([head, version, values], ["midway_network", 1, midway]);
  const { adoption, verdict } = agent.memory;
  assert.deepEqual([adoption.source, adoption.round, verdict.compared.models.length], ["personalized", 1, 3]);
  const why = "The model midway between the two: 100 % on 20 holdout windows of 2 classes"; // the others do not work
  assert.equal(adoption.reason, `network midway between shared and personal of round 1: adopted. ${why}`);
});

test("a phone reports what its networks gain, and goes by what a version's other devices have", async () => {
  const server = await started();
  const host = new GivenHost();
  host.sharedNetwork = async () => tensor(0);
  host.logits = async (program, network, x) => {
    const isShared = network["served/params/w"].data[0] === 0; // which errs on every fifth window
    return Float32Array.from({ length: (2 * x.length) / 768 }, (_, i) => {
      return Number(x[768 * (i >> 1)] < 0 === Boolean(i % 2)) * (isShared && (i >> 1) % 5 === 0 ? -1 : 1);
    });
  };
  const { agent } = await agentOf(server, { host, count: 100 });
  await invite(server, 1);
  await until(() => agent.memory.uploads.length === 1 && agent.state().model);
  const { personalized, midway } = server.begun[0].manifest.gains;
  assert.deepEqual([personalized[0], personalized[1], personalized.slice(3)], [1, 2000, [1, 2000, 1, 2000]]);
  assert.deepEqual(midway, personalized);
  assert.deepEqual(agent.memory.reported, { 1: { personalized, midway } });
  // ten devices lose with their own network, and this phone's report is in the sums
  const sums = [10, -30_000, 9000, 10, -30_000, 10, -30_000].map((each, i) => each + personalized[i]);
  await invite(server, 2, { gains: { personalized: sums } });
  await until(() => agent.memory.uploads.length === 2 && (agent.memory.trained ?? null) === null);
  const { gain } = agent.memory.verdict.compared.models.find(({ name }) => name === "personal network of round 2");
  assert.ok(Math.abs(gain - (0.5 * 0.2 - 0.5 * 0.3)) < 1e-9, `${gain}: 20 windows weigh as much as the prior`);
  assert.equal(agent.state().model.head, "midway_network");
});

test("killed at any transaction, a phone goes on with what it saved, and sends each round once", async () => {
  for (let lives = 0, whole = false; !whole; lives++) {
    const server = await started();
    const store = new MemoryStore();
    const first = await agentOf(server, { store, host: new GivenHost() });
    await until(() => first.agent.approved);
    store.lives = lives;
    await invite(server, 1);
    await until(() => first.agent.memory.uploads.length || store.lives < 0);
    whole = store.lives >= 0;
    await first.stop();
    store.lives = Infinity;
    const saved = await store.get("round");
    const host = new GivenHost();
    const second = await agentOf(server, { store, host });
    await until(() => second.agent.memory.uploads.length === 1, () => `${lives}: ${JSON.stringify(second.agent.state())}`);
    assert.deepEqual(server.accepted.map(({ manifest }) => manifest.round), [1], `killed after ${lives}`);
    if (host.jobs.length) assert.deepEqual(host.jobs[0].saved?.usedMs, saved?.usedMs);
    await second.stop();
    assert.ok(lives < 40);
  }
});

test("what stops a round: its end, its person, the battery, and work that the federation drops", async () => {
  const server = await started();
  let blocker = "";
  const host = new GivenHost({ slow: true, steps: 5000 });
  const { agent } = await agentOf(server, { host, conditions: async () => blocker });
  const says = (words) => until(() => agent.state().reason.includes(words), () => JSON.stringify(agent.state()));
  await invite(server, 1);
  await until(() => host.jobs.length === 1 && agent.state().progress);
  await invite(server, 1, { state: "aggregating" });
  await says("round 1 is over");
  await invite(server, 2);
  await until(() => host.jobs.length === 2 && agent.state().progress);
  blocker = "the battery has 9 %";
  await says("round 2 waits: the battery has 9 %");
  blocker = "";
  agent.retryNow();
  await until(() => host.jobs.length >= 3 && agent.state().progress);
  assert.ok(host.jobs.at(-1).saved, "it goes on from what was saved");
  await agent.setTakesPart(false);
  await until(() => !agent.work.stage);
  assert.equal(agent.state().name, "withdrawn");
  host.steps = 4;
  await agent.setTakesPart(true);
  await invite(server, 3);
  await says("4 of 6 steps, and this federation drops partial work");
  host.steps = 4;
  await invite(server, 4, { plan: { ...ROUNDS, rounds: { partial_work: "use" } } });
  await until(() => agent.memory.uploads.length === 1);
  assert.deepEqual([server.begun[0].manifest.steps, server.begun[0].manifest.metrics.epochs], [4, 1]);
});

test("a round whose model can't be used is left out at once, and the model is refused, signed, until another can be used", async () => {
  const server = await started();
  const host = new GivenHost();
  host.train = async (job) => {
    host.jobs.push(job);
    throw host.jobs.length > 1 ? new Error("its own fault") : new UnusableModelError("it holds NaN");
  };
  const { agent } = await agentOf(server, { host });
  await invite(server, 1);
  const { unusable } = await until(() => server.statuses.findLast((status) => status.unusable));
  const { model } = agent.memory.invitation;
  const refusal = { instance: INSTANCE, epoch: 1, model: model.sha256, reason: "it holds NaN" };
  assert.deepEqual(await server.openRefusal("model-refusal", unusable), refusal);
  await until(() => agent.work.detail.includes("round 1 is left out: it holds NaN"), () => agent.work.detail);
  assert.equal(host.jobs.length, 1);
  await invite(server, 2);
  await until(() => agent.work.detail.includes("round 2 is left out: its own fault"), () => agent.work.detail);
  assert.equal(host.jobs.length, 4, "a fault of its own is tried again");
  const { model: next } = agent.memory.invitation;
  assert.notEqual(agent.memory.unusable?.model, next.sha256);
  host.train = GivenHost.prototype.train;
  await invite(server, 3);
  await until(() => agent.memory.uploads.length === 1 && !server.statuses.at(-1).unusable);
});

test("a federation that a phone cannot train in says so, and nothing is trained", async () => {
  const server = await started();
  const host = new GivenHost();
  const { agent } = await agentOf(server, { host });
  await invite(server, 1, { program: null });
  await until(() => agent.state().reason.includes("has no program for phones"));
  await invite(server, 1, { plan: { ...ROUNDS, method: { name: "fedatt" }, secure: { mode: "masked" } } });
  await until(() => agent.state().reason.includes("secure sums"), () => JSON.stringify(agent.state()));
  await until(() => server.statuses.at(-1)?.detail.includes("secure sums"));
  assert.deepEqual([host.jobs.length, server.statuses.at(-1).state, server.statuses.at(-1).examples], [0, "collecting", 0]);
});

