// The phone's state machine against a server over real HTTP: rounds, kills at every step, and a hostile server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Learner } from "../../../phone/app/learning/learner.js";
import { withLeft } from "../../../phone/app/protocol/releases.js";
import { Safetensors, encode } from "../../../phone/app/protocol/safetensors.js";
import { DEVICE, INSTANCE, PLAN, SmallServer, utf8 } from "./small_server.mjs";
import { Killed, MemoryStore, agentOf, someWindows, stopAll, until } from "./parts.mjs";

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

const light = utf8("an ONNX file");
const broadcastOf = (number, known = [1, 1]) =>
  encode([
    ["prototypes", { shape: [2, 3], data: new Float32Array(6).fill(number) }],
    ["known", { shape: [2], data: Float32Array.from(known) }],
  ]);

/** Open a round for the phone. */
async function collect(server, round, changes = {}) {
  const model = await server.blob(broadcastOf(round, round === 1 ? [0, 0] : [1, 1]));
  const feature_model = await server.blob(light);
  const invitation = { instance: INSTANCE, epoch: 1, round, model, ...changes.invitation };
  await server.announce({ state: "collecting", round, model, feature_model, ...changes.announcement }, invitation);
  return model;
}

test("a round: status, upload, answer, and the model of the next", async () => {
  const server = await started();
  const { agent, store, stop } = await agentOf(server);
  await collect(server, 1);
  await until(
    () => agent.memory.uploads.length === 1,
    () => JSON.stringify(agent.state()),
  );
  const [{ bytes }] = server.accepted;
  const { manifest } = server.begun[0];
  assert.deepEqual([manifest.steps, manifest.examples, manifest.class_counts], [0, 16, [8, 8]]);
  const sent = new Safetensors(bytes, 10_000);
  assert.deepEqual([...sent.float32("counts", [2])], [8, 8]);
  const even = Float32Array.of(0.1, 2.1, 4.1, 6.1, 8.1, 10.1, 12.1, 14.1); // the windows of label 0
  const mean = Math.fround(even.reduce((sum, each) => sum + each, 0) / 8);
  assert.equal(sent.float32("prototypes", [2, 3])[0], mean);
  assert.equal(agent.state().model, null, "no class was known in the first broadcast");
  const model = await collect(server, 2);
  await until(() => agent.memory.uploads.length === 2 && agent.memory.judged === `1 ${model.sha256}`);
  assert.deepEqual([...agent.state().model.prototypes], new Array(6).fill(2));
  assert.deepEqual(
    server.begun.map(({ manifest }) => manifest.metrics),
    [{}, { macro_f1_after: 0.75 }],
  );
  const downloads = server.heard.filter(({ path }) => path === model.url).length;
  assert.equal(downloads, 1, "a round's model is measured and judged, and downloaded once");
  const last = await until(() => server.statuses.findLast((said) => said.adoption));
  assert.deepEqual([last.adoption.round, last.adoption.answer, last.adoption.source], [1, "adopted", "global"]);
  const numbers = server.statuses.map((said) => said.number);
  assert.deepEqual(
    numbers,
    [...numbers].sort((a, b) => a - b),
  );
  assert.equal(new Set(server.statuses.map((said) => said.session)).size, 1);
  await server.announce({ state: "finished", round: 2, model, feature_model: await server.blob(light) });
  await until(() => server.statuses.at(-1).state === "finished");
  await stop();
  assert.deepEqual(
    (await store.get("agent")).uploads.map(({ round }) => round),
    [1, 2],
  );
  for (const { path } of server.heard) assert.doesNotMatch(path, /t\d+$|token=|secret/, "a key in a URL");
});

