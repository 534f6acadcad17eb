// What an agent is made of in these tests: a store that can be killed, and windows whose embeddings are given.
import { setTimeout as sleep } from "node:timers/promises";
import { classMeans } from "../../../phone/app/learning/class_means.js";
import { Agent } from "../../../phone/app/protocol/agent.js";
import { beginEnrolment, readEnrolmentLink } from "../../../phone/app/protocol/enrolment.js";

export class Killed extends Error {}

/** A browser's store; `lives` counts down with each transaction, and then nothing works any more. */
export class MemoryStore {
  constructor() {
    this.values = new Map();
    this.stored = [];
    this.lives = Infinity;
  }

  async get(key) {
    return structuredClone(this.values.get(key));
  }

  async set(key, value) {
    await this.setAll({ [key]: value });
  }

  async setAll(values) {
    if (--this.lives < 0) throw new Killed("the browser was killed");
    for (const [key, value] of Object.entries(values)) this.values.set(key, structuredClone(value));
  }

  async remove(key) {
    this.values.delete(key);
  }

  async windows() {
    return this.stored;
  }

  async has(ids) {
    const there = new Set(this.stored.map(({ id }) => id));
    return [...ids].every((id) => there.has(id));
  }
}

/** n windows, every other one of each label; their first number is told by the embedder. */
export function someWindows(count, labels = ["still", "walking"]) {
  return Array.from({ length: count }, (_, i) => ({
    id: i,
    startMs: 1.79e12 + 2560 * i,
    x: new Float32Array(768).fill(i + 0.1),
    label: labels[i % labels.length],
    session: "a",
  }));
}

export class FirstNumbers {
  async load(file, sha256) {
    this.sha256 = sha256;
  }

  async embed(x) {
    const found = new Float32Array((x.length / 768) * 3);
    for (let i = 0; i < x.length / 768; i++) found.set([x[768 * i], 1, -x[768 * i]], 3 * i);
    return found;
  }
}

export const learner = {
  prepare(windows, plan) {
    const used = windows.filter(({ label }) => plan.labels.includes(label));
    const examples = (some) => ({
      x: Float32Array.from(some.flatMap(({ x }) => [...x])),
      y: Int32Array.from(some, ({ label }) => plan.labels.indexOf(label)),
    });
    const most = Math.ceil(0.8 * used.length);
    const ids = used.map(({ id }) => id);
    return { train: examples(used.slice(0, most)), holdout: examples(used.slice(most)), normalization: null, ids };
  },
  classMeans,
  measure: () => ({ macro_f1_after: 0.75, works_after: NaN }),
  judge: ({ candidate }) => ({ ...VERDICT, reason: `of round ${candidate.round}` }),
  choose: async ({ candidate }) => ({
    model: candidate,
    verdicts: [{ ...VERDICT, reason: `of round ${candidate.round}` }],
  }),
};
const VERDICT = { answer: "adopted", score: 0.75, trivial: 0.25, source: "global", compared: null };

/** Waits are short, and time is real. */
export const clock = { now: () => Date.now(), wait: (ms, signal) => sleep(Math.min(ms, 5), undefined, { signal }) };

/** An agent that has the server's link, and what it says of itself. */
export async function agentOf(server, { store = new MemoryStore(), count = 20, ask, by = learner } = {}) {
  if (!store.stored.length) store.stored = someWindows(count);
  if (!(await store.get("enrolment"))) await beginEnrolment(store, readEnrolmentLink(server.link));
  const states = [];
  const agent = new Agent({
    store,
    learner: by,
    embedder: new FirstNumbers(),
    clock,
    ask,
    onState: (state) => states.push(state),
  });
  const ended = new AbortController();
  const running = agent.run(ended.signal);
  running.catch(() => {});
  const stop = async () => {
    ended.abort();
    await running.catch(() => {});
  };
  stops.push(stop);
  return { agent, store, states, running, stop };
}

const stops = [];

/** Stop every agent of the file: one that goes on would keep its server, and node, alive. */
export async function stopAll() {
  await Promise.all(stops.map((stop) => stop()));
}

export async function until(happened, what = "it did not happen", seconds = Number(process.env.UNTIL_S ?? 60)) {
  const deadline = Date.now() + 1000 * seconds;
  for (let found; ; await sleep(5)) {
    if ((found = await happened())) return found;
    if (Date.now() > deadline) throw new Error(typeof what === "function" ? what() : what);
  }
}
