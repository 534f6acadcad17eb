/** Macro-F1 from predicted classes: gaitway/tasks/classification.py. A confusion matrix counts by true (row) and answered class. */

import { pairwiseSum } from "./numbers.js";

/** @typedef {number[][]} Confusion (classes × classes) */

/**
 * @param {ArrayLike<number>} truth (n) @param {ArrayLike<number>} answered (n) @param {number} classes
 * @returns {Confusion}
 */
export function confusion(truth, answered, classes) {
  const matrix = Array.from({ length: classes }, () => new Array(classes).fill(0));
  for (let i = 0; i < truth.length; i++) matrix[truth[i]][answered[i]]++;
  return matrix;
}

/** Examples of each true class. @param {Confusion} matrix @returns {number[]} */
export function rowSums(matrix) {
  return matrix.map((row) => row.reduce((total, count) => total + count, 0));
}

/** Answers of each class. @param {Confusion} matrix @returns {number[]} */
export function columnSums(matrix) {
  return matrix.map((_, code) => matrix.reduce((total, row) => total + row[code], 0));
}

/**
 * Mean F1 over the classes that are present or predicted; NaN of an empty matrix.
 * @param {Confusion} matrix @returns {number}
 */
export function macroF1(matrix) {
  const f1 = f1PerClass(matrix);
  const counted = f1.filter((each) => !Number.isNaN(each)).length;
  return pairwiseSum(f1.map((each) => (Number.isNaN(each) ? 0 : each))) / counted;
}

/** F1 of each class; NaN for one that is neither present nor predicted. @param {Confusion} matrix */
export function f1PerClass(matrix) {
  const columns = columnSums(matrix);
  const marked = rowSums(matrix).map((count, code) => count + columns[code]);
  return marked.map((count, code) => (count > 0 ? (2 * matrix[code][code]) / count : NaN));
}

/** Share of right answers; NaN of an empty matrix. @param {Confusion} matrix @returns {number} */
export function accuracy(matrix) {
  const right = matrix.reduce((total, row, code) => total + row[code], 0);
  return right / rowSums(matrix).reduce((total, count) => total + count, 0);
}

/** The matrix of always answering the most frequent class. @param {Confusion} matrix @returns {Confusion} */
export function mostFrequent(matrix) {
  const rows = rowSums(matrix);
  const constant = rows.indexOf(Math.max(...rows));
  return rows.map((count) => rows.map((_, code) => (code === constant ? count : 0)));
}
