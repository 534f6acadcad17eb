/** ONNX Runtime for the web, 14 MB, which who only labels never loads: in the page, or in the worker that trains. */

export const NO_RUNTIME =
  "this server lacks ONNX Runtime for phones: whoever runs it has to say `make phone`, and start it again";
const HERE = new URL("./vendor/ort/", import.meta.url).href;

export async function loadRuntime() {
  const ort = await import("./vendor/ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = HERE;
  ort.env.wasm.numThreads = 1; // more need a page that is isolated from all others
  return ort;
}
