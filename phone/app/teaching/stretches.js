/** Which labelled windows are learnt from, and which are left out: edge_agent/teaching/learned_head.py. */

import { roundHalfEven } from "../learning/numbers.js";
import { overlaps } from "../learning/splits.js";

/** Windows of an activity that are no further apart, from end to begin, form one stretch. */
const JOIN_S = 5;
/** Of a stretch from which one is left out. */
const MIN_WINDOWS = 4;

/**
 * Places of training windows, and of the last quarter in time of each stretch, which is left out. Windows that share
 * time with one that is left out are in neither.
 * @param {import("../learning/examples.js").LabelledWindows} labelled @param {number} windowS
 * @returns {{train: number[], test: number[]}}
 */
export function leftOut({ y, startS, session }, windowS) {
  const order = Array.from(y.keys()).sort((a, b) => session[a] - session[b] || startS[a] - startS[b]);
  /** @type {number[][]} */
  const stretches = [];
  order.forEach((place, i) => {
    const before = order[i - 1];
    const goesOn =
      i > 0 &&
      y[place] === y[before] &&
      session[place] === session[before] &&
      startS[place] - startS[before] <= JOIN_S + windowS;
    if (goesOn) stretches[stretches.length - 1].push(place);
    else stretches.push([place]);
  });
  const test = stretches
    .filter((stretch) => stretch.length >= MIN_WINDOWS)
    .flatMap((stretch) => stretch.slice(-Math.max(1, roundHalfEven(stretch.length / 4))))
    .sort((a, b) => a - b);
  const shared = overlaps(startS, test.map((place) => startS[place]), windowS);
  const held = new Set(test);
  return { train: order.filter((place) => !held.has(place) && !shared[place]).sort((a, b) => a - b), test };
}
