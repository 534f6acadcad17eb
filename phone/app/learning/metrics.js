/**
 * What an update says of its model on the phone's holdout: `holdout_metrics` of edge_agent/training/trainer.py. Nobody
 * trains, so the model that a round begins with is also the one that it ends with.
 */

import { MAX_CLASS_SCORES } from "../protocol/messages.generated.js";
import { METRIC } from "./soundness.js";
import { accuracy, f1PerClass } from "./scores.js";

/**
 * @param {import("./soundness.js").ClassSoundness} found
 * @returns {Record<string, number>} nothing without holdout windows
 */
export function holdoutMetrics(found) {
  if (found.score === null || found.trivial === null) return {};
  const share = accuracy(found.matrix);
  /** @type {Record<string, number>} */
  const metrics = {};
  for (const when of ["before", "after"]) {
    metrics[`${METRIC}_${when}`] = found.score;
    metrics[`accuracy_${when}`] = share;
    if (found.works !== null) metrics[`works_${when}`] = Number(found.works);
  }
  if (!found.obstacle) metrics[`${METRIC}_trivial`] = found.trivial;
  f1PerClass(found.matrix)
    .slice(0, MAX_CLASS_SCORES)
    .forEach((f1, code) => {
      if (!Number.isNaN(f1)) metrics[`class_${code}_after`] = f1;
    });
  return metrics;
}
