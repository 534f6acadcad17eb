/** Teach me: tap an activity, move for 20 seconds, and see how well it does. */

import { capital, labelText } from "../labels.js";
import { LESSON_MS } from "../teaching/lesson.js";
import { MAX_NAME_LENGTH } from "../teaching/personal_activities.js";
import { action, confirmed, element, fill } from "./dom.js";

export const title = "Teach me";
const REFRESH_MS = 250;
const ALL_S = LESSON_MS / 1000;

/** @typedef {import("../main.js").App} App */
/** @typedef {{root: HTMLElement, refresh: () => void}} Part */

/** @param {HTMLElement} root @param {App} app @returns {() => void} */
export function show(root, app) {
  const parts = [lesson(app), activities(app), result(app), own(app)];
  const reason = element("p", { class: "reason", role: "status" });
  fill(root, element("h1", {}, title), reason, ...parts.map((part) => part.root));
  const refresh = () => {
    const words = app.teacher.unavailableReason;
    tell(reason, words);
    reason.hidden = !words;
    for (const part of parts) {
      part.root.hidden = !!words;
      part.refresh();
    }
  };
  app.teacher.watchers.add(refresh);
  refresh();
  const timer = setInterval(refresh, REFRESH_MS);
  return () => {
    clearInterval(timer);
    app.teacher.watchers.delete(refresh);
  };
}

/** Only where they are others: a screen reader says each once. @param {Element} place @param {string} words */
function tell(place, words) {
  if (place.textContent !== words) place.textContent = words;
}

/** Draw a part again whenever what it shows has changed. @param {() => unknown} shown @param {() => void} draw */
function whenChanged(shown, draw) {
  let before = "";
  return () => {
    const now = JSON.stringify(shown());
    if (now === before) return;
    before = now;
    draw();
  };
}

/** The countdown. @param {App} app @returns {Part} */
function lesson({ teacher, recorder }) {
  const left = element("strong", {}, String(ALL_S));
  const what = element("p", { class: "title", role: "status" });
  const words = element("p", { class: "said", role: "status" });
  const bar = element("progress", { max: LESSON_MS, value: 0, "aria-label": "Of this lesson" });
  const pause = element("button", { type: "button", onclick: () => (teacher.lesson?.paused ? teacher.resume() : teacher.pause()) });
  const cancel = element("button", { type: "button", onclick: () => void teacher.cancel() }, "Cancel");
  const stop = element("button", { type: "button", onclick: () => void recorder.stop() }, "Stop recording");
  const root = element(
    "section",
    { class: "card stage", "aria-label": "Lesson" },
    element("p", { class: "dial", "aria-hidden": "true" }, left, " s"),
    element("div", {}, what, words, bar, element("div", { class: "row" }, pause, cancel, stop)),
  );
  const refresh = () => {
    const { lesson: now, message, lastTaught } = teacher;
    root.classList.toggle("runs", now !== null);
    left.textContent = String(now ? Math.ceil((LESSON_MS - now.doneMs) / 1000) : ALL_S);
    bar.value = now?.doneMs ?? 0;
    tell(what, now ? `${now.paused ? "Paused" : "Now"}: ${labelText(now.activity)}` : "Tap an activity");
    const warning = now?.warning(Date.now()) ?? "";
    const done = message && lastTaught && message.includes("learnt.") ? `${capital(labelText(lastTaught))}: ${message}` : message;
    const hint = now?.paused ? "Nothing counts until you go on." : `Go on for ${ALL_S} seconds, as you always do it.`;
    tell(words, now ? warning || hint : done || `Then do it for ${ALL_S} seconds, with the phone where you carry it.`);
    words.classList.toggle("warned", !!warning);
    tell(pause, now?.paused ? "Go on" : "Pause");
    pause.hidden = cancel.hidden = !now;
    stop.hidden = !!now || !recorder.running;
  };
  return { root, refresh };
}

