// The phone's state machine against a server over real HTTP: contributions, kills at every step, and a hostile server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { addWindows, emptySums, travelling } from "../../../phone/app/learning/ridge.js";
import { withLeft } from "../../../phone/app/protocol/releases.js";
import { Safetensors, encode } from "../../../phone/app/protocol/safetensors.js";
import { DEVICE, INSTANCE, PLAN, SmallServer, utf8 } from "./small_server.mjs";
import { FirstNumbers, Killed, MemoryStore, agentOf, someWindows, stopAll, until } from "./parts.mjs";

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

const network = utf8("an ONNX file");
const [SIZE, CLASSES] = [4, 2];
const shapes = { gram: [(SIZE * (SIZE + 1)) / 2], moment: [SIZE, CLASSES] };

/** The sums that a phone with these windows sends, as it sends them. */
async function sumsOf(windows) {
  const sums = emptySums(CLASSES, SIZE - 1);
  const embeddings = await new FirstNumbers().embed(Float32Array.from(windows.flatMap(({ x }) => [...x])));
  await addWindows(sums, embeddings, windows.map(({ label }) => PLAN.labels.indexOf(label)), 4);
  return travelling(sums);
}

/** A broadcast with the sums of so many phones, which have learnt the labels or, turned, each other's. */
async function broadcastOf(clients, labels = PLAN.labels) {
  const { gram, moment } = await sumsOf(someWindows(40, labels, 1000));
  const times = (values) => BigInt64Array.from(values, (value) => BigInt(value * clients));
  return encode([
    ["params/head.bias", { shape: [2], data: new Float32Array(2) }],
    ["sums/gram", { shape: shapes.gram, data: times(gram) }],
    ["sums/moment", { shape: shapes.moment, data: times(moment) }],
    ["sums/clients", { shape: [], data: BigInt64Array.of(BigInt(clients)) }],
  ]);
}

/** Announce the version before `round`, of so many phones. */
async function collect(server, round, { clients = round - 1, labels, ...changes } = {}) {
  const model = await server.blob(await broadcastOf(clients, labels));
  await server.announce({ state: "collecting", round, model, feature_model: await server.blob(network), ...changes });
  return model;
}

/** What came of a device's sums. */
function tensorsOf({ bytes }) {
  const found = new Safetensors(bytes, 10_000);
  return { gram: [...found.int32("gram", shapes.gram)], moment: [...found.int32("moment", shapes.moment)] };
}

/** Those of windows that are learnt from, where the last fifth of each label is held out. */
async function expectedOf(windows) {
  const { gram, moment } = await sumsOf(windows);
  return { gram: [...gram], moment: [...moment] };
}

test("the first sums, the answer, and the heads of versions", async () => {
  const server = await started();
  const { agent, store, stop } = await agentOf(server);
  const before = Date.now();
  await collect(server, 1);
  await until(
    () => agent.memory.uploads.length === 1,
    () => JSON.stringify(agent.state()),
  );
  const { manifest } = server.begun[0];
  assert.deepEqual([manifest.steps, manifest.examples, manifest.class_counts, manifest.round], [0, 16, [8, 8], 1]);
  assert.ok(manifest.sequence >= before && manifest.sequence <= Date.now());
  assert.ok(manifest.update_id.startsWith(`s${manifest.sequence}-${DEVICE}-`));
  assert.ok(!("withdraw" in manifest));
  assert.deepEqual(tensorsOf(server.accepted[0]), await expectedOf(store.stored.slice(0, 16)));
  assert.deepEqual(manifest.metrics.macro_f1_after, 1);
  assert.ok(!("macro_f1_before" in manifest.metrics), "nobody had sent sums before");
  assert.equal(agent.state().model.head, "personalized");
  await until(() => server.statuses.at(-1).state === "idle");
  const model = await collect(server, 2, { clients: 3 });
  await until(() => agent.memory.judged === `1 ${model.sha256}`);
  assert.deepEqual([agent.state().model.head, agent.state().model.version, agent.state().version], ["personalized", 1, 1]);
  const last = await until(() => server.statuses.findLast((said) => said.adoption?.round === 1));
  assert.deepEqual([last.adoption.answer, last.adoption.source], ["adopted", "personalized"]);
  const said = "Your own model: 100 % on 4 holdout windows of 2 classes; the shared model: 100 %";
  assert.ok(last.adoption.reason.startsWith(`personal model of version 1: adopted. ${said}`), last.adoption.reason);
  assert.equal(server.heard.filter(({ path }) => path === model.url).length, 1);
  assert.equal(server.accepted.length, 1, "a version alone is no reason to send again");
  const numbers = server.statuses.map((said) => said.number);
  assert.deepEqual(
    numbers,
    [...numbers].sort((a, b) => a - b),
  );
  assert.equal(new Set(server.statuses.map((said) => said.session)).size, 1);
  await stop();
  for (const { path } of server.heard) assert.doesNotMatch(path, /t\d+$|token=|secret/, "a key in a URL");
});

