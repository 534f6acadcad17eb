/**
 * How a phone comes into a federation, and says that it leaves: it shows the token of an enrolment link and a key that
 * its browser made, and claims once the operator has approved it. edge_agent/transport/enrolment.py does the same;
 * docs/rest.md has the words on the wire. Each step is stored before the next, so that a reload at any moment goes on.
 */

import { object, oneOf, orNull, text } from "./checks.js";
import { EnrolError, RevokedError, UnreachableError, WireError, messageOf } from "./errors.js";
import { readJson } from "./messages.js";
import { NAME } from "./messages.generated.js";
import { Backoff } from "./backoff.js";
import { CLOCK, exchange, reasonOf, Server } from "./server.js";
import { checkPromises, promisesIn } from "./promises.js";
import { fingerprint, pinnedKey, publicKeyOf, signed, toBase64 } from "./signing.js";
import { Tokens } from "./token.js";

export const ENROLMENT = "enrolment";
const SCHEME = "gaitway-enrol:";
const MAX_URI_CHARS = 2048;
const FIRST_WAIT_MS = 5_000;
const MAX_WAIT_MS = 60_000;
/** Whoever leaves does not wait for a server that is away. */
const LEAVE_TIMEOUT_MS = 5_000;
/** For the operator, who sees it beside the phone's name. */
const LEFT = "its owner has left the federation, and its key is deleted; to come back it needs a new token";

/** @typedef {{server: string, federation: string, device: string, token: string}} EnrolmentLink */

/**
 * @typedef {object} Enrolment what the store keeps under `ENROLMENT`
 * @property {string} server base URL @property {string} federation @property {string} device
 * @property {string} token until the server has taken it; then empty
 * @property {string} pin fingerprint of the server's key, which the token named
 * @property {CryptoKeyPair} keys Ed25519; the private one cannot be read out
 * @property {string} serverKey base64 of the server's public key, once the phone is approved; else empty
 * @property {import("./promises.js").Promises | null} promises of privacy, in the first answer; null: none came yet
 * @property {number} claimedAtS when it claimed last: the next claim must be later
 */

/** @typedef {{ask?: typeof fetch, clock?: import("./server.js").Clock, signal?: AbortSignal}} Options */

const answerOf = object(
  {
    state: oneOf("pending", "approved"),
    device: text(64),
    promises: checkPromises,
    credentials: orNull(object({ server_key: text(64) }, { others: true })),
  },
  { others: true },
);

/**
 * Read an enrolment link, or a page's address that holds one after its #; throws a WireError that does not repeat the
 * token.
 * @param {string} given @returns {EnrolmentLink}
 */
export function readEnrolmentLink(given) {
  let link = given.trim();
  if (/^https?:/i.test(link)) link = link.split("#").slice(1).join("#");
  if (/^gaitway-enrol%3a/i.test(link)) link = decoded(link);
  if (given.length > 2 * MAX_URI_CHARS || link.length > MAX_URI_CHARS || !link.toLowerCase().startsWith(SCHEME)) {
    throw new WireError(
      "this is no enrolment link: it begins with gaitway-enrol:?server=…; scan the operator's code, or copy the link " +
        "whole",
    );
  }
  const parameters = new URLSearchParams(link.slice(link.indexOf("?") + 1));
  const missing = ["server", "federation", "device", "token"].filter((name) => !parameters.get(name));
  if (missing.length || !link.includes("?")) {
    throw new WireError(`the enrolment link lacks ${missing.join(", ")}; scan the code again, or ask for another`);
  }
  const [server, federation, device, token] = ["server", "federation", "device", "token"].map(
    (name) => parameters.get(name) ?? "",
  );
  for (const [name, value] of Object.entries({ federation, device })) {
    if (!NAME.test(value))
      throw new WireError(`the enrolment link's ${name} is ${JSON.stringify(value.slice(0, 80))}, which is no name`);
  }
  if (!pinnedKey(token) || token.length > 128) {
    throw new WireError("the enrolment link holds no whole token: scan the code again, or copy the link whole");
  }
  return { server: serverOf(server), federation, device, token };
}

/** @param {string} text @returns {string} */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** @param {string} address @returns {string} */
function serverOf(address) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // refused below
  }
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    throw new WireError(
      `the enrolment link's server ${JSON.stringify(address.slice(0, 200))} is no http or https address`,
    );
  }
  return url.href.replace(/\/+$/, "");
}

