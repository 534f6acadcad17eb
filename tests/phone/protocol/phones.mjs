// Phones of a real server: reads {links, ort, dim} on standard input, and writes what was sent and heard. One sends after
// the other: the first its sums, the second its own, the first again with more windows; then the second withdraws and
// leaves. Each is stopped once within an upload, and begun again with the same store.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Embedder } from "../../../phone/app/learning/embedder.js";
import { Learner } from "../../../phone/app/learning/learner.js";
import { withCopies } from "../../../phone/app/training/window_changes.js";
import { solveHeads } from "../../../phone/app/learning/heads.js";
import { Agent } from "../../../phone/app/protocol/agent.js";
import { beginEnrolment, readEnrolmentLink, sayLeft } from "../../../phone/app/protocol/enrolment.js";
import { methodOf, sharedSums } from "../../../phone/app/protocol/versions.js";
import { readAcknowledgement } from "../../../phone/app/protocol/messages.js";
import { CLOCK, Server } from "../../../phone/app/protocol/server.js";
import { toBase64, unwrap } from "../../../phone/app/protocol/signing.js";
import { Tokens } from "../../../phone/app/protocol/token.js";
import { MemoryStore, until } from "./parts.mjs";

/** Nobody waits for long: neither for the operator's approval nor for another try. */
const HASTY = { now: CLOCK.now, wait: (ms, signal) => CLOCK.wait(Math.min(ms, 300), signal) };
const given = JSON.parse(readFileSync(0, "utf8"));

/** Without ONNX Runtime (make phone) embeddings are the first numbers of a window: the server cannot know. */
const FIRST_NUMBERS = {
  load: async () => ({ orientationFree: [], gravity: [] }),
  embed: async (x) =>
    Float32Array.from({ length: (x.length / 768) * given.dim }, (_, i) => {
      return x[768 * Math.floor(i / given.dim) + (i % given.dim)];
    }),
};

async function embedder() {
  if (!given.ort) return FIRST_NUMBERS;
  const ort = await import(pathToFileURL(`${given.ort}/ort.wasm.min.mjs`).href);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = readFileSync(`${given.ort}/ort-wasm-simd-threaded.wasm`);
  return new Embedder(ort);
}

function windows(seed, count, labels = ["still", "walking"]) {
  let state = seed;
  const noise = () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5;
  return Array.from({ length: count }, (_, i) => ({
    id: i,
    startMs: 1.79e12 + 2560 * i,
    x: Float32Array.from({ length: 768 }, (_, n) => noise() + (n % 6 === 2 ? 9.8 : 0) + (i % 2) * Math.sin(n / 9) * 3),
    label: labels[i % labels.length],
    session: "a",
  }));
}

class Phone {
  constructor(link, seed) {
    this.link = readEnrolmentLink(link);
    this.store = new MemoryStore();
    this.seed = seed;
    this.store.stored = windows(seed, 80);
    this.begun = [];
    this.stopped = false;
    this.waited = false;
    this.urls = new Set();
    this.chunks = {};
  }

  async start() {
    this.ended = new AbortController();
    const parts = {
      store: this.store,
      learner: new Learner(),
      embedder: await embedder(),
      clock: HASTY,
      ask: this.ask.bind(this),
    };
    this.agent = new Agent({ ...parts, onState: ({ name }) => (this.waited ||= name === "waiting_for_approval") });
    this.running = this.agent.run(this.ended.signal);
    this.running.catch((error) => console.error(error));
  }

  async ask(url, request) {
    this.urls.add(String(url));
    if (String(url).endsWith("/begin")) this.begun.push(toBase64(new Uint8Array(request.body)));
    const chunk = /update\/([^/]+)\/chunk\/(\d+)$/.exec(String(url));
    if (chunk) (this.chunks[chunk[1]] ??= [])[Number(chunk[2])] = toBase64(new Uint8Array(request.body));
    const answer = await fetch(url, request);
    if (String(url).includes("/chunk/0") && !this.stopped) {
      this.stopped = true;
      this.ended.abort();
      void this.running.then(() => this.start());
    }
    return answer;
  }

  /** Begin the last update again, after it was accepted: the answer is the same. */
  async again() {
    const { server: url, federation, device, keys } = await this.store.get("enrolment");
    const server = new Server(
      { url, federation, device },
      new Tokens({ url, federation, device, key: keys.privateKey }),
    );
    const begin = Uint8Array.from(atob(this.begun.at(-1)), (each) => each.charCodeAt(0));
    const { update_id, nonce } = JSON.parse(new TextDecoder().decode(unwrap(begin).body));
    const answer = readAcknowledgement(unwrap(await server.update(update_id, "begin", begin)).body);
    return { status: answer.status, same: answer.nonce === nonce && answer.update_id === update_id };
  }
}

const phones = given.links.map((link, i) => new Phone(link, 17 + i));
const [first, second] = phones;
const states = () =>
  JSON.stringify(
    phones.map(({ agent }) => agent?.state()),
    (key, value) => (["plan", "weight", "bias"].includes(key) ? undefined : value),
  );
/** Until a phone has so many answers, and the server has published so many versions. */
const answered = (phone, count, version) =>
  until(
    () => phone.agent.memory.uploads.length >= count && phone.agent.state().version >= version,
    states,
    60,
  );
for (const phone of phones) {
  await beginEnrolment(phone.store, phone.link);
  await phone.start();
  await answered(phone, 1, phones.indexOf(phone) + 1);
}
first.store.stored = windows(first.seed, 160);
first.agent.dataChanged();
await answered(first, 2, 3);
const again = await Promise.all(phones.map((phone) => phone.again()));
await second.agent.setTakesPart(false);
await answered(second, 2, 4);
await until(() => first.agent.memory.judged.startsWith("4 ") && second.agent.memory.judged.startsWith("4 "), states, 60);

const base64 = (array) => Buffer.from(array.buffer).toString("base64");
/** The heads that a phone solves of the last version, with what it sent last. */
async function headsOf({ agent, store, link }) {
  const { plan } = agent.state();
  const { file, sha256, version } = await store.get("broadcast");
  const { shared, clients } = sharedSums(file, plan);
  const { embedder: by, learner, prepared } = agent.work;
  const summed = await withCopies(prepared.train, methodOf(plan), { seed: plan.training.seed, device: link.device });
  const embeddings = await by.embed(summed.x);
  const own = await learner.sums(embeddings, summed.y, 2, methodOf(plan).clip);
  const columns = await by.load((await store.get("feature_model")).file, (await store.get("feature_model")).sha256, plan);
  const heads = await solveHeads({ shared, clients, own, method: methodOf(plan), ...columns, version, sha256 });
  return {
    embeddings: base64(embeddings),
    y: [...summed.y],
    windows: prepared.train.y.length,
    columns: columns.orientationFree,
    heads: heads.map(({ head, weight, bias }) => ({ head, weight: base64(weight), bias: base64(bias) })),
  };
}

const told = [];
for (const [i, phone] of phones.entries()) {
  const solved = await headsOf(phone);
  await until(() => phone.agent.statusSender.reported.includes('"idle"'), states);
  phone.ended.abort();
  await phone.running;
  const { uploads, adoption, sequence } = await phone.store.get("agent");
  const { waited, begun, stopped, urls, link, chunks } = phone;
  const device = { device: link.device, waited, stopped, begun, uploads, adoption, sequence, chunks, urls: [...urls] };
  told.push({ ...device, again: again[i], solved });
}
told.at(-1).untold = await sayLeft(second.store);
process.stdout.write(JSON.stringify(told), () => process.exit(0));