test("sums are sent again, whole, once enough windows came, went or have another label, and after a reload", async () => {
  const server = await started();
  const first = await agentOf(server);
  await collect(server, 1);
  await until(() => first.agent.memory.uploads.length === 1);
  first.store.stored = [...someWindows(20), ...someWindows(2, PLAN.labels, 20)]; // two more to learn from: fewer than four
  first.agent.dataChanged();
  await until(() => first.agent.work.prepared?.train.y.length === 18 && !first.agent.work.stale);
  await first.stop();
  const second = await agentOf(server, { store: first.store });
  await until(() => second.agent.work.prepared?.train.y.length === 18);
  assert.equal(server.accepted.length, 1);
  const [relabelled] = [second.store.stored[0]];
  second.store.stored = [{ ...relabelled, label: "walking" }, ...second.store.stored.slice(1)]; // one went, one came
  second.agent.dataChanged();
  await until(() => second.agent.memory.uploads.length === 2);
  const [one, two] = server.accepted.map(({ manifest }) => manifest.sequence);
  assert.ok(two > one);
  const learnt = second.agent.work.prepared.keys.map((key) => {
    const [id, label] = key.split(" ");
    return { ...second.store.stored.find((each) => each.id === Number(id)), label };
  });
  assert.deepEqual(tensorsOf(server.accepted[1]), await expectedOf(learnt));
  await second.stop();
});

test("a person withdraws the phone: its sums are taken out, it sends nothing, and takes part again", async () => {
  const server = await started();
  const first = await agentOf(server);
  await collect(server, 1);
  await until(() => first.agent.memory.uploads.length === 1);
  await first.agent.setTakesPart(false);
  await until(() => first.agent.memory.uploads.length === 2);
  const { manifest } = server.begun.at(-1);
  assert.deepEqual(
    [manifest.withdraw, manifest.examples, manifest.size, manifest.steps, manifest.class_counts],
    [true, 0, 0, 0, null],
  );
  assert.equal(manifest.sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  assert.ok(manifest.sequence > server.begun[0].manifest.sequence);
  assert.equal(first.agent.state().name, "withdrawn");
  const said = await until(() => server.statuses.findLast((one) => one.detail.startsWith("withdrawn by its person")));
  assert.deepEqual([said.examples, said.adoption], [0, undefined]);
  await first.stop();
  first.store.stored = someWindows(60);
  const second = await agentOf(server, { store: first.store });
  const model = await collect(server, 2, { clients: 3 });
  await until(() => second.agent.memory.judged === `1 ${model.sha256}`, "it uses what others have sent");
  assert.equal(server.accepted.length, 2);
  // a restored server may have its sums again
  await collect(server, 2, { clients: 3, epoch: 2 });
  await until(() => server.accepted.length === 3);
  assert.ok(server.accepted[2].manifest.withdraw);
  await second.agent.setTakesPart(true);
  await until(() => server.accepted.length === 4);
  assert.equal(server.accepted[3].manifest.examples, 48);
  await second.stop();
});

test("a withdrawal stops sums that are on their way", async () => {
  const server = await started();
  server.instead = busyAt("/end");
  await collect(server, 1);
  const { agent, stop } = await agentOf(server);
  await until(() => server.heard.some(({ path }) => path.endsWith("/end")));
  await agent.setTakesPart(false);
  await until(() => agent.memory.uploads.length === 1);
  assert.deepEqual(
    server.accepted.map(({ manifest }) => manifest.withdraw),
    [true],
  );
  await stop();
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
    assert.deepEqual(server.accepted[0].manifest.class_counts, [6, 6]);
    // the windows that are left to learn from
    assert.deepEqual(tensorsOf(server.accepted[0]), await expectedOf(store.stored.slice(0, 12)));
    await stop();
  });
}