test("killed at every transaction and every request, it sends the same bytes, once", async () => {
  for (let kill = 0, ended = false; !ended; kill++) {
    const server = await started();
    await collect(server, 1);
    const store = new MemoryStore();
    let requests = 0;
    // a kill in a transaction, or as a request was sent, or before its answer was read
    const ask = async (...given) => {
      if (kill % 3 && requests++ >= Math.floor(kill / 3)) {
        if (kill % 3 === 2) await fetch(...given).then((answer) => answer.body?.cancel());
        store.lives = 0;
        throw new Killed("the browser was killed");
      }
      return fetch(...given);
    };
    const first = await agentOf(server, { store, ask });
    if (!(kill % 3)) store.lives = Math.floor(kill / 3);
    await until(
      () => store.lives <= 0 || first.agent.memory.uploads.length,
      () => `${kill} ${JSON.stringify(first.agent.state())}`,
    );
    ended = store.lives > 0 && kill % 3 === 0;
    await first.stop();
    const reopened = Object.assign(new MemoryStore(), { values: store.values, stored: store.stored });
    const second = await agentOf(server, { store: reopened });
    await until(
      () => second.agent.memory.uploads.length,
      () => `${kill} ${JSON.stringify(second.agent.state())}`,
    );
    await second.stop();
    assert.equal(new Set(server.begun.map(({ body }) => Buffer.from(body).toString("hex"))).size, 1, `kill ${kill}`);
    assert.equal(server.accepted.length, 1, `kill ${kill}`);
    assert.equal(second.agent.outbox.length, 0);
    assert.ok(kill < 100, "it never came to its end");
  }
});

test("a server that loses chunks, is busy, or takes it later gets it in the end", async () => {
  const server = await started();
  const ends = (path) => path.endsWith("/end");
  server.instead = [
    (path) => path.endsWith("/begin") && { status: 503, headers: { "Retry-After": "0.1" }, body: { detail: "busy" } },
    (path) => path.endsWith("/chunk/0") && { status: 204 }, // lost
    (path) => ends(path) && { status: 204 }, // begin again
    (path) => path.endsWith("/begin") && { status: "cut" },
  ];
  await collect(server, 1);
  const { agent, stop } = await agentOf(server);
  await until(
    () => agent.memory.uploads.length === 1,
    () => JSON.stringify([agent.state(), server.instead.length]),
  );
  assert.equal(server.instead.length, 0);
  assert.equal(new Set(server.begun.map(({ body }) => Buffer.from(body).toString("hex"))).size, 1);
  await stop();
});

/** A server that takes no update until its `instead` is emptied. */
const busyAt = (step) => new Array(2000).fill((path) => path.endsWith(step) && { status: 503, body: { detail: "busy" } });

for (const step of ["/begin", "/end"]) {
  test(`windows that were deleted before ${step} are not sent: the update is made anew from the rest`, async () => {
    const server = await started();
    server.instead = busyAt(step);
    await collect(server, 1);
    const { agent, store, stop } = await agentOf(server);
    await until(() => server.heard.some(({ path }) => path.endsWith(step)));
    const [{ updateId }] = agent.outbox;
    store.stored = store.stored.filter(({ id }) => id > 5);
    agent.dataChanged();
    await until(() => agent.outbox.length === 1 && agent.outbox[0].updateId !== updateId);
    server.instead = [];
    await until(() => agent.memory.uploads.length === 1);
    assert.deepEqual(
      server.accepted.map((one) => one.updateId === updateId),
      [false],
    );
    const sent = new Safetensors(server.accepted[0].bytes, 10_000);
    assert.deepEqual([...sent.float32("counts", [2])], [6, 6]);
    const even = [6.1, 8.1, 10.1, 12.1, 14.1, 16.1].map(Math.fround); // the windows of label 0 that are left to learn from
    const mean = Math.fround(even.reduce((sum, each) => sum + each, 0) / 6);
    assert.equal(sent.float32("prototypes", [2, 3])[0], mean);
    await stop();
  });
}

