/** Teach me: tap an activity, move for 20 seconds, and see how well it does. */

import { action, attempt, card, confirmed, element, explained, fill, problemPlace, tell, whenChanged } from "./dom.js";
import { capital, labelText } from "./labels.js";

const MAX_NAME_LENGTH = 40;

/** @typedef {import("./api.js").Teaching} Teaching */
/** @typedef {(name: string, body?: object) => Promise<void>} Act does something, and shows what came of it */
/** @typedef {{root: HTMLElement, show: (found: Teaching) => void}} Part */

/**
 * @param {import("./api.js").Device} device
 * @returns {{roots: HTMLElement[], refresh: () => Promise<Teaching>}} `refresh` asks the device, and shows what it says
 */
export function teachingView(device) {
  /** @type {Act} */
  const act = async (name, body = {}) => {
    await device.ask(name, body);
    await refresh();
  };
  const parts = [lesson(act), activities(act), result(), own(act)];
  const unable = element("p", { class: "reason", role: "status" });
  const refresh = async () => {
    /** @type {Teaching} */
    const found = await device.ask("teaching");
    tell(unable, found.unable);
    unable.hidden = !found.unable;
    for (const part of parts) {
      part.root.hidden = !!found.unable;
      if (!found.unable) part.show(found);
    }
    return found;
  };
  return { roots: [unable, ...parts.map((part) => part.root)], refresh };
}

/** The countdown. @param {Act} act @returns {Part} */
function lesson(act) {
  const left = element("strong");
  const what = element("p", { class: "title", role: "status" });
  const words = element("p", { class: "lesson", role: "status" });
  const bar = element("progress", { value: 0, "aria-label": "Of this lesson" });
  const problem = problemPlace();
  const pressed = (/** @type {() => string} */ name) => () => attempt(problem, () => act(name()));
  let isPaused = false;
  const pause = element("button", { type: "button", onclick: pressed(() => (isPaused ? "resume-lesson" : "pause-lesson")) });
  const cancel = element("button", { type: "button", onclick: pressed(() => "cancel-lesson") }, "Cancel");
  const stop = element("button", { type: "button", onclick: pressed(() => "stop-recording") }, "Stop recording");
  const root = element(
    "section",
    { class: "card stage", "aria-label": "Lesson" },
    element("p", { class: "dial", "aria-hidden": "true" }, left, " s"),
    element("div", {}, what, words, bar, element("div", { class: "row" }, pause, cancel, stop), problem),
  );
  /** @param {Teaching} found */
  const show = ({ lesson: now, lesson_s: all, message, recording }) => {
    isPaused = !!now?.paused;
    root.classList.toggle("runs", now !== null);
    tell(left, String(now ? Math.max(0, Math.ceil(all - now.done_s)) : all));
    bar.max = all;
    bar.value = now?.done_s ?? 0;
    tell(what, now ? `${isPaused ? "Paused" : "Now"}: ${labelText(now.activity)}` : "Tap an activity");
    const hint = isPaused ? "Nothing counts until you go on." : `Go on for ${all} seconds, as you always do it.`;
    const first = `Then do it for ${all} seconds, with the sensor where it always is.`;
    tell(words, now ? now.warning || hint : capital(labelText(message)) || first);
    words.classList.toggle("warned", !!now?.warning);
    tell(pause, isPaused ? "Go on" : "Pause");
    pause.hidden = cancel.hidden = !now;
    stop.hidden = !!now || !recording;
  };
  return { root, show };
}

/** What can be taught. @param {Act} act @returns {Part} */
function activities(act) {
  const problem = problemPlace();
  const grid = element("div", { class: "choices taught", role: "group", "aria-label": "Activities" });
  const root = element("section", { "aria-label": "Activities" }, grid, problem);
  /** @param {Teaching} found @returns {[string, number][]} windows of each */
  const learnt = ({ labels, personal, result: known }) =>
    [...labels, ...personal.map(({ name }) => name)].map((name) => [name, known?.learnt[known.rows.indexOf(name)] ?? 0]);
  /** @param {Teaching} found */
  const draw = (found) => {
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.name : null;
    const buttons = learnt(found).map(([name, windows]) =>
      element(
        "button",
        {
          type: "button",
          class: windows ? "known" : null,
          "data-name": name,
          "aria-pressed": String(found.lesson?.activity === name),
          onclick: () => attempt(problem, () => act("teach", { activity: name })),
        },
        element("b", {}, labelText(name)),
        element("span", {}, windows ? `${windows} windows` : "not taught yet"),
      ),
    );
    fill(grid, buttons);
    buttons.find((button) => focused && button.dataset.name === focused)?.focus();
  };
  return { root, show: whenChanged((found) => [learnt(found), found.lesson?.activity], draw) };
}

