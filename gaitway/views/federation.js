/** What is said of the federation, of privacy and of the model in use, and what the person may do about it. */

import { action, card, confirmed, element, explained, fill } from "./dom.js";
import { capital } from "./labels.js";

/** @typedef {import("./api.js").Device} Device */
/** @typedef {import("./dom.js").Child} Child */

/** Whether the device takes part, and the way out or back. @param {Device} device @param {import("./api.js").Participation} found */
export function participation(device, { takes_part: takesPart, can, words, withdraws }) {
  const wish = !takesPart
    ? action("Take part again", () => device.ask("take-part", {}))
    : can && confirmed("Withdraw …", withdraws ?? WITHDRAWS, "Withdraw", () => device.ask("withdraw", {}));
  return element("div", { class: "stack" }, words ? element("p", { class: "part", role: "status" }, words) : null, wish);
}

const WITHDRAWS =
  "What this device has sent is taken out of the federation: the next version of the model is as if it had never taken part. " +
  "Nothing is sent until you take part again.";

/** @param {Device} device @param {import("./api.js").Privacy} found @param {...Child} more */
export function privacy(device, { words, promises, more: about = "" }, ...more) {
  const accept = () => device.ask("accept-plan", { promises });
  return card(
    "Privacy",
    element("ul", {}, words.map((each) => element("li", {}, each))),
    explained("A plan that promises less is refused, and only you can loosen this, here.", about),
    promises ? confirmed("Accept the plan …", `This device then requires no more than this: ${promises}`, "Accept", accept) : null,
    ...more,
  );
}

/** @param {Device} device @param {import("./api.js").Models} found @param {...Child} more */
export function model(device, { used, caution, why, choices, result }, ...more) {
  const done = element("p", { class: "quiet", role: "status" }, result);
  const buttons = choices.map(({ label, name, body = {} }) =>
    action(label, async () => void (done.textContent = (await device.ask(name, body)).words)),
  );
  const reasons = why.map((each) => element("p", { class: "quiet" }, capital(each)));
  return card(
    "The model in use",
    element("p", {}, used),
    caution ? element("p", { class: "reason" }, caution) : null,
    why.length ? element("details", {}, element("summary", {}, "Learn more"), reasons) : null,
    buttons.length ? element("div", { class: "actions" }, buttons) : null,
    done,
    ...more,
  );
}

/**
 * A table in a region that scrolls by itself.
 * @param {string} title @param {(string | {name: string, number: true})[]} columns @param {Child[][]} rows
 */
export function table(title, columns, rows) {
  const isNumber = columns.map((each) => typeof each !== "string");
  const heads = columns.map((each) =>
    typeof each === "string" ? element("th", { scope: "col" }, each) : element("th", { scope: "col", class: "number" }, each.name),
  );
  const body = element("tbody");
  fill(
    body,
    rows.map((cells) => element("tr", {}, cells.map((cell, i) => element("td", { class: isNumber[i] ? "number" : null }, cell)))),
  );
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${title}` },
    element("table", {}, element("caption", {}, title), element("thead", {}, element("tr", {}, heads)), body),
  );
}