test("of windows that are all deleted nothing is sent but that their sums go, nor after a reload", async () => {
  const server = await started();
  server.instead = busyAt("/begin");
  await collect(server, 1);
  const first = await agentOf(server);
  await until(() => first.agent.outbox.length === 1);
  await first.stop();
  first.store.stored = someWindows(5, [null], 500);
  server.instead = [];
  const second = await agentOf(server, { store: first.store });
  await until(() => server.accepted.length === 1);
  assert.deepEqual(
    server.accepted.map(({ manifest }) => manifest.withdraw ?? false),
    [true],
    "the server may have had the sums, and forgets them",
  );
  await until(() => second.agent.state().reason.includes("no window has a label yet"));
  await collect(server, 1, { epoch: 2 });
  await until(() => server.accepted.length === 2, "a restored server may have the sums again");
  assert.ok(server.accepted[1].manifest.withdraw);
  second.store.stored = someWindows(20);
  second.agent.dataChanged();
  await until(() => server.accepted.length === 3);
  assert.equal(server.accepted[2].manifest.examples, 16);
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

test("files of another origin, size, content or form are refused", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const good = await server.blob(network);
  const cases = [
    [{ ...good, url: "https://elsewhere.example/x" }, "https://elsewhere.example/x was announced, but files are fetched from"],
    [{ ...good, url: "//another.example/x" }, "//another.example/x was announced, but files are fetched from"],
    [{ ...good, url: `http://u:p@${server.url.slice(7)}/x` }, "http://u:p@"],
    [{ ...good, size: good.size - 1 }, "sends more than"],
    [{ ...good, size: good.size + 1 }, "announced were"],
    [{ ...good, sha256: "0".repeat(64), url: good.url }, "has sha256"],
    [{ ...good, size: 2 ** 33 }, "more than a phone downloads"],
  ];
  /** It rests by what came before until the new announcement is there, and may then be asked to try at once. */
  const tried = (/** @type {() => boolean} */ happened) => {
    agent.work.contributeAtMs = happened() ? agent.work.contributeAtMs : 0;
    return happened();
  };
  for (const [feature_model, words] of cases) {
    await collect(server, 1, { feature_model });
    await until(
      () => tried(() => agent.state().reason.includes(words)),
      () => `${words}: ${agent.state().reason}`,
    );
    assert.ok(!server.statuses.some((status) => status.unusable), "nobody knows what the announced bytes are");
    if (words === "more than a phone downloads") continue;
    await until(() => agent.work.contributeAtMs > Date.now() + 250_000, "after some tries it rests");
  }
  assert.deepEqual(server.accepted, []);
  assert.ok(server.heard.every(({ path }) => !path.startsWith("/x")));
  await collect(server, 1);
  await until(
    () => tried(() => agent.memory.uploads.length === 1),
    () => agent.state().reason,
  );
  await stop();
});

test("a phone reports no gains of its heads, and goes by its own windows alone", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await collect(server, 3, { clients: 5 });
  await until(() => agent.memory.uploads.length === 1);
  assert.equal(server.begun[0].manifest.gains, undefined);
  assert.equal(agent.memory.reported, undefined);
  const sums = [11, -11_000, 1100, 11, -11_000, 11, -11_000]; // of other devices, whose own heads are worse
  await collect(server, 9, { clients: 6, model: { ...(await server.blob(await broadcastOf(6))), gains: { personalized: sums } } });
  await until(() => agent.memory.adoption.round === 8);
  const { model, compared } = agent.memory.verdict;
  assert.equal(model.head, "personalized");
  assert.equal(compared.models.find(({ head }) => head === "personalized").gain, 0);
  await stop();
});

