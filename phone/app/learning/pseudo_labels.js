/**
 * A head of everybody's sums and a phone's own windows without labels, which count as what the shared head names them:
 * as federation/aggregation/pseudo_labels.py, which says when it is used and why.
 */

import { addWindows, emptySums, headScores, solve, solveMean, travelling } from "./ridge.js";

/** Of the phone's windows against all others' together. */
const WEIGHT = 0.03;
const CONFIDENT_SHARE = 0.5;
/** Two minutes. */
const MIN_WINDOWS = 100;
/** Of the windows that the head on all features and the one without axes name alike. */
const MIN_AGREEMENT = 0.8;

/**
 * @param {import("./heads.js").Exchange} exchange @param {Float32Array} embeddings (n × D) of windows without labels
 * @param {boolean} far whether gravity lies far from most
 * @returns {Promise<import("./ridge.js").Head | null>} null: it is not to be used
 */
export async function pseudoLabelledHead({ shared, clients, method, orientationFree }, embeddings, far) {
  const { clip, orientation_free_share: share, floor = 0 } = method;
  const { classes } = shared;
  const width = shared.moment.length / classes - 1;
  const count = embeddings.length / width;
  const isBetween = share > 0 && share < 1;
  if (far || count < MIN_WINDOWS || classes < 2 || clients < 1 || !orientationFree.length || !isBetween || floor) return null;
  const rows = Array.from({ length: count }, (_, row) => embeddings.subarray(row * width, (row + 1) * width));
  const [ofAll, ofFree] = [await solve(shared, null, 0, method), await solve(shared, null, 0, method, orientationFree)];
  const whole = rows.map((row) => headScores(row, ofAll));
  const free = rows.map((row) => headScores(row, ofFree));
  const alike = whole.filter((each, row) => largest(each) === largest(free[row])).length;
  if (alike / count < MIN_AGREEMENT) return null;
  const scores = whole.map((each, row) => each.map((score, code) => (1 - share) * score + share * free[row][code]));
  const { kept, names } = surest(scores);
  const sums = emptySums(classes, width);
  for (const row of kept) await addWindows(sums, rows[row], [names[row]], clip);
  return solveMean(shared, travelling(sums), WEIGHT * clients, method, orientationFree, share);
}

/**
 * The rows of the larger margins in each class, ascending, and every row's class. A class has at least one; of equal
 * margins the earlier ones.
 * @param {readonly Float64Array[]} scores (n) of each class @returns {{kept: number[], names: number[]}}
 */
export function surest(scores) {
  const names = scores.map(largest);
  const margins = scores.map((each, row) => each[names[row]] - Math.max(...each.filter((_, code) => code !== names[row])));
  const kept = [...new Set(names)].flatMap((name) => {
    const rowsOfClass = [...names.keys()].filter((row) => names[row] === name);
    rowsOfClass.sort((one, other) => margins[other] - margins[one] || one - other);
    return rowsOfClass.slice(0, Math.max(1, Math.floor(rowsOfClass.length * CONFIDENT_SHARE)));
  });
  return { kept: kept.sort((one, other) => one - other), names };
}

/** @param {Float64Array} scores */
function largest(scores) {
  return scores.indexOf(Math.max(...scores));
}
