/**
 * What a graph from outside may be, read off its bytes before ONNX Runtime sees it: export/program/archive.py. Known
 * operators of ONNX's own with plain attributes, and constants within the file; all else is refused by not being listed.
 */

import { WireError } from "../protocol/errors.js";
import { textOf } from "../protocol/signing.js";
import { IR_VERSION, MAX_NODES, OPERATORS, OPSET } from "./manifest.generated.js";

/** The fields of ONNX's messages (onnx.proto) that graphs of ours have. */
const MODEL = { 1: "ir_version", 2: "producer_name", 7: "graph", 8: "opset_import" };
const OPSET_ID = { 1: "domain", 2: "version" };
const GRAPH = { 1: "node", 2: "name", 5: "initializer", 11: "input", 12: "output" };
const NODE = { 1: "input", 2: "output", 3: "name", 4: "op_type", 5: "attribute" };
const ATTRIBUTE = { 1: "name", 2: "f", 3: "i", 4: "s", 8: "ints", 20: "type" };
const TENSOR = { 1: "dims", 2: "data_type", 8: "name", 9: "raw_data" };
/** Of ONNX's types that a constant may have. @type {Record<number, number>} */
const ITEM_BYTES = { 1: 4, 6: 4, 7: 8, 9: 1, 11: 8, 12: 4, 13: 8 };
const KNOWN = new Set(OPERATORS);

/** @typedef {{name: string, number: number, bytes: Uint8Array | null}} Field a number, or bytes */

/** Accept a graph of allowed operators: how many nodes it has. Throws a WireError. @param {Uint8Array} file */
export function checkGraph(file) {
  let [graphs, nodes] = [0, 0];
  for (const { name, number, bytes } of fields(file, "model", MODEL)) {
    if (name === "ir_version" && number !== IR_VERSION) {
      throw new WireError(`a graph of IR version ${number}; expected ${IR_VERSION}`);
    }
    if (name === "opset_import") checkOpset(messageOf(bytes));
    if (name !== "graph") continue;
    graphs++;
    for (const part of fields(messageOf(bytes), "graph", GRAPH)) {
      if (part.name === "initializer") checkConstant(messageOf(part.bytes));
      if (part.name !== "node") continue;
      nodes++;
      checkNode(messageOf(part.bytes));
    }
  }
  if (graphs !== 1 || !nodes || nodes > MAX_NODES) {
    throw new WireError(`${graphs} graphs with ${nodes} nodes; expected one, of at most ${MAX_NODES} nodes`);
  }
  return nodes;
}

/** @param {Uint8Array} bytes */
function checkOpset(bytes) {
  for (const { name, number, bytes: domain } of fields(bytes, "opset", OPSET_ID)) {
    if (name === "version" && number !== OPSET) throw new WireError(`a graph of opset ${number}; expected ${OPSET}`);
    if (name === "domain" && domain?.length) {
      throw new WireError("a graph of another domain's operators; expected ONNX's own");
    }
  }
}

/** @param {Uint8Array} node */
function checkNode(node) {
  for (const { name, bytes } of fields(node, "node", NODE)) {
    if (name === "attribute") Array.from(fields(messageOf(bytes), "attribute", ATTRIBUTE));
    const operator = name === "op_type" ? textOf(messageOf(bytes)) : null;
    if (operator !== null && !KNOWN.has(operator)) {
      throw new WireError(`a graph has the operator ${operator.slice(0, 40)}, which programs do not have`);
    }
  }
}

/** Accept a constant whose bytes are as many as its shape says. @param {Uint8Array} tensor */
function checkConstant(tensor) {
  let [size, type, held] = [1, 0, 0];
  for (const { name, number, bytes } of fields(tensor, "constant", TENSOR)) {
    if (name === "dims") for (const side of bytes ? packedNumbers(bytes) : [number]) size *= side;
    else if (name === "data_type") type = number;
    else if (name === "raw_data") held += messageOf(bytes).length;
  }
  if (size * (ITEM_BYTES[type] ?? NaN) === held) return;
  throw new WireError(`a graph's constant of ${size} numbers of type ${type} holds ${held} bytes`);
}

/** @param {Uint8Array} bytes */
function* packedNumbers(bytes) {
  for (let at = 0; at < bytes.length;) {
    const read = varint(bytes, at);
    yield read.value;
    at = read.at;
  }
}

/** @param {Uint8Array | null} bytes */
function messageOf(bytes) {
  if (!bytes) throw new WireError("a graph's bytes are not ONNX's: a number where a message was expected");
  return bytes;
}

/**
 * The fields of a protobuf message; none but the known ones.
 * @param {Uint8Array} bytes @param {string} what @param {Record<number, string>} known @returns {Generator<Field>}
 */
function* fields(bytes, what, known) {
  for (let at = 0; at < bytes.length;) {
    const key = varint(bytes, at);
    const [field, wire] = [Math.floor(key.value / 8), key.value % 8];
    const name = known[field];
    if (!name) throw new WireError(`a graph's ${what} has field ${field} of ONNX's format, which programs do not have`);
    at = key.at;
    if (wire === 0) {
      const read = varint(bytes, at);
      at = read.at;
      yield { name, number: read.value, bytes: null };
      continue;
    }
    const length = wire === 2 ? varint(bytes, at) : { value: wire === 1 ? 8 : wire === 5 ? 4 : NaN, at };
    const end = length.at + length.value;
    if (!(end <= bytes.length)) throw new WireError(`a graph's ${what} is cut short, or is not ONNX's format`);
    yield { name, number: 0, bytes: bytes.subarray(length.at, end) };
    at = end;
  }
}

/** @param {Uint8Array} bytes @param {number} at */
function varint(bytes, at) {
  let value = 0;
  for (let scale = 1; at < bytes.length && scale < 2 ** 70; scale *= 128) {
    const byte = bytes[at++];
    value += (byte & 127) * scale;
    if (byte < 128) return { value, at };
  }
  throw new WireError("a graph's bytes are not ONNX's format: a number that does not end");
}
