/**
 * Trees of tensors as bytes: federation/wire/safetensors.py. A file is 8 bytes with the length of the header, the
 * header in JSON with the tensors in the tree's order, and their bytes: larger types first, then by name.
 */

import { WireError } from "./errors.js";
import { textOf, utf8 } from "./signing.js";

/** @type {Record<string, number>} bytes of one number of each type that the wire carries, the last one written first */
const SIZES = { BOOL: 1, I8: 1, F16: 2, BF16: 2, I32: 4, F32: 4, F64: 8, I64: 8 };
const TYPES = Object.keys(SIZES);
const HEADER_BYTES = 8 << 20;
const MAX_TENSORS = 65_536;
const MAX_DIMENSIONS = 16;
const LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** @typedef {Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array} Numbers the last one of 0 and 1 */
/** @typedef {{shape: readonly number[], data: Numbers}} Tensor row-major */
/** @typedef {{dtype: string, shape: number[], begin: number, end: number}} Place where a tensor lies */

/**
 * Write tensors of float32, float64, int32, int64 and bool, in this order of names: the same bytes as `federation.wire.encode`.
 * @param {readonly (readonly [name: string, tensor: Tensor])[]} tensors @returns {Uint8Array<ArrayBuffer>}
 */
export function encode(tensors) {
  /** @type {Record<string, object>} */
  const header = {};
  for (const [name] of tensors) {
    // an object keeps the order of such keys
    if (!/^[A-Za-z_][\w./-]*$/.test(name)) throw new WireError(`a tensor cannot be called ${JSON.stringify(name)}`);
    header[name] = {};
  }
  let end = 0;
  const sorted = tensors.map(([name, tensor]) => ({ name, ...tensor, dtype: dtypeOf(tensor.data) })).sort(byRank);
  for (const { name, shape, data, dtype } of sorted) {
    if (data.length !== product(shape))
      throw new WireError(`${name} has ${data.length} numbers, not of shape [${shape}]`);
    const begin = end;
    end += data.byteLength;
    header[name] = { dtype, shape: [...shape], data_offsets: [begin, end] };
  }
  const head = utf8(JSON.stringify(header));
  const padded = Math.ceil(head.length / 8) * 8;
  const file = new Uint8Array(8 + padded + end).fill(32, 8, 8 + padded);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
  file.set(head, 8);
  let at = 8 + padded;
  for (const { data } of sorted) {
    file.set(littleEndian(data), at);
    at += data.byteLength;
  }
  return file;
}

/** What holds the numbers of each type in JavaScript. @type {[string, new (buffer: ArrayBuffer) => Numbers][]} */
const HELD = [
  ["I64", BigInt64Array],
  ["I32", Int32Array],
  ["F32", Float32Array],
  ["F64", Float64Array],
  ["BOOL", Uint8Array],
];

/** @param {Numbers} data */
function dtypeOf(data) {
  return /** @type {[string, unknown]} */ (HELD.find(([, kind]) => data instanceof kind))[0];
}

/**
 * All tensors of a file, by name; throws a WireError, also for types that JavaScript has no arrays of.
 * @param {Uint8Array} file @param {number} limitBytes @returns {Record<string, Tensor>}
 */
export function decoded(file, limitBytes) {
  const tensors = new Safetensors(file, limitBytes);
  /** @type {Record<string, Tensor>} */
  const found = {};
  for (const [name, { dtype, shape }] of tensors.places) {
    const held = HELD.find(([code]) => code === dtype);
    if (!held) throw new WireError(`tensor ${JSON.stringify(name.slice(0, 64))} is ${dtype}, which can't be read here`);
    found[name] = { shape, data: new held[1](tensors.bytes(name, dtype, shape)) };
  }
  return found;
}

/** @typedef {{name: string, dtype: string}} Named */

/** In the order of the format: larger types first, int32 after float32, then by name. @param {Named} one @param {Named} other */
function byRank(one, other) {
  const rank = TYPES.indexOf(other.dtype) - TYPES.indexOf(one.dtype);
  return rank || (one.name < other.name ? -1 : 1);
}

/** The bytes of numbers, little-endian wherever this runs. @param {Tensor["data"]} data */
function littleEndian(data) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return LITTLE_ENDIAN ? bytes : swapped(bytes, data.BYTES_PER_ELEMENT);
}

/** Bytes of numbers in the other order. @param {Uint8Array} bytes @param {number} width */
function swapped(bytes, width) {
  return Uint8Array.from(bytes, (_, i) => bytes[i - (i % width) + width - 1 - (i % width)]);
}

/** A file whose header was checked against its bytes. */
export class Safetensors {
  /** @param {Uint8Array} file @param {number} limitBytes a larger one is refused; throws a WireError */
  constructor(file, limitBytes) {
    if (file.length > limitBytes) throw new WireError(`${file.length} bytes came, at most ${limitBytes} were expected`);
    this.file = file;
    /** @type {Map<string, Place>} */
    this.places = new Map();
    const end = headerEnd(file);
    this.start = end;
    const header = parsed(file.subarray(8, end));
    const names = Object.keys(header).filter((name) => name !== "__metadata__");
    if (names.length > MAX_TENSORS)
      throw new WireError(`${names.length} tensors came, at most ${MAX_TENSORS} are read`);
    for (const name of names) this.places.set(name, placeOf(name, header[name], file.length - end));
    checkCovered([...this.places.values()], file.length - end);
  }

