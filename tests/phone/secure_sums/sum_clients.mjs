// Devices of secure sums for a test in Python: a message a line on standard input, its answer a line on standard output.
import { createInterface } from "node:readline";
import { answered, base64, sumDevice } from "./parts.mjs";

const devices = new Map();

/** What a phone shows, and judges others by. */
function vouchedBy({ voucher, key, revoked, nowMs }) {
  const vouchers = { key: new Uint8Array(Buffer.from(key, "base64")), revoked, nowMs };
  return { voucher: new TextEncoder().encode(voucher), vouchers };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { sum, device, identity, seed, event, about, vouching } = JSON.parse(line);
  const known = devices.get(`${sum}/${device}`) ?? {
    own: { ...(await sumDevice(device, Buffer.from(identity, "base64"), seed)), ...(vouching && vouchedBy(vouching)) },
  };
  const step = await answered(known.own, event.kind === "request" ? null : known.state, event, about);
  devices.set(`${sum}/${device}`, { ...known, state: step.state });
  const { kind, payload, vector } = step.message ?? {};
  const message = step.message ? { kind, payload: base64(payload), vector: base64(vector) } : null;
  console.log(JSON.stringify({ stage: step.state.stage, reason: step.reason ?? "", message }));
}
