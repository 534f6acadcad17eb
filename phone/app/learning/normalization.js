/**
 * Channel-wise z-normalization as har_pipeline/normalization.py has it. `client`: by the statistics of the phone's own
 * training windows, which it applies itself; `federated`: by those of the plan, and `none`: by nothing. What the plan
 * fixes is inside the model's graph, so that only `client` changes what the graph is given.
 */

/** @typedef {import("../types.js").Normalization} Normalization */

export const CHANNELS = 6;
/** A constant channel becomes zeros, not noise. */
const MIN_STD = 1e-3;

/**
 * @typedef {object} Statistics of each channel, in m/s² or rad/s
 * @property {Float64Array} mean
 * @property {Float64Array} std
 */

/** @typedef {{count: number, total: readonly number[], square: readonly number[]}} Sums as a plan holds them */

/**
 * Sum all samples of the windows, and their squares, in float64 in their order.
 * @param {readonly Float32Array[]} windows row-major (rows × channels) each @returns {Sums}
 */
export function channelSums(windows) {
  const total = new Array(CHANNELS).fill(0);
  const square = new Array(CHANNELS).fill(0);
  let count = 0;
  for (const x of windows) {
    for (let at = 0; at < x.length; at += CHANNELS) {
      for (let channel = 0; channel < CHANNELS; channel++) {
        const value = x[at + channel];
        total[channel] += value;
        square[channel] += value * value;
      }
    }
    count += x.length / CHANNELS;
  }
  return { count, total, square };
}

/** Mean and standard deviation; 0 and 1 where nothing was counted. @param {Sums} sums @returns {Statistics} */
export function statisticsOf({ count, total, square }) {
  const mean = Float64Array.from(total, (sum) => sum / Math.max(count, 1));
  const std = Float64Array.from(square, (sum, channel) => {
    if (!count) return 1;
    return Math.max(Math.sqrt(Math.max(sum / count - mean[channel] * mean[channel], 0)), MIN_STD);
  });
  return { mean, std };
}

/** What changes nothing. @returns {Statistics} */
export function identity() {
  return { mean: new Float64Array(CHANNELS), std: new Float64Array(CHANNELS).fill(1) };
}

/** Round statistics to what windows are normalized with. @param {Statistics} statistics @returns {Normalization} */
export function inFloat32({ mean, std }) {
  return { mean: Float32Array.from(mean), std: Float32Array.from(std) };
}

/**
 * Return (x − mean) / std, computed in float32.
 * @param {Float32Array} x (rows × channels) @param {Normalization} by @returns {Float32Array}
 */
export function normalized(x, { mean, std }) {
  const found = new Float32Array(x.length);
  for (let i = 0; i < x.length; i++) {
    found[i] = Math.fround(x[i] - mean[i % CHANNELS]) / std[i % CHANNELS];
  }
  return found;
}

/**
 * What the model's graph applies to its input under a plan's data section.
 * @param {{normalization: string, statistics: Sums | null}} data @returns {Statistics}
 */
export function insideModel({ normalization, statistics }) {
  if (normalization === "none" || normalization === "client") return identity();
  if (normalization === "federated" && statistics) return statisticsOf(statistics);
  throw new Error(
    `the plan's data.normalization is ${normalization}${statistics ? "" : " without statistics"}; ` +
      "a phone knows client, federated with statistics in the plan, and none",
  );
}

/**
 * What a phone applies to its windows before the model; null: nothing.
 * @param {{normalization: string, statistics: Sums | null}} data @param {readonly Float32Array[]} training windows
 * @returns {Normalization | null}
 */
export function beforeModel(data, training) {
  insideModel(data); // refuses what is not known
  return data.normalization === "client" ? inFloat32(statisticsOf(channelSums(training))) : null;
}