  /**
   * A copy of a float32 tensor of exactly this shape, all of whose numbers are finite; throws a WireError.
   * @param {string} name @param {readonly number[]} shape @returns {Float32Array<ArrayBuffer>}
   */
  float32(name, shape) {
    const found = new Float32Array(this.bytes(name, "F32", shape));
    if (!found.every(Number.isFinite)) throw new WireError(`${name} holds a number that is not finite`);
    return found;
  }

  /**
   * A copy of an int32 tensor of exactly this shape; throws a WireError.
   * @param {string} name @param {readonly number[]} shape @returns {Int32Array<ArrayBuffer>}
   */
  int32(name, shape) {
    return new Int32Array(this.bytes(name, "I32", shape));
  }

  /**
   * An int64 tensor of exactly this shape, all of whose numbers JavaScript has exactly; throws a WireError.
   * @param {string} name @param {readonly number[]} shape @returns {Float64Array<ArrayBuffer>}
   */
  int64(name, shape) {
    const found = Float64Array.from(new BigInt64Array(this.bytes(name, "I64", shape)), Number);
    if (!found.every(Number.isSafeInteger)) throw new WireError(`${name} holds a number beyond 53 bits`);
    return found;
  }

  /** A copy of a tensor's bytes, in this machine's order. @param {string} name @param {string} dtype @param {readonly number[]} shape */
  bytes(name, dtype, shape) {
    const place = this.places.get(name);
    if (!place) throw new WireError(`the file has no tensor ${name}; it has ${[...this.places.keys()].slice(0, 8)}`);
    if (place.dtype !== dtype || place.shape.join() !== shape.join()) {
      throw new WireError(`${name} is ${place.dtype} of shape [${place.shape}], expected ${dtype} of shape [${shape}]`);
    }
    const bytes = this.file.slice(this.start + place.begin, this.start + place.end);
    return /** @type {ArrayBuffer} */ (LITTLE_ENDIAN ? bytes.buffer : swapped(bytes, SIZES[dtype]).buffer);
  }
}

/** @param {Uint8Array} file @returns {number} */
function headerEnd(file) {
  if (file.length < 8) throw new WireError(`${file.length} bytes came that are not safetensors`);
  const size = new DataView(file.buffer, file.byteOffset).getBigUint64(0, true);
  if (size > BigInt(HEADER_BYTES) || 8n + size > BigInt(file.length)) {
    throw new WireError(`a safetensors header of ${size} bytes came in a file of ${file.length}`);
  }
  return 8 + Number(size);
}

/** @param {Uint8Array} bytes @returns {Record<string, any>} */
function parsed(bytes) {
  let header;
  try {
    header = JSON.parse(textOf(bytes));
  } catch {
    throw new WireError("the safetensors header is not JSON");
  }
  if (typeof header !== "object" || header === null || Array.isArray(header)) {
    throw new WireError("the safetensors header is no object");
  }
  return header;
}

/** @param {string} name @param {any} entry @param {number} size of all tensors @returns {Place} */
function placeOf(name, entry, size) {
  const whole = (/** @type {unknown} */ value) => Number.isSafeInteger(value) && /** @type {number} */ (value) >= 0;
  const { dtype, shape, data_offsets: offsets } = entry ?? {};
  const wrong = (/** @type {string} */ what) => new WireError(`tensor ${JSON.stringify(name.slice(0, 64))}: ${what}`);
  if (typeof dtype !== "string" || !Object.hasOwn(SIZES, dtype)) {
    throw wrong(`its type is ${String(dtype).slice(0, 16)}, which the wire does not carry`);
  }
  if (!Array.isArray(shape) || shape.length > MAX_DIMENSIONS || !shape.every(whole)) throw wrong("it has no shape");
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(whole)) throw wrong("it has no offsets");
  const [begin, end] = offsets;
  const bytes = product(shape) * SIZES[dtype];
  if (end > size || end < begin || !Number.isSafeInteger(bytes) || end - begin !== bytes) {
    throw wrong(`[${begin}, ${end}) of ${size} bytes do not hold ${dtype} of shape [${shape}]`);
  }
  return { dtype, shape, begin, end };
}

/** Refuse holes and overlaps, as the format does. @param {Place[]} places @param {number} size */
function checkCovered(places, size) {
  let at = 0;
  for (const { begin, end } of places.sort((one, other) => one.begin - other.begin || one.end - other.end)) {
    if (begin !== at) throw new WireError(`the tensors overlap or leave bytes out, at ${Math.min(begin, at)}`);
    at = end;
  }
  if (at !== size) throw new WireError(`${size} bytes of tensors came, and the header describes ${at}`);
}

/** @param {readonly number[]} shape @returns {number} */
function product(shape) {
  return shape.reduce((sum, each) => sum * each, 1);
}
