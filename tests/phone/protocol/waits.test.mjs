// How long a phone waits, and what it takes for heard: a server that refuses is not asked again at once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Connection } from "../../../phone/app/protocol/connection.js";
import { UnreachableError } from "../../../phone/app/protocol/errors.js";
import { Backoff } from "../../../phone/app/protocol/backoff.js";
import { exchange } from "../../../phone/app/protocol/server.js";
import { wrap } from "../../../phone/app/protocol/signing.js";
import { StatusSender } from "../../../phone/app/protocol/status_sender.js";

test("a status that is refused is said again after growing waits", async () => {
  const ended = new AbortController();
  const waits = [];
  const wait = async (ms) => void (waits.push(ms) === 8 && ended.abort());
  const statusSender = new StatusSender({ now: () => 0, wait });
  const refuses = {
    status: async () => {
      throw new Error("422: no status");
    },
  };
  statusSender.repeat();
  await assert.rejects(statusSender.keep(refuses, {}, () => ({ state: "ready" }), () => {}, ended.signal));
  assert.ok(waits[0] <= 2000 && waits[7] >= 30_000 && waits[7] <= 60_000, String(waits));
});

test("an event that could not be stored is asked for again", async () => {
  const keys = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
  const offer = { instance: "0123456789abcdef0123456789abcdef", epoch: 1, rollout: 3 };
  const data = await wrap(keys.privateKey, "offer", "f", "d", JSON.stringify(offer));
  const asked = [];
  const server = {
    async *messages(lastId, _signal, onOpen) {
      asked.push(lastId);
      onOpen();
      yield { id: "a-1", name: "offer", data };
    },
  };
  let full = true;
  const heard = [];
  const listener = {
    connected() {},
    offered: async ({ rollout }) => {
      if (full) throw new Error("the storage is full");
      heard.push(rollout);
    },
  };
  const who = { serverKey: keys.publicKey, federation: "f", device: "d", session: "s" };
  const clock = { now: () => 0, wait: async () => {} };
  const connection = new Connection(server, who, listener, clock, new Backoff(clock, () => {}));
  const { signal } = new AbortController();
  assert.match((await connection.once(signal)).ended, /storage is full/);
  full = false;
  await connection.once(signal);
  await connection.once(signal);
  assert.deepEqual([asked, heard], [["", "", "a-1"], [3, 3]]);
});

/** A server that is not there, at a time that waits alone move on, for so many hours; what was waited, in seconds. */
async function whileAway(hours, answers = () => false) {
  let nowMs = 0;
  const [waits, told, ended] = [[], [], new AbortController()];
  const wait = async (ms) => {
    waits.push(ms / 1000);
    nowMs += ms;
    if (nowMs > hours * 3_600_000) ended.abort();
  };
  const clock = { now: () => nowMs, wait };
  const backoff = new Backoff(clock, () => told.push(backoff.retry));
  const server = {
    async *messages(_lastId, _signal, onOpen) {
      if (!answers(nowMs)) throw new UnreachableError("nobody answers");
      onOpen();
      nowMs += 60_000;
    },
  };
  const listener = { connected() {}, disconnected() {} };
  const connection = new Connection(server, { session: "s" }, listener, clock, backoff);
  await assert.rejects(connection.keep(ended.signal));
  return { waits, told };
}

test("a server that is gone for good is asked for once an hour, which is said", async () => {
  const { waits, told } = await whileAway(48);
  assert.ok(waits[0] <= 0.5 && Math.max(...waits.slice(0, 15)) <= 30, String(waits.slice(0, 15)));
  assert.ok(waits.length < 48 * 2 + 60, `${waits.length} tries in two days`);
  assert.ok(waits.at(-1) >= 1800 && waits.at(-1) <= 3600, String(waits.at(-1)));
  const said = told.filter(Boolean);
  const first = waits.findIndex((_, i) => waits.slice(0, i).reduce((sum, each) => sum + each, 0) >= 600);
  assert.equal(said.length, waits.length - first, "said from ten minutes on");
  assert.ok(said.every(({ sinceMs, nextMs }, i) => sinceMs === 0 && nextMs > (said[i - 1]?.nextMs ?? 0)));
  assert.equal(told.at(-1), null, "while it is tried it is not said");
});

test("a server that was gone and is back is looked for as at first", async () => {
  const back = 5 * 3_600_000;
  const { waits, told } = await whileAway(8, (nowMs) => nowMs > back && nowMs < back + 7_200_000);
  const long = waits.findIndex((seconds) => seconds > 600);
  assert.ok(long > 0 && waits.slice(long).some((seconds) => seconds < 1), String(waits));
  assert.ok(told.findLast(Boolean).sinceMs > back, "since it was lost again");
});

test("who is at the phone cuts a long wait short", async () => {
  const ended = new AbortController();
  const hung = (ms, signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const backoff = new Backoff({ now: () => 0, wait: hung }, () => {});
  const first = backoff.wait(ended.signal);
  backoff.retryNow();
  await first;
  const second = backoff.wait(ended.signal);
  ended.abort(new Error("the page is closed"));
  await assert.rejects(second, /page is closed/);
});

/** A body that comes in pieces, one for each call; it breaks off with the request. */
function slow(signal, pieces) {
  let next = () => {};
  const body = new ReadableStream({
    start(controller) {
      signal.addEventListener("abort", () => controller.error(signal.reason));
      next = () => (pieces-- ? controller.enqueue(new Uint8Array(10)) : controller.close());
    },
  });
  return { body, next: () => next() };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a large file may take its time, and a server that falls silent is left", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let part;
  const ask = async (_url, { signal }) => {
    part = slow(signal, 4);
    return new Response(part.body);
  };
  const answer = exchange(ask, "https://gaitway.example/x", {});
  for (let piece = 0; piece < 5; piece++) {
    await settled();
    t.mock.timers.tick(25_000);
    part.next();
  }
  assert.equal((await answer).body.length, 40);
  const silent = exchange(ask, "https://gaitway.example/x", {});
  const left = assert.rejects(silent, (error) => error instanceof UnreachableError && /nothing for 30 s/.test(error));
  await settled();
  part.next();
  await settled();
  t.mock.timers.tick(31_000);
  await left;
});