/** @param {import("../types.js").Store} store @returns {Promise<Enrolment | null>} */
export async function storedEnrolment(store) {
  return (await store.get(ENROLMENT)) ?? null;
}

/**
 * Begin with a link: a key pair is made and stored before anything is sent. The same link again goes on with the key
 * that is there: the name belongs to it.
 * @param {import("../types.js").Store} store @param {EnrolmentLink} link @returns {Promise<Enrolment>}
 */
export async function beginEnrolment(store, link) {
  const known = await storedEnrolment(store);
  const same =
    known && known.server === link.server && known.federation === link.federation && known.device === link.device;
  const { token, ...names } = link;
  /** @type {Enrolment} */
  const begun = {
    ...names,
    token,
    pin: pinnedKey(token),
    keys: same ? known.keys : await newKeys(),
    serverKey: "",
    promises: same ? known.promises : null,
    claimedAtS: same ? known.claimedAtS : 0,
  };
  await store.set(ENROLMENT, begun);
  return begun;
}

/** @returns {Promise<CryptoKeyPair>} */
async function newKeys() {
  if (!globalThis.crypto?.subtle) {
    throw new EnrolError(
      "browsers make keys for pages over HTTPS only (or localhost): open the server's https address",
    );
  }
  try {
    return /** @type {CryptoKeyPair} */ (await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]));
  } catch {
    throw new EnrolError(
      "this browser has no Ed25519 keys: update it (Chrome from 137, Firefox from 129, Safari from 17), or take " +
        "another",
    );
  }
}

/**
 * Show the token where the server has not taken it yet, else claim; what came of it is stored.
 * @param {import("../types.js").Store} store @param {Options} [options]
 * @returns {Promise<Enrolment>} approved if it has a `serverKey`; throws an EnrolError or an UnreachableError
 */
export async function continueEnrolment(store, options = {}) {
  const known = await storedEnrolment(store);
  if (!known) throw new EnrolError("this phone has not enrolled yet: open the operator's link, or scan the code");
  if (known.serverKey) return known;
  if (!known.token) return claim(store, known, options);
  const shown = await showToken(store, known, options);
  // an earlier answer to the same token was lost, with the server's key in it
  return shown.approved && !shown.enrolment.serverKey ? claim(store, shown.enrolment, options) : shown.enrolment;
}

/**
 * Go on until the operator has approved the phone; `onWait` hears why it waits. Throws an EnrolError where waiting does
 * not help.
 * @param {import("../types.js").Store} store @param {(reason: string) => void} onWait
 * @param {Options} [options] @param {Backoff} [backoff] @returns {Promise<Enrolment>}
 */
export async function waitForApproval(store, onWait, options = {}, backoff = approvalBackoff(options.clock)) {
  for (;;) {
    try {
      const found = await continueEnrolment(store, options);
      if (found.serverKey) return found;
      backoff.answered();
      onWait("the operator has not approved this phone yet");
    } catch (error) {
      if (!(error instanceof UnreachableError)) throw error;
      onWait(error.message);
    }
    await backoff.wait(options.signal);
  }
}

/** Whoever approves a phone takes minutes. @param {import("./server.js").Clock} [clock] @param {() => void} [onChange] */
export function approvalBackoff(clock = CLOCK, onChange = () => {}) {
  return new Backoff(clock, onChange, { minMs: FIRST_WAIT_MS, maxMs: MAX_WAIT_MS });
}

/**
 * Tell the server that this phone leaves, by the status that a native device says at its end. Its key is to be deleted
 * then: whatever else the server knows opens nothing without it.
 * @param {import("../types.js").Store} store @param {Options} [options]
 * @returns {Promise<string>} why it was not told; empty where it was, or where there was nothing to leave
 */
export async function sayLeft(store, options = {}) {
  const known = await storedEnrolment(store);
  if (!known) return "";
  if (!known.serverKey) return "the phone was not enrolled yet";
  const clock = options.clock ?? CLOCK;
  const [late, over] = [new AbortController(), new AbortController()];
  const waited = clock.wait(LEAVE_TIMEOUT_MS, over.signal).then(() => late.abort());
  const { server: url, keys, ...who } = known;
  const by = { ...options, clock, signal: late.signal };
  const server = new Server({ ...who, url }, new Tokens({ ...who, url, key: keys.privateKey }, by), by);
  try {
    await server.status({ schema_version: 1, state: "offline", detail: LEFT }, late.signal);
    return "";
  } catch (error) {
    return late.signal.aborted ? `it has not answered for ${LEAVE_TIMEOUT_MS / 1000} s` : messageOf(error);
  } finally {
    over.abort();
    await waited.catch(() => {});
  }
}

