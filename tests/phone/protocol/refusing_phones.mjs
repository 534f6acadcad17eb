// Phones of a real server that can't use any version of it: reads {links, dim} on standard input. Their learner is broken,
// so that each signs a refusal of what the server publishes; the test looks at what the server does about it.
import { readFileSync } from "node:fs";
import { Learner } from "../../../phone/app/learning/learner.js";
import { Agent } from "../../../phone/app/protocol/agent.js";
import { beginEnrolment, readEnrolmentLink } from "../../../phone/app/protocol/enrolment.js";
import { UnusableModelError } from "../../../phone/app/protocol/errors.js";
import { CLOCK } from "../../../phone/app/protocol/server.js";
import { MemoryStore, someWindows, until } from "./parts.mjs";

const HASTY = { now: CLOCK.now, wait: (ms, signal) => CLOCK.wait(Math.min(ms, 300), signal) };
const { links, dim } = JSON.parse(readFileSync(0, "utf8"));
const embedder = {
  load: async () => ({ orientationFree: [], gravity: [] }),
  embed: async (x) => Float32Array.from({ length: (x.length / 768) * dim }, (_, i) => Math.sin(x[768 * Math.floor(i / dim)] * (1 + (i % dim)))),
};

/** It solves the heads of the first, empty version, and of no other one. */
class BrokenLearner extends Learner {
  async choose(choice) {
    if (choice.exchange.clients) throw new UnusableModelError("a head holds NaN or infinity");
    return super.choose(choice);
  }
}

const agents = [];
for (const [i, link] of links.entries()) {
  const store = Object.assign(new MemoryStore(), { stored: someWindows(40, ["still", "walking"], 1000 * i) });
  await beginEnrolment(store, readEnrolmentLink(link));
  const agent = new Agent({ store, learner: new BrokenLearner(), embedder, clock: HASTY });
  agents.push(agent);
  agent.run(new AbortController().signal).catch((error) => console.error(error));
}
const isPaused = () => agents.every(({ announcement }) => announcement?.state === "paused");
await until(isPaused, () => JSON.stringify(agents.map((agent) => [agent.state().reason, agent.memory.unusable])), 100);
const told = agents.map(({ memory }) => memory.unusable);
process.stdout.write(JSON.stringify(told), () => process.exit(0));
