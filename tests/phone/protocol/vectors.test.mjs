// What the browser writes and reads, against the bytes that Python's ends write: tests/vectors.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { EventReader } from "../../../phone/app/protocol/event_stream.js";
import { placeOf } from "../../../phone/app/protocol/releases.js";
import { Safetensors, encode } from "../../../phone/app/protocol/safetensors.js";
import {
  fromBase64,
  signed,
  textOf,
  toBase64,
  toSign,
  unwrap,
  utf8,
  verified,
  wrap,
} from "../../../phone/app/protocol/signing.js";

const vector = (name) => JSON.parse(readFileSync(new URL(`../../vectors/${name}.json`, import.meta.url), "utf8"));
const http = vector("http_transport");
const { federation, device } = http;
const PKCS8 = Buffer.from("302e020100300506032b657004220420", "hex"); // the head of RFC 8410's private key

const seed = Buffer.from(http.key_pair.seed, "base64");
const key = await crypto.subtle.importKey("pkcs8", Buffer.concat([PKCS8, seed]), "Ed25519", false, ["sign"]);
const publicKey = await crypto.subtle.importKey("raw", fromBase64(http.key_pair.public_key, 32), "Ed25519", true, [
  "verify",
]);

test("requests that prove themselves", async () => {
  for (const [kind, { issued_at, issued_at_ms, signed: over, signature }] of [
    ["token", http.token_request],
    ["claim", http.claim_request],
  ]) {
    const said = String(issued_at ?? issued_at_ms);
    assert.equal(textOf(toSign(kind, federation, device, utf8(said))), over);
    assert.equal(await signed(key, kind, federation, device, said), signature);
  }
});

test("a signed manifest, and what verifies it", async () => {
  const { body, sent } = http.signed_manifest;
  assert.equal(textOf(await wrap(key, "update", federation, device, body)), sent);
  const parts = unwrap(utf8(sent));
  assert.equal(textOf(parts.body), body);
  assert.ok(
    await crypto.subtle.verify("Ed25519", publicKey, parts.signature, toSign("update", federation, device, parts.body)),
  );
  const notice = await wrap(key, "notice", federation, device, body);
  assert.equal(textOf(await verified(publicKey, "notice", federation, device, notice)), body);
  for (const [kind, where, who] of [
    ["offer", federation, device],
    ["notice", "other", device],
    ["notice", federation, "other"],
    ["announcement", federation, device],
  ]) {
    await assert.rejects(verified(publicKey, kind, where, who, notice), /not signed by this phone's server/);
  }
  const changed = Uint8Array.from(notice);
  changed[changed.length - 2] ^= 1;
  await assert.rejects(verified(publicKey, "notice", federation, device, changed), /not signed by/);
  await assert.rejects(verified(publicKey, "notice", federation, device, utf8(body)), /is not signed, and/);
  await assert.rejects(verified(publicKey, "notice", federation, device, utf8(sent.slice(0, 50))), /begins with/);
});

test("the stream, however it is cut", () => {
  const bytes = utf8(http.stream.text);
  for (let size = 1; size <= bytes.length; size++) {
    const reader = new EventReader();
    const events = [];
    for (let at = 0; at < bytes.length; at += size) events.push(...reader.take(bytes.slice(at, at + size)));
    const found = events.map(({ id, name, data }) => ({ last_event_id: id, event: name, data: textOf(data) }));
    assert.deepEqual(found, http.stream.events);
  }
});

test("files of numbers of several types are those that are read, however far their bytes lie", () => {
  const tensors = [
    ["b/int32", { shape: [2, 2], data: Int32Array.of(1, -2, 2 ** 31 - 1, -(2 ** 31)) }],
    ["a", { shape: [3], data: Float32Array.of(0.5, -0, 1e-45) }],
    ["b/int64", { shape: [], data: BigInt64Array.of(-(2n ** 53n) + 1n) }],
  ];
  const bytes = encode(tensors);
  const read = new Safetensors(bytes, bytes.length);
  assert.deepEqual(read.int32("b/int32", [2, 2]), tensors[0][1].data);
  assert.deepEqual(read.float32("a", [3]), tensors[1][1].data);
  assert.deepEqual([...read.int64("b/int64", [])], [-(2 ** 53) + 1]);
  const header = textOf(bytes.subarray(8, read.start));
  assert.deepEqual([...header.matchAll(/"(a|b\/int\d\d)":/g)].map(([, name]) => name), ["b/int32", "a", "b/int64"]);
  const begins = tensors.map(([name]) => read.places.get(name).begin);
  assert.deepEqual(begins, [20, 8, 0], "int64 first, then float32, then int32");
  assert.throws(() => read.int32("a", [3]), /a is F32 of shape \[3\], expected I32/);
  assert.throws(() => read.float32("a", [2]), /expected F32 of shape \[2\]/);
  const infinite = encode([["a", { shape: [1], data: Float32Array.of(Infinity) }]]);
  assert.throws(() => new Safetensors(infinite, 1000).float32("a", [1]), /not finite/);
});

const PLACES = [576913, 553832, 100881];

test("a device's place of a rollout is the server's", async () => {
  // federation.rounds.rollout: seed_for(0, "rollout", version, device) % 1_000_000
  const expected = [
    ["phone1", 3, PLACES[0]],
    ["a", 0, PLACES[1]],
    ["Küche", 12, PLACES[2]],
  ];
  for (const [name, version, place] of expected) assert.equal(await placeOf(name, version), place);
});
