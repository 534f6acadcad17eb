// Bytes that nobody should send: each is refused with words, and without reading out of bounds.
import assert from "node:assert/strict";
import { test } from "node:test";
import { WireError } from "../../../phone/app/protocol/errors.js";
import { EventReader } from "../../../phone/app/protocol/event_stream.js";
import { checkOrder, readAcknowledgement, readAnnouncement } from "../../../phone/app/protocol/messages.js";
import { Safetensors, encode } from "../../../phone/app/protocol/safetensors.js";
import { Server } from "../../../phone/app/protocol/server.js";
import { fromBase64, utf8 } from "../../../phone/app/protocol/signing.js";
import { INSTANCE, PLAN } from "./small_server.mjs";
import { methodOf } from "../../../phone/app/protocol/versions.js";

const json = (value) => utf8(JSON.stringify(value));
const pointer = { sha256: "a".repeat(64), size: 5, url: "/v1/blobs/x" };
const announcement = {
  federation: "walk",
  instance: INSTANCE,
  state: "waiting",
  round: 0,
  plan: PLAN,
  created: 1.5,
  expires: 2_000_000_000,
};

test("messages are bounded and hold what they should", () => {
  assert.equal(readAnnouncement(json(announcement)).chunk_bytes, 128 * 1024);
  const wrong = [
    [{ ...announcement, surprise: 1 }, "unknown key"],
    [{ ...announcement, instance: "A".repeat(32) }, "instance"],
    [{ ...announcement, epoch: 2 ** 53 }, "epoch"],
    [{ ...announcement, epoch: 1.5 }, "epoch"],
    [{ ...announcement, chunk_bytes: 10 }, "chunk_bytes"],
    [{ ...announcement, model: { ...pointer, size: -1 } }, "model.size"],
    [{ ...announcement, model: { ...pointer, sha256: "../etc" } }, "model.sha256"],
    [{ ...announcement, feature_model: { ...pointer, url: "x".repeat(2000) } }, "feature_model.url"],
    [{ ...announcement, plan: { ...PLAN, labels: [] } }, "plan.labels"],
    [{ ...announcement, plan: { ...PLAN, labels: ["a", "a"] } }, "twice"],
    [{ ...announcement, plan: { ...PLAN, labels: ["a", 5] } }, "plan.labels[1]"],
    [{ ...announcement, plan: null }, "plan"],
    [{ ...announcement, plan: { ...PLAN, training: { ...PLAN.training, lr: 0 } } }, "plan.training.lr"],
    [{ ...announcement, plan: { ...PLAN, training: { ...PLAN.training, lr: "1" } } }, "plan.training.lr"],
    [{ ...announcement, plan: { ...PLAN, rollout: { waves: [2] } } }, "plan.rollout.waves[0]"],
    [{ ...announcement, plan: { ...PLAN, data: { input: { shape: [3, 96] } } } }, "plan.data.input.shape"],
    [{ ...announcement, plan: { ...PLAN, packages: { "models:x": 1 } } }, "plan.packages.models:x"],
    [
      {
        ...announcement,
        model: { ...pointer, score: { value: 1, trivial: 0, devices: 1, working: 2, measured: "version" } },
      },
      "2 of 1",
    ],
    [[announcement], "an object"],
    ["x", "an object"],
  ];
  for (const [said, words] of wrong)
    assert.throws(
      () => readAnnouncement(json(said)),
      (error) => error instanceof WireError && error.message.includes(words),
      words,
    );
  assert.throws(() => readAnnouncement(utf8("{".repeat(9000))), /not JSON/);
  assert.throws(() => readAnnouncement(utf8("[".repeat(200_000))), WireError);
  assert.throws(() => readAnnouncement(new Uint8Array(256 * 1024 + 1)), /at most/);
  assert.throws(() => readAnnouncement(Uint8Array.of(0xff, 0xfe)), WireError);
  assert.throws(() => readAcknowledgement(json({ update_id: "../x", status: "accepted" })), /update_id/);
  assert.throws(() => readAcknowledgement(json({ update_id: "x", status: "forget" })), /status/);
  const own = utf8(JSON.stringify(announcement).replace("{", `{"__proto__":1,`));
  assert.throws(() => readAnnouncement(own), /unknown key/);
  const before = { macro_f1: 812_000, most_frequent: 111_000, devices: 5, working: 4, measured: "version" };
  assert.throws(() => readAnnouncement(json({ ...announcement, model: { ...pointer, score: before } })), /macro_f1/);
});

test("announcements are ordered by epoch and serial", () => {
  const a = (epoch, serial, more = {}) => ({ ...readAnnouncement(json({ ...announcement, epoch, serial })), ...more });
  const newest = { epoch: 3, serial: 7 };
  assert.deepEqual(checkOrder(a(3, 7), "walk", newest, 0), newest);
  assert.deepEqual(checkOrder(a(4, 1), "walk", newest, 0), { epoch: 4, serial: 1 });
  assert.throws(() => checkOrder(a(3, 6), "walk", newest, 0), /an old one/);
  assert.throws(() => checkOrder(a(2, 9), "walk", newest, 0), /goes back to no older/);
  assert.throws(() => checkOrder(a(3, 8), "walk", newest, 2.1e12), /expired/);
  assert.throws(() => checkOrder(a(3, 8, { expires: null }), "walk", newest, 0), /until when/);
  assert.throws(() => checkOrder(a(3, 8), "run", newest, 0), /is of federation 'walk'/);
});