test("broadcasts that cannot be are not taken up, and refused, signed, until one can be used", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server, { store: Object.assign(new MemoryStore(), { stored: someWindows(20, [null]) }) });
  const of = (sums) =>
    encode(Object.entries(sums).map(([name, data]) => [`sums/${name}`, { shape: shapes[name] ?? [], data }]));
  const huge = new BigInt64Array(10).fill(2n ** 40n);
  const sums = { gram: huge, moment: new BigInt64Array(8), clients: BigInt64Array.of(2n) };
  const negative = { ...sums, gram: new BigInt64Array(10).fill(-(2n ** 30n)) };
  const cases = [
    [of(sums), /of 2 devices reach 1099511627776/],
    [of({ ...sums, gram: new BigInt64Array(10).fill(2n ** 60n) }), /beyond 53 bits/],
    [of({ ...sums, clients: BigInt64Array.of(-1n) }), /of -1 devices/],
    [of(negative), /not positive definite/],
    [of({ gram: sums.gram, clients: sums.clients }), /no tensor sums\/moment/],
    [utf8("nothing of the kind"), /safetensors/],
  ];
  for (const [i, [file, words]] of cases.entries()) {
    const model = await server.blob(file);
    await server.announce({ state: "waiting", round: i + 1, model, feature_model: await server.blob(network) });
    await until(
      () => words.test(agent.work.detail),
      () => `${words}: ${agent.work.detail}`,
    );
    const { unusable } = await until(() => server.statuses.findLast((status) => status.unusable?.includes(model.sha256)));
    const { reason, ...about } = await server.openRefusal("model-refusal", unusable);
    assert.deepEqual(about, { instance: INSTANCE, epoch: 1, model: model.sha256 });
    assert.match(reason, words);
    assert.equal(agent.memory.judged, `${i + 1} ${model.sha256}`, "it is given up at once");
  }
  assert.equal(agent.state().model, null);
  await collect(server, cases.length + 2, { clients: 5 });
  await until(() => agent.state().model && !server.statuses.at(-1).unusable);
  await stop();
});

test("a phone without a label uses the shared head of what others have sent", async () => {
  const server = await started();
  const store = Object.assign(new MemoryStore(), { stored: someWindows(20, [null]) });
  const { agent, stop } = await agentOf(server, { store });
  const model = await collect(server, 3, { clients: 5 });
  await until(() => agent.memory.judged === `2 ${model.sha256}`);
  const { verdict, model: used } = agent.state();
  assert.deepEqual([verdict.answer, used.head, used.version], ["adopted", "shared", 2]);
  assert.match(verdict.reason, /No head is scored: fewer than 2 activities have 5 labelled windows in a row$/);
  const said = await until(() => server.statuses.findLast((one) => one.adoption?.round === 2));
  assert.deepEqual([said.state, said.examples], ["collecting", 0]);
  assert.match(said.detail, /no window has a label yet/);
  assert.deepEqual(server.accepted, []);
  await stop();
});