test("of windows that are all deleted nothing is sent, nor after a reload, nor once the round is over", async () => {
  const server = await started();
  server.instead = busyAt("/begin");
  await collect(server, 1);
  const first = await agentOf(server);
  await until(() => first.agent.outbox.length === 1);
  first.store.stored = [];
  first.agent.dataChanged();
  await until(() => first.agent.outbox.length === 0 && first.agent.state().reason.includes("no windows yet"));
  first.store.stored = someWindows(20);
  first.agent.dataChanged();
  await until(() => first.agent.outbox.length === 1, "the round still collects");
  await first.stop();
  first.store.stored.shift();
  server.instead = [];
  await server.announce({ state: "waiting", round: 1, feature_model: await server.blob(light) });
  const second = await agentOf(server, { store: first.store });
  await until(() => second.agent.announcement && second.agent.outbox.length === 0);
  await until(() => second.agent.state().reason.includes("have been deleted"));
  assert.deepEqual([await first.store.get("outbox"), server.accepted, server.begun], [[], [], []]);
  await second.stop();
});

test("an answer about another update, or signed by nobody, settles nothing", async () => {
  const server = await started();
  const forged = [];
  server.instead = [
    (path) => path.endsWith("/begin") && { status: 200, body: forged[0] },
    (path) => path.endsWith("/begin") && { status: 200, body: forged[1] },
  ];
  const accepted = { schema_version: 1, update_id: "x", nonce: "12345678", status: "accepted" };
  forged.push(await server.signed("acknowledgement", accepted));
  const other = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
  forged.push(await server.signed("acknowledgement", accepted, { key: other.privateKey }));
  await collect(server, 1);
  const { agent, stop } = await agentOf(server);
  await until(() => agent.memory.uploads.length === 1);
  assert.equal(server.accepted.length, 1);
  await stop();
});

test("what is not the server's, or older, is not believed and said so", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await server.announce({ state: "paused" });
  await until(() => agent.announcement?.state === "paused");
  const other = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
  const said = { ...server.announcement(), state: "collecting" };
  const hostile = {
    "not signed by this phone's server": await server.signed("announcement", said, { key: other.privateKey }),
    "is not signed, and": utf8(JSON.stringify(said)),
    "somebody repeats an old one": await server.signed("announcement", { ...said, serial: 0 }),
    "epoch 1, and this phone": null,
    expired: await server.signed("announcement", { ...said, epoch: 7, expires: 5 }),
    "of federation 'other'": await server.signed("announcement", { ...said, federation: "other" }),
    "unknown key": await server.signed("announcement", { ...said, surprise: 1 }),
    "round: expected a whole": await server.signed("announcement", { ...said, round: -1 }),
    "not signed by this phone's server for": await server.signed("announcement", said, { device: DEVICE }),
  };
  for (const [words, payload] of Object.entries(hostile)) {
    if (payload === null) {
      await server.announce({ state: "paused", epoch: 6 });
      await until(() => agent.memory.epoch === 6);
    }
    server.send("announcement", payload ?? (await server.signed("announcement", { ...said, serial: 9999 })));
    await until(
      () => agent.untrusted.includes(words),
      () => `${words}: ${agent.untrusted}`,
    );
    assert.equal(agent.announcement.state, "paused");
  }
  await until(() => server.statuses.at(-1).detail.includes("not signed by this phone's server"));
  await server.announce({ state: "waiting", epoch: 6 });
  await until(() => agent.untrusted === "" && agent.announcement.state === "waiting");
  await stop();
});

test("files of another origin, size, content or form are refused, and the round is given up", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const good = await server.blob(light);
  const cases = [
    [{ ...good, url: "https://elsewhere.example/x" }, "are fetched from"],
    [{ ...good, url: "//elsewhere.example/x" }, "are fetched from"],
    [{ ...good, url: `http://u:p@${server.url.slice(7)}/x` }, "are fetched from"],
    [{ ...good, size: good.size - 1 }, "sends more than"],
    [{ ...good, size: good.size + 1 }, "announced were"],
    [{ ...good, sha256: "0".repeat(64), url: good.url }, "has sha256"],
    [{ ...good, size: 2 ** 33 }, "more than a phone downloads"],
  ];
  let round = 1;
  for (const [feature_model, words] of cases) {
    await collect(server, round++, { announcement: { feature_model } });
    await until(
      () => agent.state().reason.includes(words),
      () => `${words}: ${agent.state().reason}`,
    );
  }
  assert.deepEqual(server.accepted, []);
  assert.ok(server.heard.every(({ path }) => !path.startsWith("/x")));
  await collect(server, round);
  await until(
    () => agent.memory.uploads.length === 1,
    () => agent.state().reason,
  );
  await stop();
});

