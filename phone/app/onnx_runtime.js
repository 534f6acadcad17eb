/** ONNX Runtime for the web, 14 MB, which who only labels never loads: in the page, or in the worker that trains. */

export const NO_RUNTIME =
  "this server lacks ONNX Runtime for phones: whoever runs it has to say `make phone`, and start it again";
const HERE = new URL("./vendor/ort/", import.meta.url).href;

/** Most threads of a training: more gain little, and a phone's other cores are the slow ones. */
const MAX_THREADS = 4;

/**
 * Threads for a training: half of the cores where the page is isolated from all others, and its worker may have workers;
 * else one.
 * @param {{crossOriginIsolated?: boolean, Worker?: unknown, navigator?: {hardwareConcurrency?: number}}} here
 */
export function trainingThreads(here = globalThis) {
  const cores = here.navigator?.hardwareConcurrency ?? 1;
  if (!here.crossOriginIsolated || !here.Worker) return 1;
  return Math.max(1, Math.min(MAX_THREADS, Math.floor(cores / 2)));
}

/** @param {number} threads of a computation; those of more than one wait busily, so what is short takes one */
export async function loadRuntime(threads = 1) {
  const ort = await import("./vendor/ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = HERE;
  ort.env.wasm.numThreads = threads;
  return ort;
}
