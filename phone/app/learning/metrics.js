/**
 * What an update says of the heads on the phone's holdout: `holdout_metrics` of edge_agent/training/trainer.py. Before
 * is the shared head, after the phone's own.
 */

import { MAX_CLASS_SCORES } from "../protocol/messages.generated.js";
import { METRIC } from "./soundness.js";
import { accuracy, f1PerClass } from "./scores.js";

/** @typedef {import("./soundness.js").ClassSoundness} ClassSoundness */

/**
 * @param {ClassSoundness | null} before null: there is no such head @param {ClassSoundness | null} after
 * @returns {Record<string, number>} nothing without holdout windows
 */
export function holdoutMetrics(before, after) {
  /** @type {Record<string, number>} */
  const metrics = {};
  /** @type {[string, ClassSoundness | null][]} */
  const all = [
    ["before", before],
    ["after", after],
  ];
  for (const [when, soundness] of all) {
    if (!soundness || soundness.score === null) continue;
    metrics[`${METRIC}_${when}`] = soundness.score;
    metrics[`accuracy_${when}`] = accuracy(soundness.matrix);
    if (soundness.works !== null) metrics[`works_${when}`] = Number(soundness.works);
    if (!soundness.undecidedReason && soundness.trivial !== null) metrics[`${METRIC}_trivial`] = soundness.trivial;
  }
  if (!after || after.score === null) return metrics;
  f1PerClass(after.matrix)
    .slice(0, MAX_CLASS_SCORES)
    .forEach((f1, code) => {
      if (!Number.isNaN(f1)) metrics[`class_${code}_after`] = f1;
    });
  return metrics;
}