/** What can be taught. @param {App} app @returns {Part} */
function activities({ teacher }) {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const grid = element("div", { class: "choices taught", role: "group", "aria-label": "Activities" });
  const root = element("section", { "aria-label": "Activities" }, grid, problem);
  const start = async (/** @type {string} */ name) => {
    problem.hidden = true;
    try {
      await teacher.start(name);
    } catch (error) {
      problem.textContent = /** @type {Error} */ (error).message;
      problem.hidden = false;
    }
  };
  const learnt = (/** @type {string} */ name) => teacher.taught?.learnt[teacher.taught.activities.indexOf(name)] ?? 0;
  const draw = () => {
    const focused = grid.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.name : null;
    fill(
      grid,
      teacher.activities.map((name) =>
        element(
          "button",
          {
            type: "button",
            class: learnt(name) ? "known" : null,
            "data-name": name,
            "aria-pressed": String(teacher.lesson?.activity === name),
            onclick: () => void start(name),
          },
          element("b", {}, labelText(name)),
          element("span", {}, learnt(name) ? `${learnt(name)} windows` : "not taught yet"),
        ),
      ),
    );
    for (const button of grid.children) {
      if (focused && /** @type {HTMLElement} */ (button).dataset.name === focused) /** @type {HTMLElement} */ (button).focus();
    }
  };
  const shown = () => [teacher.activities.map((name) => [name, learnt(name)]), teacher.lesson?.activity];
  return { root, refresh: whenChanged(shown, draw) };
}

/** How well it does. @param {App} app @returns {Part} */
function result({ teacher, models, recognition }) {
  const now = element("strong", {}, "–");
  const other = element("span", { class: "quiet" });
  const score = element("strong");
  const words = element("span", { class: "quiet", role: "status" });
  const bars = [scoreBar("Your own head"), scoreBar("The shared head")];
  const matrix = element("div", { class: "matrix", tabindex: "0", role: "region", "aria-label": "Table: what it takes for what" });
  const used = element("p", { class: "quiet" });
  const root = element(
    "section",
    { class: "card", "aria-labelledby": "result-title" },
    element("h2", { id: "result-title" }, "How well it does"),
    element("p", { class: "score" }, score, words),
    element("dl", { class: "bars" }, bars.map((bar) => bar.root)),
    matrix,
    element("p", { class: "looks" }, element("span", { class: "quiet" }, "Right now it looks like"), now, other),
    used,
  );
  const draw = () => {
    const { taught, problem } = teacher;
    const windows = taught?.matrix.flat().reduce((sum, each) => sum + each, 0) ?? 0;
    const right = taught?.matrix.reduce((sum, row, code) => sum + row[code], 0) ?? 0;
    const count = taught?.matrix.filter((row) => row.some((each) => each > 0)).length ?? 0;
    tell(score, windows ? `${right} of ${windows}` : "–");
    const solved = `left-out windows right, of ${count} ${count === 1 ? "activity" : "activities"}; solved in ${taught?.solveS.toFixed(2)} s`;
    tell(words, problem || (windows ? solved : "Of each stretch the last quarter is left out, and asked afterwards: that is the score."));
    bars[0].set(taught?.own ?? null);
    bars[1].set(taught?.others ?? null);
    fill(matrix, taught && windows ? confusionTable(taught) : element("p", { class: "quiet" }, "Here you will see what it takes for what."));
  };
  const refreshTable = whenChanged(() => [teacher.taught && { ...teacher.taught, personal: 0, shared: 0 }, teacher.problem], draw);
  const refresh = () => {
    refreshTable();
    const answer = recognition.current; // the one that Recognize shows
    tell(now, answer ? labelText(answer.label) : "–");
    tell(other, answer ? `${Math.round(100 * answer.probability)} %, by ${answer.by}` : recognition.problem || "nothing is being measured");
    const uses = models.model ? `Recognize uses ${models.name}${models.reason ? `; ${models.reason}` : ""}.` : models.unavailableReason;
    tell(used, [uses, ...ownInWords(teacher)].join(" "));
  };
  return { root, refresh };
}