/** @param {import("../types.js").Store} store @param {Enrolment} known @param {Options} options */
async function showToken(store, known, options) {
  const { federation, device, token, keys } = known;
  const body = {
    token,
    federation,
    device,
    public_key: toBase64(new Uint8Array(await crypto.subtle.exportKey("raw", keys.publicKey))),
    signature: await signed(keys.privateKey, "enrol", federation, device, token),
  };
  const answer = await post(known, "v1/enrol", body, [201], options);
  const enrolment = { ...known, token: "", ...(await kept(known, answer)) };
  await store.set(ENROLMENT, enrolment);
  return { enrolment, approved: answer.state === "approved" };
}

/**
 * @param {import("../types.js").Store} store @param {Enrolment} known @param {Options} options
 * @returns {Promise<Enrolment>}
 */
async function claim(store, known, options) {
  const { federation, device, keys } = known;
  const nowS = Math.floor((options.clock ?? CLOCK).now() / 1000);
  const issuedAt = Math.max(nowS, known.claimedAtS + 1);
  await store.set(ENROLMENT, { ...known, claimedAtS: issuedAt });
  const signature = await signed(keys.privateKey, "claim", federation, device, String(issuedAt));
  const answer = await post(
    known,
    "v1/enrol/claim",
    { federation, device, issued_at: issuedAt, signature },
    [200, 202],
    options,
  );
  const enrolment = { ...known, claimedAtS: issuedAt, ...(await kept(known, answer)) };
  await store.set(ENROLMENT, enrolment);
  return enrolment;
}

/**
 * What is kept of an answer: the server's key, and of the first one what it promises of privacy.
 * @param {Enrolment} known @param {ReturnType<typeof answerOf>} answer
 */
async function kept(known, answer) {
  return { serverKey: await serverKeyOf(known, answer), promises: known.promises ?? promisesIn(answer.promises) };
}

/**
 * The server's key in an answer, which must be the one that the token names; empty without credentials.
 * @param {Enrolment} known @param {ReturnType<typeof answerOf>} answer @returns {Promise<string>}
 */
async function serverKeyOf({ server, pin }, { credentials }) {
  if (!credentials) return "";
  const actual = await fingerprint(credentials.server_key);
  if (actual !== pin) {
    throw new EnrolError(
      `${server} answers with the key ${actual || "of another form"}, but the operator's link names ${pin}: this is ` +
        "not the server that the link is from, or somebody answers in its place; nothing was kept. If the server has " +
        "a new key, ask its operator for a new link",
    );
  }
  await publicKeyOf(credentials.server_key);
  return credentials.server_key;
}

/**
 * @param {Enrolment} who @param {string} path @param {object} body @param {number[]} taken @param {Options} options
 * @returns {Promise<ReturnType<typeof answerOf>>}
 */
async function post({ server, device }, path, body, taken, { ask = (...given) => fetch(...given), signal }) {
  const request = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const answer = await exchange(ask, `${server}/${path}`, request, signal);
  if (!taken.includes(answer.status)) throw refusal(answer);
  const found = readJson(answerOf, answer.body, "answer to an enrolment");
  if (found.device !== device)
    throw new EnrolError(`the server answers about device '${found.device.slice(0, 64)}', asked was '${device}'`);
  return found;
}

/** @type {Record<number, string>} */
const WHAT_TO_DO = {
  401: "the link is not for this phone, was used, or has ended: ask the operator for a new one",
  403: "ask the operator for a new link",
  404: "is the link that of Gaitway's server?",
  409: "ask the operator for a link made for this phone's name",
  422: "is this phone's clock right? Set it to the time of the network",
};

/** @param {import("./server.js").Answer} answer @returns {Error} */
function refusal(answer) {
  const problem = `the server refuses this phone: ${reasonOf(answer)}`;
  if (answer.status >= 500 || answer.status === 429)
    return new UnreachableError(`${problem}; this is tried again by itself`);
  const words = `${problem}; ${WHAT_TO_DO[answer.status] ?? "ask the operator"}`;
  return answer.status === 403 ? new RevokedError(words) : new EnrolError(words);
}