/** How well it does. @returns {Part} */
function result() {
  const score = element("strong");
  const words = element("span", { class: "quiet", role: "status" });
  const bars = { own: scoreBar("Your model"), shared: scoreBar("The shared model") };
  const matrix = element("div", { class: "matrix", tabindex: "0", role: "region", "aria-label": "Confusion matrix" });
  const used = element("p", { class: "quiet used" });
  const root = card(
    "How well it does",
    element("p", { class: "score" }, score, words),
    element("dl", { class: "bars" }, bars.own.root, bars.shared.root),
    matrix,
    used,
  );
  /** @param {Teaching} found */
  const draw = ({ result: found, why_not: why }) => {
    const has = !!found?.windows;
    tell(score, has ? `${found.right} of ${found.windows}` : "–");
    const of = found?.rows.length === 1 ? "1 activity" : `${found?.rows.length} activities`;
    const right = `test windows right, of ${of}; computed in ${found?.solve_s.toFixed(2)} s`;
    tell(words, why || (has ? right : "The last quarter of each recording tests the model."));
    bars.own.set(found?.own);
    bars.shared.set(found?.shared);
    fill(matrix, has ? confusionTable(found) : null);
  };
  // a head that is solved again with the same outcome takes another time
  const compared = (/** @type {Teaching} */ found) => [found.result && { ...found.result, solve_s: 0 }, found.why_not];
  const drawChanged = whenChanged(compared, draw);
  const show = (/** @type {Teaching} */ found) => {
    drawChanged(found);
    tell(used, found.used);
  };
  return { root, show };
}

/** @param {string} name */
function scoreBar(name) {
  const meter = element("meter", { max: 1, value: 0, "aria-label": name });
  const words = element("span", {}, "–");
  const set = (/** @type {import("./api.js").Score | undefined} */ score) => {
    meter.value = score?.windows ? score.right / score.windows : 0;
    tell(words, score?.windows ? `${score.right} of ${score.windows}` : "–");
  };
  return { root: element("div", {}, element("dt", {}, name), element("dd", {}, meter, words)), set };
}

/** @param {import("./api.js").Taught} taught */
function confusionTable({ rows, columns, matrix }) {
  const heads = columns.map((name) => element("th", { scope: "col" }, element("span", {}, labelText(name))));
  const lines = rows.map((name, i) => {
    const all = matrix[i].reduce((sum, each) => sum + each, 0);
    const cells = columns.map((column, k) => {
      const count = matrix[i][k];
      const cell = element("td", { class: column === name ? "right" : count ? "wrong" : null }, count || "·");
      cell.style.setProperty("--share", String(all ? count / all : 0));
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, labelText(name)), cells);
  });
  return element(
    "table",
    { class: "confusion" },
    element("caption", {}, "Rows: done. Columns: recognized."),
    element("thead", {}, element("tr", {}, element("td"), heads)),
    element("tbody", {}, lines),
  );
}

/** Activities of one's own. @param {Act} act @returns {Part} */
function own(act) {
  const name = element("input", { id: "own-name", maxlength: MAX_NAME_LENGTH, autocomplete: "off" });
  const list = element("ul", { class: "own" });
  const problem = problemPlace();
  const add = action("Add it", async () => {
    await act("add-activity", { activity: name.value });
    name.value = "";
  });
  const root = card(
    "An activity of my own",
    element("div", {}, element("label", { for: "own-name" }, "Name"), name),
    add,
    list,
    problem,
    explained(
      "Only this device knows it, and its name is never sent.",
      "Nothing that this device sends has its windows, unless you say here as which of the federation's activities they count.",
    ),
  );
  /** @param {Teaching} found */
  const draw = ({ labels, personal }) =>
    fill(
      list,
      personal.map(({ name: each, counts_as: label }, i) => {
        const choice = element(
          "select",
          { id: `sent-${i}`, onchange: () => attempt(problem, () => act("count-as", { activity: each, label: choice.value })) },
          element("option", { value: "" }, "no, it stays on this device"),
          labels.map((one) => element("option", { value: one }, `yes, as ${labelText(one)}`)),
        );
        choice.value = label;
        return element(
          "li",
          {},
          element("b", {}, each),
          element("label", { for: `sent-${i}` }, "Sent to the federation"),
          choice,
          confirmed(`Remove ${each} …`, `Forget ${each}? Its windows stay, without a label.`, "Remove", () =>
            act("remove-activity", { activity: each }),
          ),
        );
      }),
    );
  return { root, show: whenChanged(({ personal, labels }) => [personal, labels], draw) };
}
