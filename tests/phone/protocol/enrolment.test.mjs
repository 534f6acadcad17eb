// How a phone comes in: links, keys, tokens, approval, and what a reload or a wrong server does to it.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import {
  beginEnrolment,
  continueEnrolment,
  readEnrolmentLink,
  sayLeft,
  waitForApproval,
} from "../../../phone/app/protocol/enrolment.js";
import { EnrolError, RevokedError, UnreachableError } from "../../../phone/app/protocol/errors.js";
import { toSign, utf8 } from "../../../phone/app/protocol/signing.js";
import { Tokens } from "../../../phone/app/protocol/token.js";
import { SmallServer } from "./small_server.mjs";
import { MemoryStore, clock } from "./parts.mjs";

const servers = [];
after(() => Promise.all(servers.map((server) => server.stop())));

async function started() {
  const server = await SmallServer.start();
  servers.push(server);
  return server;
}

const TOKEN = `gwe_abc_${"0f".repeat(16)}`;
const SAID = { server: "https://gaitway.example", federation: "walk", device: "phone1", token: TOKEN };
const link = (changes = {}) => `gaitway-enrol:?${new URLSearchParams({ ...SAID, ...changes })}`;

test("links, alone and in a page's address", () => {
  const expected = { server: "https://gaitway.example", federation: "walk", device: "phone1", token: TOKEN };
  const inPage = `https://gaitway.example/phone/#${encodeURIComponent(link())}`;
  for (const given of [
    link(),
    `  ${link()}\n`,
    inPage,
    `https://gaitway.example/phone/#${link()}`,
    link({ server: "https://gaitway.example/" }),
  ]) {
    assert.deepEqual(readEnrolmentLink(given), expected);
  }
  assert.equal(readEnrolmentLink(link({ server: "https://x.example/base/" })).server, "https://x.example/base");
  const wrong = [
    ["https://gaitway.example/phone/", "no enrolment link"],
    [TOKEN, "no enrolment link"],
    ["gaitway-enrol:", "lacks"],
    [link().replace(/&token.*/, ""), "lacks token"],
    [link({ federation: "" }), "lacks federation"],
    [link({ device: "a b" }), "device"],
    [link({ device: "../x" }), "device"],
    [link({ server: "ftp://x" }), "no http or https"],
    [link({ server: "https://u:p@x" }), "no http or https"],
    [link({ server: "javascript:alert(1)" }), "no http or https"],
    [link({ token: TOKEN.slice(0, -1) }), "no whole token"],
    [`${link()}${"x".repeat(5000)}`, "no enrolment link"],
  ];
  for (const [given, words] of wrong) {
    assert.throws(
      () => readEnrolmentLink(given),
      (error) => error.message.includes(words) && !error.message.includes(TOKEN),
      given,
    );
  }
});

test("a phone is approved at once, by the operator, or after its answer was lost", async () => {
  const server = await started();
  const store = new MemoryStore();
  server.approved = false;
  const begun = await beginEnrolment(store, readEnrolmentLink(server.link));
  assert.equal(begun.keys.privateKey.extractable, false);
  const pending = await continueEnrolment(store, { clock });
  assert.deepEqual([pending.serverKey, pending.token], ["", ""]);
  server.promises = { ...server.promises, min_example_noise: 1 }; // what the first answer promised is kept
  const reasons = [];
  const waiting = waitForApproval(
    store,
    (reason) => void (reasons.push(reason), (server.approved = reasons.length > 2)),
    { clock },
  );
  const { serverKey, promises } = await waiting;
  assert.deepEqual([serverKey, promises.minExampleNoise], [server.publicKey, 0]);
  assert.match(reasons[0], /has not approved/);
  const claims = server.heard.filter(({ path }) => path.endsWith("/claim"));
  const issued = claims.map(({ body }) => JSON.parse(new TextDecoder().decode(body)).issued_at);
  assert.deepEqual(
    issued,
    [...new Set(issued)].sort((a, b) => a - b),
    "each claim is later than the one before",
  );
  const { signature, issued_at } = JSON.parse(new TextDecoder().decode(claims.at(-1).body));
  const over = toSign("claim", "walk", "phone1", utf8(String(issued_at)));
  assert.ok(await crypto.subtle.verify("Ed25519", begun.keys.publicKey, Buffer.from(signature, "base64"), over));

  const other = await started();
  const lost = new MemoryStore();
  await beginEnrolment(lost, readEnrolmentLink(other.link));
  const cut = async (...given) => {
    await fetch(...given);
    throw new TypeError("fetch failed");
  };
  await assert.rejects(continueEnrolment(lost, { clock, ask: cut }), UnreachableError);
  // the page was loaded anew, and the same link opened again: the key stays, and the name with it
  const again = await beginEnrolment(lost, readEnrolmentLink(other.link));
  assert.deepEqual(
    await crypto.subtle.exportKey("raw", again.keys.publicKey),
    await crypto.subtle.exportKey("raw", (await lost.get("enrolment")).keys.publicKey),
  );
  assert.equal((await continueEnrolment(lost, { clock })).serverKey, other.publicKey);
});

