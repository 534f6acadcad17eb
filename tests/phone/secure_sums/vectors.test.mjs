// What a phone says in secure sums, against the bytes that Python says: tests/vectors/secure_sums.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { degreeFor, neighboursOf } from "../../../phone/app/secure_sums/neighbours.js";
import { decoded } from "../../../phone/app/protocol/safetensors.js";
import { SUM_GROUPS } from "../../../phone/app/protocol/messages.generated.js";
import { toHex } from "../../../phone/app/protocol/signing.js";
import { layoutDigest, summandOf } from "../../../phone/app/secure_sums/summand.js";
import { answered, base64, sumDevice } from "./parts.mjs";

const found = JSON.parse(readFileSync(new URL("../../vectors/secure_sums.json", import.meta.url), "utf8"));

test("the graph is Python's", async () => {
  for (const [members, colluding, lost, neighbours, threshold, quorum] of found.degrees) {
    assert.deepEqual(degreeFor(members, colluding, lost), { neighbours, threshold, quorum });
  }
  for (const [index, members, degree, seed, wanted] of found.neighbours) {
    const made = await neighboursOf(index, members, degree, new Uint8Array(Buffer.from(seed, "hex")));
    assert.deepEqual(made, wanted);
  }
});

test("what is added in a round is Python's", async () => {
  assert.deepEqual(new Set(found.changes.flatMap(({ method }) => SUM_GROUPS[method.name])), new Set(Object.values(SUM_GROUPS).flat()));
  for (const { method, upload, broadcast, examples, classes, limits, gains, layout, numbers } of found.changes) {
    const [trained, before] = [upload, broadcast].map((text) => decoded(new Uint8Array(Buffer.from(text, "base64")), 1e6));
    const made = summandOf(method, trained, before, examples, classes, limits, gains);
    assert.equal(toHex(await layoutDigest(made.layout)), layout);
    assert.deepEqual([...made.vector].map((each) => each + 0), numbers);
  }
});

for (const about of found.sums) {
  test(`each message is Python's, also the second time: ${about.name}`, async () => {
    const device = await sumDevice(about.device, Buffer.from(about.identity, "base64"), about.entropy, about);
    const said = (step) => [step.message].flatMap((each) => (each ? [inBase64(each)] : []));
    let state = null;
    for (const event of about.events) {
      const step = await answered(device, state, event, about);
      assert.equal(step.reason, undefined);
      assert.deepEqual(said(step), event.answer, event.kind);
      state = structuredClone(step.state);
      assert.deepEqual(said(await answered(device, state, event, about)), event.answer, `${event.kind} again`);
    }
    assert.equal(state.stage, "opened");
    assert.deepEqual([state.seed.length, state.maskPrivate.length, state.held.length], [0, 0, 0], "secrets are gone");
  });
}

function inBase64({ kind, payload, vector }) {
  return { kind, payload: base64(payload), vector: base64(vector) };
}
