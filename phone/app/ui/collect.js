/** Record motion while the page is visible, and say what was done. */

import { judge, measure } from "../collection/calibration.js";
import { STRIDE_MS, WINDOW_MS } from "../collection/motion.js";
import { askToPersist } from "../collection/store.js";
import { askForMotion } from "../recognizer/device_motion.js";
import { action, card, clock, day, drawn, element, explained, figures, fill, whenChanged } from "../views/dom.js";
import { labelForm, nameOf } from "../views/label.js";
import { labelText } from "../views/labels.js";

export const title = "Collect";
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
    explained("It records only while this page is visible.", "The screen stays on, and what is measured stays on this phone."),
  );
  const warn = whenChanged(
    (/** @type {string[]} */ found) => found,
    (found) => fill(warnings, found.map((each) => element("li", { class: "warning" }, each))),
  );
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
    warn(found);
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
  const buttons = element("div", { class: "choices", role: "group", "aria-label": "What you do" });
  const note = element("p", { class: "quiet", role: "status" });
  const root = card("I am now …", buttons, note);
  const draw = () => {
    const label =
      recorder.label === null
        ? "Windows have no label now; you can give it later."
        : `From now on everything is ${labelText(recorder.label)}, until you tap something else.`;
    note.textContent = recorder.running ? label : "Start recording first.";
    const focused = buttons.contains(document.activeElement) ? document.activeElement?.textContent : null;
    const choices = [...labels(), null].map((label) =>
      element(
        "button",
        {
          type: "button",
          "aria-pressed": String(recorder.running && recorder.label === label),
          disabled: !recorder.running,
          onclick: () => (recorder.setLabel(label), refresh()),
        },
        nameOf(label ?? ""),
      ),
    );
    fill(buttons, choices);
    choices.find((button) => focused && button.textContent === focused)?.focus();
  };
  const drawChanged = whenChanged(() => [labels(), recorder.label, recorder.running], draw);
  const refresh = () => drawChanged(null);
  return { root, refresh };
}

/** What was done before. @param {import("../main.js").App} app */
function before({ device, activities }) {
  const { root, show } = labelForm(device, element("p", {}, element("a", { href: "#day" }, "The whole day, on a timeline")));
  return { root, refresh: () => show({ labels: [...activities(), ""], why: "" }) };
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
  const root = card(
    "Calibration",
    explained("Check each phone once.", "Browsers disagree on the sign of gravity, and samples alone do not tell."),
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

/** Windows for each day and activity. @param {import("../main.js").App} app */
function counts(app) {
  const table = element("div");
  const about = explained(`A window is ${WINDOW_MS / 1000} s of motion.`, `One begins every ${STRIDE_MS / 1000} s.`);
  const root = card("What there is", table, about);
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
    const ended = element("p", { class: "quiet" }, `The newest ends at ${clock(last.startMs + WINDOW_MS)}.`);
    fill(table, [...days].reverse().map(([date, found]) => dayTable(date, found)), ended);
  };
  return { root, refresh };
}

/** @param {string} date @param {Map<string, number>} found windows of each label */
function dayTable(date, found) {
  const rows = [...found]
    .sort((one, other) => other[1] - one[1])
    .map(([label, count]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, label ? labelText(label) : "no label"),
        element("td", { class: "number" }, count.toLocaleString("en")),
      ),
    );
  const heads = ["Activity", "Windows"].map((name) => element("th", { scope: "col" }, name));
  const head = element("thead", { class: "sr" }, element("tr", {}, heads));
  return element("div", { class: "day" }, element("h3", {}, date), element("table", {}, head, element("tbody", {}, rows)));
}