test("a server with another key than the link names gets nothing believed", async () => {
  const server = await started();
  const store = new MemoryStore();
  const given = readEnrolmentLink(server.link);
  await beginEnrolment(store, { ...given, token: `gwe_secret_${"0".repeat(32)}` });
  await assert.rejects(continueEnrolment(store, { clock }), /not the server that the link is from/);
  assert.equal((await store.get("enrolment")).serverKey, "");
});

test("each refusal has words, and says whether to wait", async () => {
  const server = await started();
  const cases = [
    [401, EnrolError, "ask the operator for a new one"],
    [403, RevokedError, "ask the operator for a new link"],
    [404, EnrolError, "is the link that of Gaitway's server"],
    [409, EnrolError, "made for this phone's name"],
    [422, EnrolError, "clock right"],
    [429, UnreachableError, "tried again by itself"],
    [503, UnreachableError, "tried again by itself"],
    [307, UnreachableError, "cannot be reached"],
  ];
  for (const [status, kind, words] of cases) {
    const store = new MemoryStore();
    await beginEnrolment(store, readEnrolmentLink(server.link));
    const headers = status === 307 ? { Location: "http://elsewhere.example/" } : {};
    server.instead = [() => ({ status, body: { detail: "because" }, headers })];
    await assert.rejects(
      continueEnrolment(store, { clock }),
      (error) => error instanceof kind && error.message.includes(words) && !error.message.includes(server.token),
      String(status),
    );
  }
  const huge = new MemoryStore();
  await beginEnrolment(huge, readEnrolmentLink(server.link));
  server.instead = [() => ({ status: 201, body: "x".repeat(2_000_000) })];
  await assert.rejects(continueEnrolment(huge, { clock }), /sends more than/);
  server.instead = [() => ({ status: 201, body: { state: "approved", device: "another", promises: server.promises } })];
  await assert.rejects(continueEnrolment(huge, { clock }), /answers about device 'another'/);
  await assert.rejects(continueEnrolment(new MemoryStore(), { clock }), /has not enrolled yet/);
});

test("who leaves says so, and does not wait for a server that is away", async () => {
  const server = await started();
  const store = new MemoryStore();
  assert.equal(await sayLeft(store, { clock }), "", "of nothing");
  await beginEnrolment(store, readEnrolmentLink(server.link));
  assert.match(await sayLeft(store, { clock }), /not enrolled yet/);
  await continueEnrolment(store, { clock });
  assert.equal(await sayLeft(store), "");
  const [{ state, detail, session }] = server.statuses;
  assert.deepEqual([state, session], ["offline", undefined]);
  assert.match(detail, /its owner has left/);
  assert.match(server.heard.at(-1).authorization, /^Bearer t\d+$/);
  server.instead = [() => ({ status: 403, body: { detail: "it was revoked" } })];
  assert.match(await sayLeft(store), /it was revoked/);
  const silent = (_url, { signal }) =>
    new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  assert.match(await sayLeft(store, { clock, ask: silent }), /not answered for 5 s/);
  const away = async () => {
    throw new TypeError("fetch failed");
  };
  assert.match(await sayLeft(store, { ask: away }), /cannot be reached/);
});

test("a token is made once, renewed before its end, and never asked for twice at one time", async () => {
  const server = await started();
  const keys = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
  let nowMs = 1_790_000_000_000;
  const who = { url: server.url, federation: "walk", device: "phone1", key: keys.privateKey };
  const tokens = new Tokens(who, { clock: { ...clock, now: () => nowMs } });
  assert.deepEqual(await Promise.all([tokens.get(), tokens.get()]), ["t1", "t1"]);
  nowMs += 800_000;
  assert.equal(await tokens.get(), "t1");
  nowMs += 41_000;
  assert.equal(await tokens.get(), "t2");
  tokens.drop("t1");
  assert.equal(await tokens.get(), "t2");
  tokens.drop("t2");
  server.instead = [() => ({ status: 409, body: { detail: "again" } })];
  assert.equal(await tokens.get(), "t3");
  const bodies = server.heard.map(({ body }) => JSON.parse(new TextDecoder().decode(body)));
  const issued = bodies.map(({ issued_at_ms }) => issued_at_ms);
  assert.equal(new Set(issued).size, issued.length);
  const over = toSign("token", "walk", "phone1", utf8(String(issued[0])));
  assert.ok(await crypto.subtle.verify("Ed25519", keys.publicKey, Buffer.from(bodies[0].signature, "base64"), over));
  for (const [status, words] of [
    [401, "new link"],
    [403, "approve"],
    [422, "clock"],
    [429, "wait some minutes"],
  ]) {
    tokens.drop("t3");
    server.instead = [() => ({ status, body: { detail: "no" } })];
    await assert.rejects(tokens.get(), (error) => error.message.includes(words), String(status));
  }
});