test("a stream's lines and events are bounded", () => {
  const reader = new EventReader();
  const piece = new Uint8Array(100_000).fill(97);
  assert.throws(() => {
    for (let i = 0; i < 5; i++) reader.take(piece);
  }, /longer than any message/);
  const other = new EventReader();
  const line = utf8(`data: ${"a".repeat(60_000)}\n`);
  assert.throws(() => {
    for (let i = 0; i < 6; i++) other.take(line);
  }, /no message is so large/);
  const third = new EventReader();
  assert.deepEqual(
    third.take(utf8(": comment\nunknown: x\ndata\n\nevent: x\n\n")).map(({ name, data }) => [name, data.length]),
    [["message", 0]],
  );
  assert.equal(third.take(utf8("data:a\r\ndata: b\r\n\r\n"))[0].data.join(), utf8("a\nb").join());
});

/** A safetensors file of any header. */
function file(header, size = 8) {
  const head = typeof header === "string" ? utf8(header) : json(header);
  const found = new Uint8Array(8 + head.length + size);
  new DataView(found.buffer).setBigUint64(0, BigInt(head.length), true);
  found.set(head, 8);
  return found;
}

test("broken safetensors are refused", () => {
  const good = { dtype: "F32", shape: [2], data_offsets: [0, 8] };
  assert.deepEqual([...new Safetensors(file({ x: good }), 1000).float32("x", [2])], [0, 0]);
  const huge = new Uint8Array(16);
  new DataView(huge.buffer).setBigUint64(0, 2n ** 63n, true);
  const wrong = [
    [new Uint8Array(7), "not safetensors"],
    [huge, "header of"],
    [file("{"), "not JSON"],
    [file("[]"), "no object"],
    [file({ x: null }), "type"],
    [file({ x: { ...good, dtype: "U8" } }), "does not carry"],
    [file({ x: { ...good, dtype: "toString" } }), "does not carry"],
    [file({ x: { ...good, shape: [3] } }), "do not hold"],
    [file({ x: { ...good, shape: [-2] } }), "no shape"],
    [file({ x: { ...good, shape: [2 ** 52, 2 ** 52] } }), "do not hold"],
    [file({ x: { ...good, shape: "2" } }), "no shape"],
    [file({ x: { ...good, data_offsets: [0, 2 ** 60] } }), "offsets"],
    [file({ x: { ...good, data_offsets: [8, 16] } }), "do not hold"],
    [file({ x: { ...good, data_offsets: [8, 0] } }), "do not hold"],
    [file({ x: good, y: good }), "overlap"],
    [file({ x: good }, 12), "describes"],
    [file({}), "describes"],
  ];
  for (const [bytes, words] of wrong) {
    assert.throws(
      () => new Safetensors(bytes, 1000),
      (error) => error instanceof WireError && error.message.includes(words),
      words,
    );
  }
  assert.throws(() => new Safetensors(file({ x: good }), 10), /at most 10/);
  const read = new Safetensors(file({ x: good }), 1000);
  assert.throws(() => read.float32("x", [1, 2]), /of shape/);
  assert.throws(() => read.float32("y", [2]), /no tensor y/);
  assert.throws(() => encode([["x", { shape: [3], data: new Float32Array(2) }]]), /has 2 numbers/);
  assert.throws(() => encode([["1", { shape: [2], data: new Float32Array(2) }]]), /cannot be called/);
});

test("base64 is strict", () => {
  assert.equal(fromBase64("AAAA", 3).length, 3);
  for (const text of ["AAA", "AA=A", "AA A", "AA==", "AAAA\n", "A-_A"]) assert.equal(fromBase64(text, 3), null, text);
});

test("a pointer leads to the server's own origin alone", () => {
  const server = new Server(
    { url: "https://gaitway.example/base", federation: "f", device: "d" },
    { get: async () => "", drop() {} },
  );
  assert.equal(server.placeOf("/v1/blobs/x").href, "https://gaitway.example/base/v1/blobs/x");
  assert.equal(server.placeOf("https://gaitway.example/y").href, "https://gaitway.example/y");
  for (const url of [
    "http://gaitway.example/y",
    "https://gaitway.example:444/y",
    "//elsewhere/y",
    "https://u@gaitway.example/y",
    "javascript:1",
    "https:\\\\elsewhere/y",
    "/\\elsewhere",
    "data:,x",
    "http://[",
  ]) {
    assert.throws(() => server.placeOf(url), /are fetched from/, url);
  }
});

test("a method's options beyond their bounds are refused, and missing ones have the defaults of every device", () => {
  const { ridge, rotations, degrees, sensor_loss } = methodOf({ method: { name: "analytic" } });
  assert.deepEqual([ridge, rotations, degrees, sensor_loss], [1e-2, 0, 180, false]);
  const wrong = [
    ...[{ rotations: 17 }, { rotations: -1 }, { rotations: 0.5 }, { rotations: "1" }, { rotations: NaN }],
    ...[{ degrees: 0 }, { degrees: 181 }, { degrees: NaN }, { sensor_loss: 1 }, { sensor_loss: "true" }],
    ...[{ ridge: 0 }, { clip: 9 }, { own_weight: NaN }, { floor: -1 }, { orientation_free_share: 2 }],
  ];
  for (const options of wrong) {
    assert.throws(() => methodOf({ method: { name: "analytic", ...options } }), /expected/, JSON.stringify(options));
  }
});