test("a phone without a label makes its heads again when enough new windows came", async () => {
  const server = await started();
  const store = Object.assign(new MemoryStore(), { stored: someWindows(6, [null]) });
  const { agent, stop } = await agentOf(server, { store });
  const model = await collect(server, 3, { clients: 5 });
  const adaptedTo = () => agent.memory.adaptedTo?.count;
  await until(() => adaptedTo() === 6);
  const [adoption, first] = [agent.memory.adoption, agent.memory.refreshed.atMs];
  const record = (count) => {
    store.stored = someWindows(count, [null]);
    agent.dataChanged();
  };
  record(9); // three more: fewer than the plan says
  await until(() => agent.work.prepared.recorded.count === 9);
  agent.retryNow();
  record(10); // four more, and half as many again
  await until(() => adaptedTo() === 10);
  assert.equal(agent.memory.judged, `2 ${model.sha256}`);
  assert.notEqual(agent.memory.adoption, adoption);
  record(14);
  await until(() => agent.work.prepared.recorded.count === 14);
  agent.retryNow();
  assert.equal(adaptedTo(), 10); // enough came, but not half as many again
  await agent.stateStore.change(({ memory }) => ({ memory: { ...memory, refreshed: { version: 2, atMs: first - 900_001 } } }));
  agent.retryNow();
  await until(() => adaptedTo() === 14);
  await stop();
});

test("a version follows another at once only where half as many were published again, and is taken up later", async () => {
  const server = await started();
  const store = Object.assign(new MemoryStore(), { stored: someWindows(20, [null]) });
  const { agent, stop } = await agentOf(server, { store });
  const at = async (round, clients) => [await collect(server, round, { clients }), round - 1];
  const isUsed = async ([model, version]) => agent.memory.judged === `${version} ${model.sha256}`;
  const first = await at(5, 5);
  await until(() => isUsed(first));
  const next = await at(6, 6);
  await until(() => agent.announcement.round === 6);
  const eighth = await at(9, 9);
  await until(() => isUsed(eighth));
  assert.equal(server.heard.filter(({ path }) => path === next[0].url).length, 0);
  const ninth = await at(10, 10);
  await until(() => agent.announcement.round === 10);
  await agent.stateStore.change(({ memory }) => ({ memory: { ...memory, refreshed: { version: 8, atMs: 5 } } }));
  agent.retryNow();
  await until(() => isUsed(ninth));
  await stop();
});

test("why a phone does not take part is said", async () => {
  const server = await started();
  const feature_model = await server.blob(network);
  const { agent, store, stop } = await agentOf(server);
  const cases = [
    [{ continuous: false, plan: { ...PLAN, method: { name: "fedavg" } } }, "trains in rounds (fedavg)"],
    [{ plan: { ...PLAN, task: { name: "segmentation" } } }, "segmentation"],
    [{ feature_model: null }, "no network for phones"],
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
  await until(() => server.statuses.at(-1).examples === 2 && server.statuses.at(-1).state === "ready");
  await stop();
});

test("a federation that was founded anew, and a restored server, get the sums anew", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  await collect(server, 1);
  await until(() => agent.memory.uploads.length === 1);
  await collect(server, 1, { epoch: 2 });
  await until(() => agent.memory.uploads.length === 2 && agent.memory.epoch === 2);
  const other = "f".repeat(32);
  await collect(server, 1, { epoch: 2, instance: other });
  await until(() => agent.memory.instance === other && agent.memory.uploads.length === 1);
  const sequences = server.accepted.map(({ manifest }) => manifest.sequence);
  assert.ok(sequences[0] < sequences[1] && sequences[1] < sequences[2], String(sequences));
  await stop();
});

test("what a rollout gives is used and said, and left once it is withdrawn", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const feature_model = await server.blob(network);
  const plan = { ...PLAN, rollout: { mode: "manual" } };
  const releaseOf = async (rollout) => {
    return { rollout, version: rollout, round: rollout, model: await server.blob(await broadcastOf(rollout)) };
  };
  const order = async (rollout, withdrawn = []) => {
    const release = { serial: 1, released: rollout ? await releaseOf(rollout) : null, withdrawn };
    const model = await server.blob(await broadcastOf(9));
    await server.announce({ plan, feature_model, round: 9, model, release });
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
  assert.equal(agent.state().model.version, 6);
  await order(5, [6]);
  await said(6, "rolled_back");
  assert.deepEqual([agent.state().model.version, agent.memory.release.reason], [5, "withdrawn by the server"]);
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
  server.send("notice", await server.signed("notice", { session: agent.statusSender.session, reason: "a clone" }));
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
