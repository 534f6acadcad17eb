/**
 * The mean embedding of each class, which is what a phone sends: sums in float64 in the order of the rows, divided by
 * the count and rounded to float32 once, so that every device has the same bytes of the same embeddings.
 */

/**
 * @typedef {object} ClassMeans
 * @property {Float32Array} prototypes (classes × width); zeros where a class has no example
 * @property {Float32Array} counts (classes) examples of each class
 */

/**
 * @param {Float32Array} embeddings (n × width) @param {ArrayLike<number>} y (n) @param {number} classes
 * @param {number} width @returns {ClassMeans}
 */
export function classMeans(embeddings, y, classes, width) {
  if (embeddings.length !== y.length * width) {
    throw new Error(`${embeddings.length} numbers for ${y.length} embeddings; expected ${width} of each`);
  }
  const sums = new Float64Array(classes * width);
  const counts = new Float32Array(classes);
  for (let row = 0; row < y.length; row++) {
    if (!(y[row] >= 0 && y[row] < classes)) {
      throw new Error(`row ${row} has class ${y[row]}; expected 0 to ${classes - 1}`);
    }
    counts[y[row]]++;
    for (let i = 0, to = y[row] * width, from = row * width; i < width; i++) sums[to + i] += embeddings[from + i];
  }
  const prototypes = Float32Array.from(sums, (sum, i) => sum / Math.max(counts[Math.floor(i / width)], 1));
  return { prototypes, counts };
}
