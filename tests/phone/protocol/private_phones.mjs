// Three phones of a private federation on a real server: reads {links, dim} on standard input, and writes the sums of each
// and how often it was killed. They join with one round, add other sums to the next, and withdraw; each is killed after some
// transactions of its store, and begun again with what is on the disk.
import { readFileSync } from "node:fs";
import { Learner } from "../../../phone/app/learning/learner.js";
import { Agent } from "../../../phone/app/protocol/agent.js";
import { beginEnrolment, readEnrolmentLink } from "../../../phone/app/protocol/enrolment.js";
import { methodOf, planOf } from "../../../phone/app/protocol/versions.js";
import { MemoryStore, someWindows, until } from "./parts.mjs";
import { CLOCK } from "../../../phone/app/protocol/server.js";

const HASTY = { now: CLOCK.now, wait: (ms, signal) => CLOCK.wait(Math.min(ms, 300), signal) };
const MAX_KILLS = 12;
const given = JSON.parse(readFileSync(0, "utf8"));
const embedder = {
  load: async () => ({ orientationFree: [], gravity: [] }),
  embed: async (x) =>
    Float32Array.from({ length: (x.length / 768) * given.dim }, (_, i) => Math.sin(x[768 * Math.floor(i / given.dim)] * (1 + (i % given.dim)))),
};

class Phone {
  constructor(link, number) {
    this.link = readEnrolmentLink(link);
    this.store = new MemoryStore();
    this.number = number;
    this.kills = 0;
  }

  async has(count) {
    this.store.stored = someWindows(count, ["still", "walking"], 1000 * this.number);
    this.agent?.dataChanged();
  }

  start() {
    this.ended = new AbortController();
    this.agent = new Agent({ store: this.store, learner: new Learner(), embedder, clock: HASTY });
    this.running = this.agent.run(this.ended.signal);
    this.running.catch(() => {});
  }

  /** Kill it whenever its store is dead, and begin it again. */
  async live() {
    for (this.store.lives = 8; !this.over; await new Promise((resolve) => setTimeout(resolve, 20))) {
      if (this.store.lives >= 0) continue;
      this.kills++;
      this.ended.abort();
      await this.running.catch(() => {});
      // each life takes a token of the server, which gives a device 32 at a time
      this.store.lives = this.kills < MAX_KILLS ? 3 + ((this.kills * 5 + this.number) % 11) : Infinity;
      this.start();
    }
  }

  async sums() {
    const { prepared } = this.agent.work;
    const plan = planOf(this.agent.announcement);
    const { gram, moment } = await new Learner().sums(await embedder.embed(prepared.train.x), prepared.train.y, 2, methodOf(plan).clip);
    return [gram, moment].map((each) => Buffer.from(each.buffer).toString("base64"));
  }
}

const phones = given.links.map((link, i) => new Phone(link, i + 1));
const states = () => JSON.stringify(phones.map(({ agent, kills }) => [kills, agent.state().name, agent.state().reason, agent.memory.added?.sequence]));
const newestOf = ({ agent }) => agent.announcement?.model.sha256;
const published = (before) => until(() => phones.every((phone) => newestOf(phone) && newestOf(phone) !== before), states, 100);
for (const phone of phones) {
  await beginEnrolment(phone.store, phone.link);
  await phone.has(30 + phone.number);
  phone.start();
}
await until(() => phones.every(({ agent }) => agent.approved), states);
await until(() => phones.every(newestOf), states);
const first = newestOf(phones[0]);
const lives = phones.map((phone) => phone.live());
const rounds = [];
const all = (work) => Promise.all(phones.map(work));
const note = async () => rounds.push({ sums: await all((phone) => phone.sums()) });
await published(first);
await note();
const second = newestOf(phones[0]);
await all((phone) => phone.has(60 + phone.number));
await published(second);
await note();
await all((phone) => until(() => phone.agent.setTakesPart(false).then(() => true, () => false), states));
await until(() => phones.every(({ agent }) => agent.state().name === "withdrawn"), states);
for (const phone of phones) phone.over = true;
await Promise.all(lives);
for (const phone of phones) phone.ended.abort();
await Promise.all(phones.map(({ running }) => running.catch(() => {})));
console.log(JSON.stringify({ rounds, kills: phones.map(({ kills }) => kills), statuses: states() }));
