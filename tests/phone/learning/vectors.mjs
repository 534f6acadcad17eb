// What tests read of tests/vectors: arrays are base64 of little-endian float32 in C order.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export function vectorsOf(name) {
  return JSON.parse(readFileSync(new URL(`../../vectors/${name}`, import.meta.url), "utf8"));
}

export function floats(text) {
  const bytes = Uint8Array.from(Buffer.from(text, "base64"));
  return new Float32Array(bytes.buffer);
}

/** Equal in every bit: also minus zero from zero. */
export function assertSameBits(found, expected) {
  assert.deepEqual(new Uint8Array(found.buffer), new Uint8Array(expected.buffer));
}

export function assertNear(found, expected, tolerance) {
  assert.equal(found.length, expected.length);
  for (let i = 0; i < found.length; i++) {
    const allowed = tolerance * Math.max(1, Math.abs(expected[i]));
    assert.ok(Math.abs(found[i] - expected[i]) <= allowed, `${i}: ${found[i]}, expected ${expected[i]}`);
  }
}
