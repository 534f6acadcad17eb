// Reads {model (a path), plan, x (base64 of n windows)} and writes what the phone's embedder makes of them, and how it
// refuses a file that does not fit.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import * as ort from "../../../phone/app/vendor/ort/ort.wasm.min.mjs";
import { Embedder } from "../../../phone/app/learning/embedder.js";
import { floats } from "./vectors.mjs";

ort.env.wasm.numThreads = 1;
const { model, plan, refused, x } = JSON.parse(readFileSync(0, "utf8"));
const file = new Uint8Array(readFileSync(model));
const sha256 = createHash("sha256").update(file).digest("hex");
const embedder = new Embedder(ort);
const refusals = [];
for (const other of refused) {
  refusals.push(await embedder.load(file, sha256, other).then(String, ({ message }) => message));
}
await embedder.load(file, sha256, plan);
const session = embedder.session;
await embedder.load(file, sha256, plan);

const windows = floats(x);
const progress = [];
let turns = 0;
const turn = setInterval(() => turns++, 0);
// a live window is recognized while the others are embedded
const [all, one] = await Promise.all([
  embedder.embed(windows, (done) => progress.push(done)),
  embedder.embed(windows.slice(0, 768)),
]);
clearInterval(turn);
const answer = {
  embeddings: Array.from(all),
  one: Array.from(one),
  again: (await embedder.embed(windows)) === all,
  loadedOnce: embedder.session === session,
  none: (await embedder.embed(new Float32Array())).length,
  turns,
  progress,
  refusals,
};
process.stdout.write(JSON.stringify(answer));
