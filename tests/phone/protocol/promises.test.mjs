// A phone requires what it was promised, in the words of Python's devices, and sends nothing under a plan that promises less.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { describePromises, promisesOf, requiredBy, shortfall } from "../../../phone/app/protocol/promises.js";
import { encode } from "../../../phone/app/protocol/safetensors.js";
import { utf8 } from "../../../phone/app/protocol/signing.js";
import { agentOf, stopAll, until } from "./parts.mjs";
import { INSTANCE, NOTHING, PLAN, SmallServer } from "./small_server.mjs";

const CASES = JSON.parse(readFileSync(new URL("../../vectors/promises.json", import.meta.url), "utf8"));
const NAMES = {
  mode: "mode",
  min_devices: "minDevices",
  min_colluding_share: "minColludingShare",
  min_noise: "minNoise",
  min_example_noise: "minExampleNoise",
  voucher: "voucher",
};
const inJavaScript = (fields) => fields && Object.fromEntries(Object.entries(fields).map(([name, value]) => [NAMES[name], value]));

test("promises, requirements and words are Python's", () => {
  for (const { secure, training, pinned, settings, promised, required, shortfall: reason, words } of CASES) {
    const found = promisesOf({ secure: { clip_norm: null, noise_multiplier: 0, voucher: null, ...secure }, training });
    assert.deepEqual(found, inJavaScript(promised));
    const needed = requiredBy({ pinned: inJavaScript(pinned), requires: inJavaScript(settings) });
    assert.deepEqual(needed, inJavaScript(required));
    assert.equal(shortfall(found, needed), reason);
    assert.equal(describePromises(needed), words);
  }
  assert.ok(CASES.some(({ shortfall: reason }) => reason) && CASES.some(({ shortfall: reason }) => !reason));
});

const servers = [];
after(async () => {
  await stopAll();
  await Promise.all(servers.map((server) => server.stop()));
});

async function started(promises = NOTHING) {
  const server = await SmallServer.start();
  server.promises = promises;
  servers.push(server);
  return server;
}

const MASKED = { ...PLAN, secure: { mode: "masked", min_devices: 5, colluding_share: 0.3, clip_norm: 10, noise_multiplier: 1.1 } };
const PROMISED = { ...NOTHING, mode: "masked", min_devices: 5, min_colluding_share: 0.3, min_noise: 1.1 };
const LOOSER = {
  off: { ...MASKED, secure: { ...MASKED.secure, mode: "off" } },
  "fewer devices": { ...MASKED, secure: { ...MASKED.secure, min_devices: 3 } },
  "less noise": { ...MASKED, secure: { ...MASKED.secure, noise_multiplier: 1 } },
  "more who collude": { ...MASKED, secure: { ...MASKED.secure, colluding_share: 0.2 } },
};

const NO_SUMS = encode([
  ["params/head.bias", { shape: [2], data: new Float32Array(2) }],
  ["sums/gram", { shape: [10], data: new BigInt64Array(10) }],
  ["sums/moment", { shape: [4, 2], data: new BigInt64Array(8) }],
  ["sums/clients", { shape: [], data: new BigInt64Array(1) }],
]);

async function collect(server, plan, changes = {}) {
  const model = await server.blob(NO_SUMS);
  await server.announce({ state: "collecting", round: 1, plan, model, feature_model: await server.blob(utf8("a network")), ...changes });
}

async function wait(server, plan) {
  await server.announce({ plan, feature_model: await server.blob(utf8("a network")) });
}

for (const [what, plan] of Object.entries(LOOSER)) {
  test(`a plan with ${what} is refused, signed, and nothing is sent, by a federation made anew as well`, async () => {
    const server = await started(PROMISED);
    const { agent, stop } = await agentOf(server);
    await wait(server, MASKED);
    await until(() => server.statuses.at(-1)?.state === "ready");
    for (const instance of [INSTANCE, "f".repeat(32)]) {
      await collect(server, plan, { instance });
      const said = await until(() => server.statuses.findLast(({ refusal }) => refusal?.includes(instance)));
      const { reason, ...about } = await server.openRefusal("refusal", said.refusal);
      assert.deepEqual([about.instance, said.state, said.examples], [instance, "collecting", 0]);
      assert.ok(reason && said.detail.includes(reason), said.detail);
      assert.equal(agent.state().name, "not_taking_part");
      assert.ok(agent.state().offered && agent.state().reason.includes(reason));
    }
    assert.equal(server.begun.length, 0);
    await wait(server, MASKED);
    await until(() => !server.statuses.at(-1).refusal && server.statuses.at(-1).state === "ready");
    await stop();
  });
}

test("what the enrolment promised is pinned, not what is announced first", async () => {
  const server = await started(PROMISED);
  const { agent, stop } = await agentOf(server);
  await collect(server, LOOSER.off);
  await until(() => server.statuses.findLast(({ refusal }) => refusal));
  assert.equal(server.begun.length, 0);
  assert.ok(agent.state().required.includes("at least 5 devices"));
  await stop();
});

test("a pin outlives the page, and the person alone loosens it, having seen what is promised", async () => {
  const server = await started(PROMISED);
  const first = await agentOf(server);
  await wait(server, MASKED);
  await until(() => first.agent.memory.pinned);
  await first.stop();
  await collect(server, LOOSER.off);
  const { agent, stop } = await agentOf(server, { store: first.store });
  await until(() => server.statuses.findLast(({ refusal }) => refusal));
  await assert.rejects(agent.acceptPlan("The server learns nothing."), /changed its plan/);
  assert.equal(server.begun.length, 0);
  await agent.acceptPlan(agent.state().offered);
  await until(() => agent.memory.uploads.length === 1);
  assert.equal(agent.state().required, "The server may see what this device sends.");
  await stop();
});

test("the person requires more than was promised, and what waits is not sent in clear any more", async () => {
  const server = await started();
  const { agent, stop } = await agentOf(server);
  const away = (path) => (path.endsWith("/begin") ? { status: 503 } : null);
  server.instead = { length: 1, 0: away, shift: () => {} };
  await collect(server, PLAN);
  await until(() => agent.outbox.length === 1);
  await agent.setRequires({ mode: "masked", minDevices: 50 });
  await until(() => server.statuses.findLast(({ refusal }) => refusal));
  server.instead = [];
  await wait(server, { ...MASKED, secure: { ...MASKED.secure, min_devices: 50 } });
  await until(() => !server.statuses.at(-1).refusal);
  await until(() => !agent.outbox.length);
  assert.equal(server.begun.length, 0);
  await agent.setRequires(null);
  await wait(server, MASKED);
  await until(() => !agent.memory.refused);
  await stop();
});
