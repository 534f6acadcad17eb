/** What the person does, as the device recognizes it: now, and over the last minutes. */

import { clock, drawn, element, fill, tell, whenChanged } from "./dom.js";
import { classOf, labelText } from "./labels.js";

const SPAN_S = 300;
/** The next answer follows so soon, or there is a gap. */
const ANSWER_S = 2.6;
/** An answer that is older says how old it is. */
const FRESH_S = 10;

/** @typedef {import("./api.js").Now} Now */

/** @returns {{answer: HTMLElement[], minutes: HTMLElement, show: (found: Now, labels: readonly string[]) => void}} */
export function nowView() {
  const answer = element("p", { class: "answer", role: "status" });
  const details = element("p", { class: "quiet details" });
  const others = element("ul", { class: "chances" });
  const minutes = element("div", { class: "minutes" });
  const drawOthers = whenChanged(
    (/** @type {Now} */ found) => found.others ?? [],
    ({ others: found = [] }) =>
      fill(others, found.map(([name, chance]) => element("li", {}, `${labelText(name)} ${Math.round(100 * chance)} %`))),
  );
  const show = (/** @type {Now} */ found, /** @type {readonly string[]} */ labels) => {
    const last = found.idle ? undefined : found.seen[found.seen.length - 1];
    tell(answer, last ? labelText(last[1]) : (found.idle ?? "–"));
    const none = found.why ?? "Nothing was recognized in the last five minutes.";
    tell(details, found.error || (last ? detailsOf(last, found) : none));
    drawOthers(found);
    fill(minutes, band(found, labels));
  };
  return { answer: [answer, details, others], minutes, show };
}

/** @param {Now["seen"][0]} last @param {Now} found */
function detailsOf([at, , chance], { now, by }) {
  const age = Math.round(now - at);
  const parts = [chance === null ? "" : `${Math.round(100 * chance)} %`, age > FRESH_S ? `${age} s ago` : "", by && `by ${by}`];
  return parts.filter(Boolean).join(", ");
}

/** What was likeliest when, as a band, and the same in words. @param {Now} found @param {readonly string[]} labels */
function band({ seen, now }, labels) {
  const recent = seen.filter(([at]) => at > now - SPAN_S);
  if (!recent.length) return element("p", {}, "Nothing was recognized yet.");
  const names = [...new Set(recent.map(([, label]) => label))];
  const coloured = labels.length ? labels : names; // the federation's may not have come yet
  const bars = recent.map(([at, label, chance], i) => {
    const height = Math.max(4, 40 * (chance ?? 0));
    const x = Math.max(0, at - now + SPAN_S);
    const end = Math.min(recent[i + 1]?.[0] ?? Infinity, at + ANSWER_S) - now + SPAN_S;
    return drawn("rect", { x, y: 40 - height, width: Math.max(0.1, end - x + 0.1), height, class: classOf(label, coloured) });
  });
  return [
    drawn(
      "svg",
      { class: "band", viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img", "aria-label": bandLabel(recent) },
      ...bars,
    ),
    element("p", { class: "span quiet" }, element("span", {}, clock(1000 * (now - SPAN_S))), element("span", {}, "now")),
    legend(names, coloured),
  ];
}

/** Which colour is which. @param {readonly string[]} names @param {readonly string[]} labels */
export function legend(names, labels) {
  const items = names.map((name) => element("li", {}, element("i", { class: classOf(name, labels) }), labelText(name)));
  return element("ul", { class: "legend" }, items);
}

/** @param {Now["seen"]} recent */
function bandLabel(recent) {
  const begins = recent.filter(([, label], i) => recent[i - 1]?.[1] !== label);
  return begins
    .slice(-6)
    .map(([at, label]) => `from ${clock(1000 * at)} ${labelText(label)}`)
    .join(", ");
}
