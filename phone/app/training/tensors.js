/** Tensors of a program by their paths: made, checked and named as export/program/manifest.py and runtime.py do. */

import { NotFiniteError, WireError } from "../protocol/errors.js";
import { joined, sha256, utf8 } from "../protocol/signing.js";

/** @typedef {import("./manifest.generated.js").TensorType} TensorType */
/** @typedef {import("../protocol/safetensors.js").Tensor} Tensor */
/** @typedef {Record<string, Tensor>} Tensors by their paths, such as `client/params/head.0.weight` */
/** @typedef {Record<string, TensorType>} Types */

/** What holds numbers of each type. */
export const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  int64: BigInt64Array,
  bool: Uint8Array,
};

/** @param {TensorType} type */
export function sizeOf({ shape }) {
  return shape.reduce((product, side) => product * side, 1);
}

/** @param {TensorType} type */
export function bytesOf(type) {
  return sizeOf(type) * ARRAYS[type.dtype].BYTES_PER_ELEMENT;
}

/** Bytes of all of them. @param {Types} types */
export function allBytesOf(types) {
  return Object.values(types).reduce((sum, type) => sum + bytesOf(type), 0);
}

/** @param {TensorType} type @param {number} number @returns {Tensor} */
export function filled(type, number) {
  const data = new ARRAYS[type.dtype](sizeOf(type));
  if (data instanceof BigInt64Array) data.fill(BigInt(number));
  else data.fill(number);
  return { shape: type.shape, data };
}

/** Values of zero. @param {Types} types @returns {Tensors} */
export function zeros(types) {
  return Object.fromEntries(Object.entries(types).map(([name, type]) => [name, filled(type, 0)]));
}

/**
 * Exactly the values of these types, in their order; throws a WireError that names the first that is missing, of another
 * type or shape, or not finite.
 * @param {Tensors} values @param {Types} types @param {string} what they are @returns {Tensors}
 */
export function checked(values, types, what) {
  const unknown = Object.keys(values).find((name) => !Object.hasOwn(types, name));
  if (unknown !== undefined) throw new WireError(`${what} has ${unknown.slice(0, 64)}, which the program does not know`);
  const entries = Object.entries(types);
  return Object.fromEntries(
    entries.map(([name, type]) => [name, checkedTensor(values[name], type, `${what}: ${name}`)]),
  );
}

/** @param {Tensor | undefined} value @param {TensorType} type @param {string} what */
function checkedTensor(value, type, what) {
  const fits = value && value.data instanceof ARRAYS[type.dtype] && value.shape.join() === type.shape.join();
  if (!fits) throw new WireError(`${what} is missing or another tensor; expected ${type.dtype} [${type.shape}]`);
  const { data } = value;
  const isFloat = data instanceof Float32Array || data instanceof Float64Array;
  if (isFloat && !data.every(Number.isFinite)) throw new NotFiniteError(`${what} holds NaN or infinity`);
  return value;
}

/** The sha256 of tensors by their names, types, shapes and bytes: `digest_of`. @param {Tensors} values @param {Types} types */
export async function digestOf(values, types) {
  const parts = Object.keys(values).sort().flatMap((name) => {
    const { shape, data } = values[name];
    const written = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    return [utf8(`${name} ${types[name].dtype} ${written}\n`), bytes];
  });
  return sha256(joined(...parts));
}
