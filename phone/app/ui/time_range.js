/** Two fields for the beginning and the end of a stretch of time. */

import { element } from "./dom.js";

/** A date as the field takes it: local time, seconds. @param {number} ms */
function local(ms) {
  return new Date(ms - 60_000 * new Date(ms).getTimezoneOffset()).toISOString().slice(0, 19);
}

/**
 * @param {string} id of this pair
 * @returns {{root: HTMLElement, read: () => [number, number]}} `read` throws an Error in words
 */
export function timeRangeInputs(id) {
  const now = Date.now();
  const field = (/** @type {string} */ end, /** @type {number} */ ms) =>
    element("input", { type: "datetime-local", step: 1, id: `${id}-${end}`, value: local(ms) });
  const [from, to] = [field("from", now - 600_000), field("to", now)];
  const root = element(
    "div",
    { class: "pair" },
    element("div", {}, element("label", { for: from.id }, "From"), from),
    element("div", {}, element("label", { for: to.id }, "To"), to),
  );
  const read = () => {
    const [fromMs, toMs] = [new Date(from.value).getTime(), new Date(to.value).getTime()];
    if (!Number.isFinite(fromMs) || !Number.isFinite(toMs)) throw new Error("A date and a time are missing.");
    if (fromMs >= toMs) throw new Error("The stretch ends before it begins.");
    return /** @type {[number, number]} */ ([fromMs, toMs]);
  };
  return { root, read };
}
