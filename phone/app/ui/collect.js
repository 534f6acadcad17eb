/** Record motion while the page is visible, and say what was done. */

import { judge, measure } from "../collection/calibration.js";
import { STRIDE_MS, WINDOW_MS } from "../collection/motion.js";
import { askToPersist } from "../collection/store.js";
import { askForMotion } from "../recognizer/device_motion.js";
import { labelText } from "../labels.js";
import { action, clock, counted, day, drawn, element, figures, fill } from "./dom.js";
import { timeRangeInputs } from "./time_range.js";

export const title = "Collect";
const MINUTES = [1, 2, 5, 10, 30, 60];
const CALIBRATION_MS = 2000;
const SETTLE_MS = 3000;
const REFRESH_MS = 500;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const parts = {
    recording: recording(app),
    now: now(app),
    before: before(app),
    calibration: calibration(app),
    counts: counts(app),
  };
  fill(root, element("h1", {}, title), ...Object.values(parts).map((part) => part.root));
  const refresh = () => Object.values(parts).forEach((part) => part.refresh());
  refresh();
  const timer = setInterval(refresh, REFRESH_MS);
  return () => clearInterval(timer);
}

/** Start and stop, and what the sensors say. @param {import("../main.js").App} app */
function recording({ recorder }) {
  const state = element("p", { class: "lead", role: "status" });
  const live = element("div", { hidden: true });
  const warnings = element("ul", { class: "attention", role: "status" });
  const start = action(
    "Start",
    async () => {
      await recorder.start();
      await askToPersist();
    },
    { class: "primary" },
  );
  const stop = action("Stop", () => recorder.stop());
  const root = element(
    "section",
    { class: "card", "aria-label": "Recording" },
    state,
    live,
    warnings,
    start,
    stop,
    element(
      "p",
      { class: "quiet" },
      "Only while this page is visible: the screen stays on, and nothing is recorded behind another app. " +
        "What is measured stays on this phone.",
    ),
  );
  let shown = "";
  const refresh = () => {
    const { running, silent, rateHz, levels, stream } = recorder;
    const words = !running ? "Not recording." : silent ? "Recording, but no sample comes." : "Recording.";
    if (state.textContent !== words) state.textContent = words;
    start.hidden = running;
    stop.hidden = !running;
    live.hidden = !running;
    if (running) {
      const gravity = stream ? Math.hypot(...stream.latest) : NaN;
      fill(
        live,
        figures([
          ["Samples a second", rateHz.toFixed(0)],
          ["Acceleration", Number.isFinite(gravity) ? `${gravity.toFixed(1)} m/s²` : "–"],
        ]),
        chart(levels),
      );
    }
    const found = [...recorder.warnings];
    if (silent)
      found.push(
        "This phone gives no motion. On Android: Chrome's Settings → Site settings → Motion sensors. On an iPhone: Settings → Apps → Safari → Motion & Orientation.",
      );
    if (shown !== (shown = found.join("\n")))
      fill(
        warnings,
        found.map((each) => element("li", { class: "warning" }, each)),
      );
  };
  return { root, refresh };
}

/** How strongly it shook over the last seconds. @param {number[]} levels */
function chart(levels) {
  const points = levels.map((each, i) => `${i},${30 - Math.min(28, 28 * Math.sqrt(each / 20))}`).join(" ");
  const label = `Shaking now ${(levels[levels.length - 1] ?? 0).toFixed(1)} m/s²`;
  return drawn(
    "svg",
    { class: "levels", viewBox: "0 0 120 32", preserveAspectRatio: "none", role: "img", "aria-label": label },
    drawn("polyline", { points, fill: "none", "vector-effect": "non-scaling-stroke" }),
  );
}

/** What is done now. @param {import("../main.js").App} app */
function now({ recorder, labels }) {
  const buttons = element("div", { class: "choices", role: "group", "aria-labelledby": "now-title" });
  const note = element("p", { class: "quiet", role: "status" });
  const root = element("section", { class: "card" }, element("h2", { id: "now-title" }, "I am now …"), buttons, note);
  let shown = "";
  const refresh = () => {
    const wanted = JSON.stringify([labels(), recorder.label, recorder.running]);
    if (wanted === shown) return;
    shown = wanted;
    root.classList.toggle("waits", !recorder.running);
    note.textContent = !recorder.running
      ? "Start recording first."
      : recorder.label === null
        ? "Windows have no label now; you can give it later."
        : `From now on everything is ${labelText(recorder.label)}, until you tap something else.`;
    const focused = buttons.contains(document.activeElement) ? document.activeElement?.textContent : null;
    fill(
      buttons,
      [...labels(), null].map((label) =>
        element(
          "button",
          {
            type: "button",
            "aria-pressed": String(recorder.running && recorder.label === label),
            disabled: !recorder.running,
            onclick: () => (recorder.setLabel(label), refresh()),
          },
          label === null ? "none of these" : labelText(label),
        ),
      ),
    );
    for (const button of buttons.children)
      if (focused && button.textContent === focused) /** @type {HTMLElement} */ (button).focus();
  };
  return { root, refresh };
}

