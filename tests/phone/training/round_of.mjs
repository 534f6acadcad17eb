// Rounds with programs under node: reads [{program, broadcast, x, y, client, round, rounds}, …] and the folder of ONNX Runtime, writes
// what each comes to, without a stop and cut off after its first epoch, and what its networks answer.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { sha256 } from "../../../phone/app/protocol/signing.js";
import { ProgramHost } from "../../../phone/app/training/host.js";

const { ort: folder, cases } = JSON.parse(readFileSync(0, "utf8"));

async function loadRuntime() {
  const ort = await import(pathToFileURL(`${folder}/ort.wasm.min.mjs`).href);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = readFileSync(`${folder}/ort-wasm-simd-threaded.wasm`);
  return ort;
}

const bytesOf = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const host = new ProgramHost(loadRuntime);
const told = [];
for (const { program: text, broadcast, x: inputs, y, client, round, rounds } of cases) {
  const file = bytesOf(text);
  const program = { sha256: await sha256(file), file, rounds };
  const examples = { x: new Float32Array(bytesOf(inputs).buffer), y: Int32Array.from(y) };
  const job = {
    ...{ program, broadcast: bytesOf(broadcast), client: null, train: examples, holdout: examples },
    ...{ identity: { client, round }, saved: null, budgetMs: Infinity },
  };
  const saved = [];
  const began = performance.now();
  const whole = await host.train(job, (now) => void (now.saved && saved.push({ saved: now.saved, usedMs: now.usedMs })), new AbortController().signal);
  const ms = performance.now() - began;
  const resumed = await host.train({ ...job, saved: saved[0] }, () => {}, new AbortController().signal);
  const stopped = await host.train({ ...job, budgetMs: 0 }, () => {}, new AbortController().signal);
  const input = { "input/mean": { shape: [6], data: new Float32Array(6) }, "input/std": { shape: [6], data: new Float32Array(6).fill(1) } };
  const logits = whole.personal && (await host.logits(program, { ...whole.personal, ...input }, examples.x));
  told.push({
    upload: base64(whole.upload),
    same: base64(resumed.upload) === base64(whole.upload),
    stopped: [stopped.steps, stopped.stepsAsked],
    ...{ loss: whole.loss, steps: whole.steps, before: whole.before, after: whole.after, ms },
    shared: whole.shared !== null,
    logits: logits && base64(logits),
  });
}
process.stdout.write(JSON.stringify(told), () => process.exit(0));
