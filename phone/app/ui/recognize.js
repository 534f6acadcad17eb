/** What the phone thinks that its owner does, now and over the last minutes. */

import { labelText } from "../labels.js";
import { action, clock, drawn, element, fill } from "./dom.js";

export const title = "Recognize";
const REFRESH_MS = 500;
const SPAN_MS = 5 * 60_000;
const COLOURS = 8;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { recorder, recognition } = app;
  const label = element("p", { class: "answer", role: "status" });
  const details = element("p", { class: "quiet" });
  const others = element("ul", { class: "chances" });
  const line = element("div");
  const start = action("Start", () => recorder.start(), { class: "primary" });
  const stop = action("Stop", () => recorder.stop());
  fill(
    root,
    element("h1", {}, title),
    element("section", { class: "card", "aria-label": "Now" }, label, details, others, start, stop),
    element(
      "section",
      { class: "card", "aria-labelledby": "line-title" },
      element("h2", { id: "line-title" }, "The last five minutes"),
      line,
      element("p", {}, element("a", { href: "#day" }, "The whole day: see it, label and correct it")),
    ),
    element("p", { class: "quiet" }, "The model runs on this phone. What is recorded here is kept, as under Collect."),
  );
  let shown = "";
  const refresh = () => {
    const now = recognition.current;
    const wanted = JSON.stringify([
      now?.endMs,
      recorder.running,
      recognition.unavailableReason,
      recognition.problem,
      recognition.modelName,
    ]);
    start.hidden = recorder.running || !!recognition.unavailableReason;
    stop.hidden = !recorder.running;
    if (wanted === shown && !now) return;
    if (wanted !== shown) {
      shown = wanted;
      const words = now
        ? labelText(now.label)
        : recognition.unavailableReason
          ? "No model yet"
          : recorder.running
            ? "Listening …"
            : "Not listening";
      if (label.textContent !== words) label.textContent = words;
      details.textContent =
        recognition.problem ||
        recognition.unavailableReason ||
        (now
          ? `${Math.round(100 * now.probability)} %, by ${now.by}`
          : recorder.running
            ? "The first answer takes about three seconds."
            : `Ready: ${recognition.modelName}. ${app.models.caution}`);
      fill(
        others,
        now
          ? now.ranking
              .slice(1, 3)
              .map(([name, chance]) => element("li", {}, `${labelText(name)} ${Math.round(100 * chance)} %`))
          : [],
      );
      fill(line, timeline(recognition.history, app.activities()));
    }
  };
  refresh();
  const timer = setInterval(refresh, REFRESH_MS);
  return () => clearInterval(timer);
}

/**
 * Who was likeliest when, as a band, and the same in words.
 * @param {import("../recognition.js").Answer[]} history @param {string[]} labels
 */
function timeline(history, labels) {
  const now = Date.now();
  const recent = history.filter((each) => each.endMs > now - SPAN_MS);
  if (!recent.length) return element("p", {}, "Nothing was recognized yet.");
  const band = drawn(
    "svg",
    {
      class: "band",
      viewBox: "0 0 300 40",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": inSentences(recent),
    },
    ...recent.map((each, i) => {
      const next = recent[i + 1]?.middleMs ?? Infinity;
      const from = Math.max(0, each.middleMs - now + SPAN_MS) / 1000;
      const to = Math.min(next, each.middleMs + 1300) - now + SPAN_MS;
      const height = Math.max(4, 40 * each.probability);
      return drawn("rect", {
        x: from,
        y: 40 - height,
        width: Math.max(0.1, to / 1000 - from + 0.1),
        height,
        class: `class-${labels.indexOf(each.label) % COLOURS}`,
      });
    }),
  );
  const seen = labels.filter((label) => recent.some((each) => each.label === label));
  return [
    band,
    element("p", { class: "span quiet" }, element("span", {}, clock(now - SPAN_MS)), element("span", {}, "now")),
    element(
      "ul",
      { class: "legend" },
      seen.map((label) =>
        element("li", {}, element("i", { class: `class-${labels.indexOf(label) % COLOURS}` }), labelText(label)),
      ),
    ),
  ];
}

/** @param {import("../recognition.js").Answer[]} recent */
function inSentences(recent) {
  /** @type {{label: string, from: number}[]} */
  const runs = [];
  for (const { label, middleMs } of recent)
    if (runs[runs.length - 1]?.label !== label) runs.push({ label, from: middleMs });
  return runs
    .slice(-6)
    .map(({ label, from }) => `from ${clock(from)} ${labelText(label)}`)
    .join(", ");
}