/** What was done before. @param {import("../main.js").App} app */
function before({ recorder, store, labels }) {
  const which = element("select", { id: "before-label" });
  const minutes = element(
    "select",
    { id: "before-minutes" },
    MINUTES.map((each) => element("option", { value: each }, counted(each, "minute"))),
  );
  const stretch = timeRangeInputs("label");
  const done = element("p", { role: "status", class: "good" });
  /** @param {number} fromMs @param {number} toMs */
  const give = async (fromMs, toMs) => {
    const label = which.value === "" ? null : which.value;
    if (recorder.running) await recorder.work;
    const count = await store.label(fromMs, toMs, label);
    done.textContent = count
      ? `${counted(count, "window")} ${count === 1 ? "is" : "are"} ${label === null ? "without a label" : labelText(label)} now.`
      : "There are no windows in that time.";
  };
  const root = element(
    "section",
    { class: "card", "aria-labelledby": "before-title" },
    element("h2", { id: "before-title" }, "I was …"),
    element(
      "div",
      { class: "pair" },
      element("div", {}, element("label", { for: "before-label" }, "What"), which),
      element("div", {}, element("label", { for: "before-minutes" }, "For the last"), minutes),
    ),
    action("Label it", () => give(Date.now() - 60_000 * Number(minutes.value), Date.now())),
    element(
      "details",
      {},
      element("summary", {}, "Another stretch"),
      stretch.root,
      action("Label this stretch", () => give(...stretch.read())),
    ),
    element("p", {}, element("a", { href: "#day" }, "The whole day, on a timeline")),
    done,
  );
  let shown = "";
  const refresh = () => {
    const wanted = labels().join();
    if (wanted === shown) return;
    shown = wanted;
    fill(
      which,
      labels().map((label) => element("option", { value: label }, labelText(label))),
      element("option", { value: "" }, "nothing of these"),
    );
  };
  return { root, refresh };
}

/** Gravity's direction. @param {import("../main.js").App} app */
function calibration({ recorder, store }) {
  const status = element("p", { role: "status" });
  const choice = element("div", { class: "actions" });
  const check = action("Check now", async () => {
    fill(choice);
    await askForMotion(window);
    const sign = (await store.get("calibration"))?.sign ?? 1;
    status.textContent = "Lay the phone flat on a table, screen up, and let go.";
    await new Promise((settled) => setTimeout(settled, SETTLE_MS));
    status.textContent = "Measuring …";
    const { acc, gyro } = await measure(window, sign, CALIBRATION_MS);
    const verdict = judge(acc, gyro);
    status.textContent = verdict.words;
    if (verdict.ok) await store.set("calibration", { sign, atMs: Date.now(), gravity: verdict.gravity });
    if (verdict.reversed)
      fill(
        choice,
        action("The screen was up: turn the signs", () => turn(-sign, verdict.gravity)),
      );
  });
  /** @param {number} sign @param {number[]} gravity */
  const turn = async (sign, gravity) => {
    if (recorder.running) await recorder.stop();
    await store.set("calibration", { sign, atMs: Date.now(), gravity: gravity.map((each) => -each) });
    status.textContent =
      "The signs are turned. Windows that were recorded before have the old ones: delete them under Data.";
    fill(choice);
  };
  const root = element(
    "section",
    { class: "card" },
    element("h2", {}, "Calibration"),
    element(
      "p",
      { class: "quiet" },
      "Once for each phone: browsers do not agree on the sign of gravity, and samples alone do not tell.",
    ),
    status,
    choice,
    check,
  );
  store.get("calibration").then((/** @type {any} */ found) => {
    status.textContent = found
      ? `Right since ${day(found.atMs)}${found.sign < 0 ? "; the signs are turned" : ""}.`
      : "Not done yet.";
  });
  return { root, refresh: () => {} };
}

/** Windows for each day and class. @param {import("../main.js").App} app */
function counts(app) {
  const table = element("div");
  const root = element(
    "section",
    { class: "card", "aria-labelledby": "counts-title" },
    element("h2", { id: "counts-title" }, "What there is"),
    table,
    element(
      "p",
      { class: "quiet" },
      `A window is ${WINDOW_MS / 1000} s of motion; one begins every ${STRIDE_MS / 1000} s.`,
    ),
  );
  /** @type {unknown} */
  let shown;
  const refresh = () => {
    if (shown === (shown = app.marks)) return;
    /** @type {Map<string, Map<string, number>>} */
    const days = new Map();
    for (const { startMs, label } of app.marks) {
      const found = days.get(day(startMs)) ?? days.set(day(startMs), new Map()).get(day(startMs));
      found?.set(label ?? "", (found.get(label ?? "") ?? 0) + 1);
    }
    if (!days.size) return fill(table, element("p", {}, "Nothing yet."));
    const last = app.marks[app.marks.length - 1];
    fill(
      table,
      [...days].reverse().map(([date, found]) =>
        element(
          "div",
          { class: "day" },
          element("h3", {}, date),
          element(
            "table",
            {},
            element(
              "thead",
              { class: "sr" },
              element("tr", {}, element("th", { scope: "col" }, "Class"), element("th", { scope: "col" }, "Windows")),
            ),
            element(
              "tbody",
              {},
              [...found]
                .sort((one, other) => other[1] - one[1])
                .map(([label, count]) =>
                  element(
                    "tr",
                    {},
                    element("th", { scope: "row" }, label ? labelText(label) : "no label"),
                    element("td", { class: "number" }, count.toLocaleString("en")),
                  ),
                ),
            ),
          ),
        ),
      ),
      element("p", { class: "quiet" }, `The newest ends at ${clock(last.startMs + WINDOW_MS)}.`),
    );
  };
  return { root, refresh };
}