test("a broken broadcast is not adopted", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const broken = await server.blob(broadcastOf(NaN));
  await server.announce({ state: "waiting", round: 1, model: broken, feature_model: await server.blob(light) });
  await until(
    () => agent.memory.judged === `1 ${broken.sha256}`,
    () => agent.state().reason,
  );
  assert.equal(agent.state().model, null);
  await stop();
});

test("a phone without a label takes what others have sent, by the gate's words for who cannot check", async () => {
  const server = await started();
  const store = Object.assign(new MemoryStore(), { stored: someWindows(20, [null]) });
  const { agent, stop } = await agentOf(server, { store, by: new Learner() });
  const judged = async (round, score, bytes = broadcastOf(round), state = "waiting") => {
    const model = { ...(await server.blob(bytes)), score };
    await server.announce({ state, round, model, feature_model: await server.blob(light) });
    await until(
      () => agent.memory.judged.startsWith(`${round} `) && (agent.memory.judged.endsWith("measured") || !score),
      () => JSON.stringify([round, agent.state().reason, agent.memory.judged]),
    );
    const { answer, reason } = agent.state().verdict;
    return [answer, agent.state().model?.prototypes[0], reason];
  };
  const scoreOf = (working) => ({ value: 900_000, trivial: 100_000, devices: 3, working, measured: "version" });
  const [none, ...first] = [await judged(1, scoreOf(0)), await judged(2, null)];
  assert.deepEqual(none.slice(0, 2), ["failed", undefined]);
  assert.deepEqual(first[0].slice(0, 2), ["adopted", 2]);
  assert.match(first[0][2], /there are no holdout windows\); the server has no score of it, and there is no model yet, so it is used unchecked/);
  assert.deepEqual((await judged(3, null)).slice(0, 2), ["undecided", 2]);
  assert.deepEqual((await judged(3, scoreOf(2))).slice(0, 2), ["adopted", 3]);
  assert.deepEqual((await judged(4, scoreOf(1))).slice(0, 2), ["failed", 3]);
  const said = await until(() => server.statuses.findLast((one) => one.adoption?.round === 4));
  assert.deepEqual([said.state, said.examples, said.adoption.answer], ["collecting", 0, "failed"]);
  assert.match(said.detail, /no window has a label yet/);
  await judged(5, scoreOf(3), broadcastOf(5), "finished");
  await until(() => server.statuses.at(-1).state === "finished");
  assert.equal(agent.state().model.prototypes[0], 5);
  assert.deepEqual(server.accepted, []);
  await stop();
});

test("why a phone does not take part is said", async () => {
  const server = await started();
  const feature_model = await server.blob(light);
  const { agent, store, stop } = await agentOf(server);
  const cases = [
    [{ plan: { ...PLAN, light_clients: undefined } }, "light_clients"],
    [{ plan: { ...PLAN, method: { name: "fedavg" } } }, "trains its network"],
    [{ plan: { ...PLAN, task: { name: "segmentation" } } }, "segmentation"],
    [{ feature_model: null }, "no model for phones"],
    [{ plan: { ...PLAN, labels: ["a", "b"] } }, "are of still, walking"],
  ];
  for (const [changes, words] of cases) {
    await server.announce({ feature_model, ...JSON.parse(JSON.stringify(changes)) });
    await until(
      () => agent.state().reason.includes(words),
      () => `${words}: ${agent.state().reason}`,
    );
    const said = await until(() => server.statuses.findLast((one) => one.detail.includes(words)));
    assert.deepEqual([said.state, said.examples], ["collecting", 0]);
  }
  store.stored = someWindows(4, [null]);
  agent.dataChanged();
  await server.announce({ feature_model });
  await until(() => agent.state().reason.includes("no window has a label yet"));
  store.stored = someWindows(4);
  agent.dataChanged();
  await until(() => server.statuses.at(-1).examples === 4 && server.statuses.at(-1).state === "ready");
  await stop();
});

