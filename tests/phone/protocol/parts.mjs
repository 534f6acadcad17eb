// What an agent is made of in these tests: a store that can be killed, and windows whose embeddings are given.
import { setTimeout as sleep } from "node:timers/promises";
import { Learner } from "../../../phone/app/learning/learner.js";
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

/** n windows, every other one of each label, whose numbers tell which; none shares time with another. */
export function someWindows(count, labels = ["still", "walking"], first = 0) {
  return Array.from({ length: count }, (_, i) => ({
    id: first + i,
    startMs: 1.79e12 + 2560 * (first + i),
    x: new Float32Array(768).fill((i % labels.length ? -1 : 1) * (1 + (first + i) / 100)),
    label: labels[i % labels.length],
    session: "a",
  }));
}

/** Gives the first number of a window, its half and its square. */
export class FirstNumbers {
  async load(file, sha256) {
    this.sha256 = sha256;
    return { orientationFree: [], gravity: [] };
  }

  async embed(x) {
    const found = new Float32Array((x.length / 768) * 3);
    for (let i = 0; i < x.length / 768; i++) found.set([x[768 * i], x[768 * i] / 2, x[768 * i] ** 2], 3 * i);
    return found;
  }
}

/** Waits are short, and time is real. */
export const clock = { now: () => Date.now(), wait: (ms, signal) => sleep(Math.min(ms, 5), undefined, { signal }) };

/** An agent that has the server's link, and what it says of itself. */
export async function agentOf(server, { store = new MemoryStore(), count = 20, ask, by = new Learner(), host, conditions } = {}) {
  if (!store.stored.length) store.stored = someWindows(count);
  if (!(await store.get("enrolment"))) await beginEnrolment(store, readEnrolmentLink(server.link));
  const states = [];
  const agent = new Agent({
    store,
    learner: by,
    embedder: new FirstNumbers(),
    host,
    conditions,
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
