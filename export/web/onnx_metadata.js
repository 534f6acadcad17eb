/**
 * What an exported file says about itself. ONNX Runtime for the web does not give a file's metadata, so they are read
 * here: the field `metadata_props` (14) of ONNX's ModelProto, pairs of `key` (1) and `value` (2); all else is skipped.
 */

const SCHEMA = "gaitway-model/1";
const FILTER = "low-pass, windowed sinc";
const ANTI_ALIAS = [undefined, "always", "downsampling"];

/**
 * @typedef {object} InputSpec
 * @property {string} kind @property {number[]} shape @property {string[]} channels @property {string[]} units
 * @property {number} rate_hz @property {number} stride @property {import("./low_pass.js").Filter} filter
 * @property {string} axes @property {string} gravity @property {string[]} masked
 * @property {number[]} mean @property {number[]} std of each channel; for information, the graph applies them
 */

/**
 * @typedef {object} Metadata
 * @property {string[]} labels @property {InputSpec} input @property {string} model @property {string} method
 * @property {number} round
 * @property {{name: string, center?: number, spread?: number}} task what the model has learnt; of one label, a number
 * @property {number[]} orientationFree columns of the embedding that are the same however the phone is turned; may be none
 * @property {number[]} gravity columns that lie near 0 where the phone lies as most do; may be none
 * @property {number[]} acceleration columns that a phone without a gyroscope has; none in older files
 */

/**
 * Read and check a model's metadata; throws an Error that says what is wrong.
 * @param {Uint8Array} file
 * @returns {Metadata}
 */
export function readMetadata(file) {
  /** @type {Record<string, string>} */
  const properties = {};
  for (const { field, bytes } of fieldsOf(file)) {
    if (field !== 14) continue;
    /** @type {Record<number, string>} */
    const pair = { 1: "", 2: "" };
    for (const part of fieldsOf(bytes)) pair[part.field] = new TextDecoder().decode(part.bytes);
    properties[pair[1]] = pair[2];
  }
  if (properties.schema !== SCHEMA) {
    throw new Error(`the file's schema is ${properties.schema}; expected a model of Gaitway, ${SCHEMA}`);
  }
  const read = (/** @type {string} */ name) => {
    if (!(name in properties)) throw new Error(`the model's metadata lack ${name}`);
    return JSON.parse(properties[name]);
  };
  const metadata = { labels: read("labels"), input: read("input") };
  const { input } = metadata;
  if (input.kind !== "window") throw new Error(`the model takes ${input.kind}s; expected windows of motion sensors`);
  if (input.filter?.name !== FILTER || !ANTI_ALIAS.includes(input.filter.anti_alias)) {
    throw new Error(`the model's windows were filtered by ${JSON.stringify(input.filter)}; expected ${FILTER}`);
  }
  const task = "task" in properties ? read("task") : { name: "classification" };
  const columns = (/** @type {string} */ name) => (name in properties ? checkedColumns(read(name)) : []);
  return {
    ...metadata,
    model: read("model"),
    method: read("method"),
    round: read("round"),
    task,
    orientationFree: columns("orientation_free_columns"),
    gravity: columns("gravity_columns"),
    acceleration: columns("acceleration_columns"),
  };
}

/** @param {unknown} found @returns {number[]} */
function checkedColumns(found) {
  if (Array.isArray(found) && found.every((each) => Number.isSafeInteger(each) && each >= 0)) return found;
  throw new Error(`the model's columns are ${JSON.stringify(found).slice(0, 80)}; expected whole numbers from 0`);
}

/** The length-delimited fields of a protobuf message. @param {Uint8Array} bytes */
function* fieldsOf(bytes) {
  let at = 0;
  const varint = () => {
    let number = 0;
    for (let scale = 1; at < bytes.length; scale *= 128) {
      const byte = bytes[at++];
      number += (byte & 127) * scale;
      if (byte < 128) return number;
    }
    throw new Error("the file ends within a field; expected an ONNX model");
  };
  while (at < bytes.length) {
    const key = varint();
    const kind = key % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      if (at + length > bytes.length) throw new Error("the file ends within a field; expected an ONNX model");
      yield { field: Math.floor(key / 8), bytes: bytes.subarray(at, at + length) };
      at += length;
    } else throw new Error("the file is no ONNX model");
  }
}
