// Rounds with programs under node: reads {ort, cases} on standard input, writes what `outcomesOf` says of them.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { ProgramHost } from "../../../phone/app/training/host.js";
import { outcomesOf } from "./outcomes_of.mjs";

const { ort: folder, cases } = JSON.parse(readFileSync(0, "utf8"));

async function loadRuntime() {
  const ort = await import(pathToFileURL(`${folder}/ort.wasm.min.mjs`).href);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = readFileSync(`${folder}/ort-wasm-simd-threaded.wasm`);
  return ort;
}

const told = await outcomesOf(new ProgramHost(loadRuntime), cases);
process.stdout.write(JSON.stringify(told), () => process.exit(0));
