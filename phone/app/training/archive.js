/**
 * A program's file: a ZIP archive of `manifest.json` and a file of ONNX for each graph, bounded before it is unpacked and
 * checked before ONNX Runtime sees it: export/program/archive.py.
 */

import { WireError } from "../protocol/errors.js";
import { joined, sha256, textOf } from "../protocol/signing.js";
import { checkGraph } from "./graph_check.js";
import { MAX_FILES, MAX_MANIFEST_BYTES, MAX_UNPACKED_BYTES, MAX_VALUE_BYTES } from "./manifest.generated.js";
import { manifest as checkedManifest } from "./manifest.generated.js";
import { allBytesOf } from "./tensors.js";

const MANIFEST = "manifest.json";
const END_BYTES = 22;
const [END, ENTRY, LOCAL] = [0x06054b50, 0x02014b50, 0x04034b50];
const DEFLATED = 8;

/** @typedef {import("./manifest.generated.js").Manifest} Manifest */
/** @typedef {{manifest: Manifest, graphs: Map<string, Uint8Array>}} ProgramFile checked; graphs' bytes by name */

/** Read and check an archive; throws a WireError. @param {Uint8Array} file @returns {Promise<ProgramFile>} */
export async function readProgram(file) {
  const files = await unpacked(file);
  const text = files.get(MANIFEST);
  if (!text) throw new WireError(`the program has no ${MANIFEST}`);
  let parsed;
  try {
    parsed = JSON.parse(textOf(text));
  } catch {
    throw new WireError(`the program's ${MANIFEST} is not JSON`);
  }
  const manifest = checkedManifest(parsed, "manifest");
  checkSizes(manifest);
  const graphs = new Map();
  for (const [name, entry] of Object.entries(manifest.graphs)) {
    if (entry.file === null) continue;
    const graph = files.get(entry.file);
    if (!graph) throw new WireError(`the program lacks the file of its graph ${name}`);
    if ((await sha256(graph)) !== entry.sha256) throw new WireError(`the program's graph ${name} is damaged`);
    if (checkGraph(graph) !== entry.nodes) throw new WireError(`the program's graph ${name} has other nodes than it says`);
    graphs.set(name, graph);
  }
  return { manifest, graphs };
}

/** Refuse what declares more numbers than there is room for. @param {Manifest} manifest */
function checkSizes({ graphs, client, phases }) {
  const sizes = [
    ...Object.values(graphs).map(({ inputs, outputs }) => allBytesOf(inputs) + allBytesOf(outputs)),
    allBytesOf(client),
    ...phases.map(({ momenta }) => allBytesOf(momenta)),
  ];
  const largest = Math.max(...sizes);
  if (!(largest <= MAX_VALUE_BYTES)) {
    throw new WireError(`a part of the program has ${largest} bytes of numbers; expected at most ${MAX_VALUE_BYTES}`);
  }
}

/** The files of an archive, by name. @param {Uint8Array} file @returns {Promise<Map<string, Uint8Array>>} */
async function unpacked(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const end = file.length - END_BYTES;
  if (end < 0 || view.getUint32(end, true) !== END) throw broken();
  const count = view.getUint16(end + 10, true);
  if (count > MAX_FILES) throw new WireError(`the program has ${count} files; expected at most ${MAX_FILES}`);
  const found = new Map();
  let [at, total] = [view.getUint32(end + 16, true), 0];
  try {
    for (let i = 0; i < count; i++) {
      if (view.getUint32(at, true) !== ENTRY || view.getUint16(at + 10, true) !== DEFLATED) throw broken();
      const [packed, size] = [view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
      const nameSize = view.getUint16(at + 28, true);
      const name = textOf(file.subarray(at + 46, at + 46 + nameSize));
      total += size;
      if (total > MAX_UNPACKED_BYTES || (name === MANIFEST && size > MAX_MANIFEST_BYTES)) {
        throw new WireError(`the program unpacks to more than ${MAX_UNPACKED_BYTES} bytes`);
      }
      found.set(name, await inflated(packedBytes(file, view, view.getUint32(at + 42, true), packed), size));
      at += 46 + nameSize + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    }
  } catch (error) {
    throw error instanceof RangeError ? broken() : error; // it points beyond its end
  }
  return found;
}

/** @param {Uint8Array} file @param {DataView} view @param {number} at @param {number} size */
function packedBytes(file, view, at, size) {
  if (view.getUint32(at, true) !== LOCAL) throw broken();
  const begin = at + 30 + view.getUint16(at + 26, true) + view.getUint16(at + 28, true);
  return file.subarray(begin, begin + size);
}

/** @param {Uint8Array} packed @param {number} size once it is unpacked */
async function inflated(packed, size) {
  const stream = new Blob([/** @type {BlobPart} */ (packed)]).stream();
  const reader = stream.pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let length = 0;
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      parts.push(read.value);
      length += read.value.length;
      if (length > size) throw broken(); // it lies about its size
    }
  } catch (error) {
    if (error instanceof WireError) await reader.cancel().catch(() => {});
    throw broken();
  }
  if (length !== size) throw broken();
  return joined(...parts);
}

function broken() {
  return new WireError("the program's file is no archive of a program");
}