/** @param {import("../teaching/teacher.js").Teacher} teacher @returns {string[]} sentences */
function ownInWords({ ownLearnt: { named, unnamed } }) {
  const words = named.length ? [`By your own head it also names ${named.join(" and ")}.`] : [];
  const not = unnamed.map((name) => `It does not name ${name} yet: of what was taken for it, at most half was. Teach it again.`);
  return [...words, ...not];
}

/** @param {string} name */
function scoreBar(name) {
  const meter = element("meter", { max: 1, value: 0, "aria-label": name });
  const words = element("span", {}, "–");
  return {
    root: element("div", {}, element("dt", {}, name), element("dd", {}, meter, words)),
    set: (/** @type {import("../teaching/learned_head.js").Score | null} */ score) => {
      meter.value = score?.windows ? score.right / score.windows : 0;
      tell(words, score?.windows ? `${score.right} of ${score.windows}` : "–");
    },
  };
}

/** @param {import("../teaching/learned_head.js").Taught} taught */
function confusionTable({ activities: names, matrix }) {
  const rows = names.map((_, code) => code).filter((code) => matrix[code].some((each) => each > 0));
  const columns = names.map((_, code) => code).filter((code) => rows.includes(code) || matrix.some((row) => row[code] > 0));
  const heads = columns.map((code) => element("th", { scope: "col" }, element("span", {}, labelText(names[code]))));
  return element(
    "table",
    { class: "confusion" },
    element("caption", {}, "Rows: what you did. Columns: what it said."),
    element("thead", {}, element("tr", {}, element("td"), heads)),
    element(
      "tbody",
      {},
      rows.map((row) => {
        const all = matrix[row].reduce((sum, each) => sum + each, 0);
        const cells = columns.map((column) => {
          const count = matrix[row][column];
          const cell = element("td", { class: row === column ? "right" : count ? "wrong" : null }, count || "·");
          cell.style.setProperty("--share", String(count / all));
          return cell;
        });
        return element("tr", {}, element("th", { scope: "row" }, labelText(names[row])), cells);
      }),
    ),
  );
}

/** Activities of one's own. @param {App} app @returns {Part} */
function own({ teacher, labels }) {
  const name = element("input", { id: "own-name", maxlength: MAX_NAME_LENGTH, autocomplete: "off" });
  const list = element("ul", { class: "own" });
  const add = action("Add it", async () => {
    await teacher.add(name.value);
    name.value = "";
  });
  const root = element(
    "section",
    { class: "card stack", "aria-labelledby": "own-title" },
    element("h2", { id: "own-title" }, "An activity of my own"),
    element("label", { for: "own-name" }, "Name"),
    name,
    add,
    list,
    element(
      "p",
      { class: "quiet" },
      "It is one more activity that this phone alone knows. Its name is never sent. Its windows are in nothing that this " +
        "phone sends, unless you say here as which of the federation's activities they may count.",
    ),
  );
  const draw = () => {
    fill(
      list,
      teacher.personal.map(({ name: each, countsAs }, i) => {
        const choice = element(
          "select",
          { id: `sent-${i}`, onchange: () => void teacher.countAs(each, choice.value) },
          element("option", { value: "" }, "no, it stays on this phone"),
          labels().map((label) => element("option", { value: label }, `yes, as ${labelText(label)}`)),
        );
        choice.value = countsAs;
        return element(
          "li",
          {},
          element("b", {}, each),
          element("label", { for: `sent-${i}` }, "Sent to the federation"),
          choice,
          confirmed(`Remove ${each} …`, `Forget ${each}? Its windows stay, without a label.`, "Remove", () => teacher.remove(each)),
        );
      }),
    );
  };
  return { root, refresh: whenChanged(() => [teacher.personal, labels()], draw) };
}
