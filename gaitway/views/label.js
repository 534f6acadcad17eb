/** Label what was done before: the last minutes, or another stretch of time. */

import { action, card, counted, element, fill, whenChanged } from "./dom.js";
import { labelText } from "./labels.js";

/** @type {[number, string][]} */
const SPANS = [
  [10, "10 seconds"],
  ...[1, 2, 5, 10, 15, 30, 60].map((minutes) => /** @type {[number, string]} */ ([60 * minutes, counted(minutes, "minute")])),
];
/** What is chosen first. */
const USUAL_S = 60;

/** What labelling came to. @param {{windows: number, activity: string}} done */
export function labelled({ windows, activity }) {
  if (!windows) return "There are no windows in that time.";
  return `${counted(windows, "window")} ${windows === 1 ? "is" : "are"} ${activity ? labelText(activity) : "without a label"} now`;
}

/** @param {string} label */
export const nameOf = (label) => (label ? labelText(label) : "none of these");

/**
 * @param {import("./api.js").Device} device @param {...HTMLElement} more below the form
 * @returns {{root: HTMLElement, show: (found: {labels: readonly string[], why: string}) => void}} '' among the labels:
 *   none of these; without labels it says why
 */
export function labelForm(device, ...more) {
  const which = element("select", { id: "before-label" });
  const span = element("select", { id: "before-span" }, SPANS.map(([value, words]) => element("option", { value }, words)));
  span.value = String(USUAL_S);
  const stretch = timeRangeInputs("label");
  const done = element("p", { role: "status", class: "good" });
  const none = element("p", { class: "quiet" });
  const give = async (/** @type {object} */ when) => {
    const words = labelled(await device.ask("label", { activity: which.value, ...when }));
    done.textContent = words.endsWith("now") ? `${words}.` : words;
  };
  const form = element(
    "div",
    {},
    element(
      "div",
      { class: "pair" },
      element("div", {}, element("label", { for: "before-label" }, "What"), which),
      element("div", {}, element("label", { for: "before-span" }, "For the last"), span),
    ),
    element(
      "div",
      { class: "row" },
      action("Label it", () => give({ last_s: Number(span.value) })),
      action("Take the last label back", async () => {
        const { windows, activity } = await device.ask("undo", {});
        done.textContent = `Taken back: ${nameOf(activity)}; ${counted(windows, "window")} ${windows === 1 ? "is" : "are"} as before.`;
      }),
    ),
    element(
      "details",
      {},
      element("summary", {}, "Another stretch"),
      stretch.root,
      action("Label this stretch", () => {
        const [from_s, to_s] = stretch.read();
        return give({ from_s, to_s });
      }),
    ),
    done,
  );
  const show = whenChanged(
    (/** @type {{labels: readonly string[], why: string}} */ found) => found,
    ({ labels, why }) => {
      none.textContent = why;
      none.hidden = !(form.hidden = !labels.length);
      const chosen = which.value;
      fill(which, labels.map((label) => element("option", { value: label }, nameOf(label))));
      if (labels.includes(chosen)) which.value = chosen;
    },
  );
  return { root: card("I was …", form, none, ...more), show };
}

/** A date as the field takes it: local time, seconds. @param {number} ms */
function local(ms) {
  return new Date(ms - 60_000 * new Date(ms).getTimezoneOffset()).toISOString().slice(0, 19);
}

/**
 * Two fields for the beginning and the end of a stretch of time.
 * @param {string} id of this pair
 * @returns {{root: HTMLElement, read: () => [number, number]}} in seconds since 1970; `read` throws an Error in words
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
    const [from_s, to_s] = [from, to].map(({ value }) => new Date(value).getTime() / 1000);
    if (!Number.isFinite(from_s) || !Number.isFinite(to_s)) throw new Error("A date and a time are missing.");
    if (from_s >= to_s) throw new Error("The stretch ends before it begins.");
    return /** @type {[number, number]} */ ([from_s, to_s]);
  };
  return { root, read };
}
