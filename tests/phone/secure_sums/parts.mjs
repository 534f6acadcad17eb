// A device of a secure sum as the tests of both languages have it: keys and random numbers follow from names.
import { createHash } from "node:crypto";
import * as client from "../../../phone/app/secure_sums/client.js";

const PKCS8 = Buffer.from("302e020100300506032b657004220420", "hex");

export async function sumDevice(name, identity, seed, { colluding = 0, minMembers = 3, groups = 1 } = {}) {
  const key = await crypto.subtle.importKey("pkcs8", Buffer.concat([PKCS8, identity]), "Ed25519", true, ["sign"]);
  const { x } = await crypto.subtle.exportKey("jwk", key);
  let calls = 0;
  const entropy = (size) => {
    const drawn = createHash("shake256", { outputLength: size }).update(`${seed}/${calls++}`).digest();
    return new Uint8Array(drawn); // a buffer of its own
  };
  return { name, key, identity: new Uint8Array(Buffer.from(x, "base64url")), colluding, minMembers, groups, entropy };
}

/** Answer one message as the page does, which may be closed after each step; the state as IndexedDB has it. */
export async function answered(device, state, { kind, body, shared, vector }, about) {
  if (!state) return client.begin(device, bytesOf(body));
  const said = { kind, body: bytesOf(body), ...(shared && { shared: bytesOf(shared) }) };
  const step = await client.step(device, structuredClone(state), said);
  if (!vector || step.reason) return step;
  const layout = new Uint8Array(Buffer.from(about.layout, "hex"));
  return client.step(device, structuredClone(step.state), { vector, bound: about.bound, layout });
}

export const bytesOf = (text) => new TextEncoder().encode(text);
export const base64 = (bytes) => Buffer.from(bytes ?? []).toString("base64");