test("a federation that was founded anew, and a restored server, begin anew", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await collect(server, 1);
  await until(() => agent.memory.uploads.length === 1);
  const again = { announcement: { epoch: 2 }, invitation: { epoch: 2 } };
  server.accepted.length = 0;
  await collect(server, 1, again);
  await until(() => agent.memory.uploads.length === 2 && agent.memory.epoch === 2);
  assert.equal(agent.memory.done.length, 1);
  const other = "f".repeat(32);
  await collect(server, 1, { announcement: { epoch: 2, instance: other }, invitation: { epoch: 2, instance: other } });
  await until(() => agent.memory.instance === other && agent.memory.uploads.length === 1);
  await stop();
});

test("what a rollout gives is used and said, and left once it is withdrawn", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const feature_model = await server.blob(light);
  const plan = { ...PLAN, rollout: { mode: "manual" } };
  const releaseOf = async (rollout) => {
    return { rollout, version: rollout, round: rollout, model: await server.blob(broadcastOf(rollout)) };
  };
  const order = async (rollout, withdrawn = []) => {
    const release = { serial: 1, released: rollout ? await releaseOf(rollout) : null, withdrawn };
    await server.announce({ plan, feature_model, round: 9, model: await server.blob(broadcastOf(9)), release });
  };
  const said = (rollout, answer) =>
    until(
      () => server.statuses.at(-1)?.release?.rollout === rollout && server.statuses.at(-1).release.answer === answer,
      () => JSON.stringify([agent.state().reason, server.statuses.at(-1)]),
    );
  await order(5);
  await said(5, "adopted");
  await order(6);
  await said(6, "adopted");
  assert.equal(agent.state().model.prototypes[0], 6);
  await order(5, [6]);
  await said(6, "rolled_back");
  assert.deepEqual([agent.state().model.prototypes[0], agent.memory.release.reason], [5, "withdrawn by the server"]);
  await stop();
});

test("the last word about releases is about the one that was left", () => {
  const order = { withdrawn: [5] };
  const memory = (rollout, answer) => ({ release: { rollout, answer, reason: "" }, judged: "6 x" });
  const after = (...given) => withLeft(...given).release;
  assert.equal(after(memory(5, "adopted"), 5, 0, order).answer, "rolled_back");
  assert.equal(after(memory(6, "adopted"), 6, 4, null).reason, "taken back on the device");
  assert.equal(after(memory(6, "failed"), 5, 0, order).answer, "failed");
  assert.equal(after(memory(5, "adopted"), 5, 5, order).answer, "adopted");
  // measured against a model that is gone: it is judged again
  assert.deepEqual(withLeft(memory(6, "kept"), 5, 0, order), { release: null, judged: "" });
});

test("a notice to this session stops it, one to another does not", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await server.announce({});
  await until(() => agent.announcement);
  server.send("notice", await server.signed("notice", { session: "another", reason: "x" }));
  server.send("notice", await server.signed("notice", { session: agent.speaker.session, reason: "a clone" }));
  await until(() => agent.connectionError.includes("a clone") || agent.connection.holdMs > 300_000);
  await stop();
});

test("a token that has ended is replaced, a key that was revoked is said", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await server.announce({});
  await until(() => server.statuses.length);
  server.instead = [(path) => path.endsWith("/status") && { status: 401, body: { detail: "ended" } }];
  await server.announce({ state: "stopped" });
  await until(() => server.tokens === 2 && server.statuses.at(-1).state === "finished");
  const revoked = (path) => path.endsWith("/messages") && { status: 403, body: { detail: "it was revoked" } };
  server.instead = [revoked, revoked, revoked];
  for (const stream of server.streams) stream.end(`event: end\ndata: refused\n\n`);
  await until(() => server.instead.length < 3);
  await until(() => agent.connected || agent.connectionError.includes("it was revoked"));
  await stop();
});

before(() => assert.ok(globalThis.crypto?.subtle));
