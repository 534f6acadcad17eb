/**
 * What a plan promises of privacy, and how a phone tells that a plan promises less than the phone requires:
 * federation/privacy/promises.py, in the same words.
 */

import { number, object, oneOf, text, whole } from "./checks.js";

/** @typedef {import("./messages.generated.js").Plan} Plan */

/**
 * @typedef {object} Promises
 * @property {"off" | "masked"} mode masked: the server learns sums alone
 * @property {number} minDevices @property {number} minColludingShare @property {number} minNoise
 * @property {number} minExampleNoise @property {string} voucher public key that vouches for members; empty: none
 */

/** @type {Promises} */
export const NO_PROMISES = Object.freeze({ mode: "off", minDevices: 0, minColludingShare: 0, minNoise: 0, minExampleNoise: 0, voucher: "" });

/** What the server's answer to an enrolment promises, with Python's names. */
export const checkPromises = object(
  {
    mode: oneOf("off", "masked"),
    min_devices: whole(0, 1 << 14),
    min_colluding_share: number({ min: 0, max: 1 / 3 }),
    min_noise: number({ min: 0, max: 1e3 }),
    min_example_noise: number({ min: 0, max: 1e6 }),
    voucher: text(44, /^([A-Za-z0-9+/]{43}=)?$/),
  },
  { others: true },
);

/** @param {ReturnType<typeof checkPromises>} answer @returns {Promises} */
export function promisesIn({ mode, voucher, ...bounds }) {
  return {
    mode,
    minDevices: bounds.min_devices,
    minColludingShare: bounds.min_colluding_share,
    minNoise: bounds.min_noise,
    minExampleNoise: bounds.min_example_noise,
    voucher,
  };
}

/** What a plan promises; without masks, a sum's size and noise protect nobody. @param {Plan} plan @returns {Promises} */
export function promisesOf({ secure, training }) {
  const minExampleNoise = training.example_clip_norm === null ? 0 : training.example_noise_multiplier;
  if (secure.mode !== "masked") return { ...NO_PROMISES, minExampleNoise };
  return {
    mode: "masked",
    minDevices: secure.min_devices,
    minColludingShare: secure.colluding_share,
    minNoise: secure.clip_norm === null ? 0 : secure.noise_multiplier,
    minExampleNoise,
    voucher: secure.voucher ?? "",
  };
}

/**
 * What this phone requires: each field as its person has set it, else as it was pinned. A bound on sums requires sums.
 * @param {{pinned?: Promises | null, requires?: Partial<Promises> | null}} memory @returns {Promises}
 */
export function requiredBy({ pinned, requires }) {
  const found = { ...NO_PROMISES, ...pinned, ...requires };
  if (requires?.mode === "off") return { ...NO_PROMISES, minExampleNoise: found.minExampleNoise };
  const isOfSums = found.minDevices || found.minColludingShare || found.minNoise || found.voucher;
  return isOfSums ? { ...found, mode: "masked" } : found;
}

/** Where less is promised than is required; else empty. @param {Promises} promised @param {Promises} needed */
export function shortfall(promised, needed) {
  if (needed.mode === "masked" && promised.mode !== "masked") {
    return "the server would see this device's own updates, because secure.mode is not masked, and this device requires secure sums";
  }
  /** @type {[string, number, number][]} */
  const fields = [
    ["secure.min_devices is", promised.minDevices, needed.minDevices],
    ["secure.colluding_share is", promised.minColludingShare, needed.minColludingShare],
    ["secure.noise_multiplier is", promised.minNoise, needed.minNoise],
    ["training.example_noise_multiplier is", promised.minExampleNoise, needed.minExampleNoise],
  ];
  const found = fields.filter(([, has, least]) => has < least);
  const words = found.map(([name, has, least]) => `${name} ${rounded(has)}, and this device requires ${rounded(least)} or more`);
  const isOther = needed.voucher && promised.voucher !== needed.voucher;
  if (isOther) words.push("secure.voucher is not the key that vouches for members, as this device requires");
  return words.join("; ");
}

/** In a sentence, for the person. @param {Promises} promises */
export function describePromises({ mode, minDevices, minColludingShare, minNoise, minExampleNoise, voucher }) {
  const noise = minExampleNoise ? `, with noise ${rounded(minExampleNoise)} in training` : "";
  if (mode === "off") return `The server may see what this device sends${noise}.`;
  const sums = minNoise ? `, with noise ${rounded(minNoise)} on each sum` : "";
  const vouched = voucher ? `, all of them vouched for by the key ${voucher.slice(0, 12)}…` : "";
  return (
    `The server learns only sums over at least ${minDevices.toLocaleString("en")} devices, even if ` +
    `${Number((100 * minColludingShare).toPrecision(3))}% of them work for it${sums}${noise}${vouched}.`
  );
}

/** @param {number} value */
function rounded(value) {
  return String(Number(value.toPrecision(6)));
}
