/** The device's page: the views for people, what the device keeps, and what its doctor finds. */
import { action, attempt, card, counted, drawn, element, fill, follow, problemPlace, tell, whenChanged } from "./views/dom.js";
import { DayView } from "./views/day.js";
import { model, participation, privacy, table } from "./views/federation.js";
import { labelForm } from "./views/label.js";
import { labelText } from "./views/labels.js";
import { nowView } from "./views/now.js";
import { teachingView } from "./views/teach.js";
import { ask, CHANGED, LOGGED_OUT, logOut, Refused } from "./agent.js";

/** @typedef {{name: string, adopted: boolean, whole: boolean, score: number | null, sha256: string}} Model */
/** @typedef {import("./views/api.js").Models & {models: Model[]}} Models */
/** @typedef {{activity: string, origin: string, windows: number, bytes: number, last_s: number}} Kept */
/** @typedef {{labels: string[], why_no_labels: string, classes: Kept[], days: [string, {[activity: string]: number}][]}} Windows */
/** @typedef {{level: string, check: string, message: string, advice: string}} Finding */

const LIVE_MS = 1000, TEACHING_MS = 400, REST_MS = 5000, DAY_MS = 5000, WINDOWS_MS = 30_000;
/** Counting 40,000 windows takes a second or more: it is to be a twentieth of the device's time at the most. */
const SHARE = 20;
/** Earlier times are of a clock that nobody had set, as a board's after a start without a network. */
const SET_S = 1_000_000_000, CLOCK_NOT_SET = "clock not set";
const device = { ask };

/** @param {string} id */
const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** A moment of the reader's clock as ISO 8601 writes it, as Swedes do too: days are told so as well. @param {number} s */
const time = (s) => (s < SET_S ? CLOCK_NOT_SET : new Date(s * 1000).toLocaleString("sv-SE"));
/** @param {string} activity */
const nameOf = (activity) => labelText(activity) || "(none)";

/** @type {(() => void)[]} what ends the views */
let ends = [];
/** @type {readonly string[]} of the federation */
let labels = [];
/** When windows are counted again, and whether all else is asked at once. */
let windowsDueMs = 0, restDueMs = 0;

// ---- the views

async function dayPage() {
  const view = new DayView(device, new URLSearchParams(location.search).get("day"));
  fill(find("all"), ...view.roots);
  ends = [follow(() => view.refresh(), DAY_MS)];
  showName(`${(await ask("status")).device}: the day`);
}

/** @param {string} name */
function showName(name) {
  tell(find("device"), name);
  document.title = `${name} – Gaitway`;
}

function devicePage() {
  const now = nowView(), teaching = teachingView(device), signals = signalsCard();
  const form = labelForm(device, element("p", {}, element("a", { href: "/timeline" }, "The whole day, on a timeline")));
  const doing = element("ul"), part = element("div"), required = element("div"), used = element("div"), windows = windowsCard();
  const [unable, lesson, activities, result, own] = teaching.roots;
  fill(
    find("all"),
    element("div", { class: "columns" }, card("Recognized now", ...now.answer, now.minutes), signals.root, form.root),
    element(
      "section",
      { "aria-labelledby": "h-teach" },
      element("h2", { id: "h-teach" }, "Teach me"),
      unable,
      element("div", { class: "columns" }, element("div", {}, lesson, activities), element("div", {}, result, own)),
    ),
    element("div", { class: "columns" }, card("What it is doing", doing, part), required, used, doctorCard()),
    windows.root,
  );
  /** A question of the person's stays open while all else goes on. @template T @param {Element} place @param {(found: T) => Node | null} draw */
  const drawnIn = (place, draw) => whenChanged((/** @type {T} */ found) => found, (found) => fill(place, draw(found)));
  const drawPart = drawnIn(part, (/** @type {any} */ found) => participation(device, found));
  const drawRequired = drawnIn(required, (/** @type {any} */ found) => (found.words.length ? privacy(device, found) : null));
  const drawUsed = drawnIn(used, (/** @type {Models} */ found) => model(device, found, modelsTable(found)));
  const askRest = async () => {
    if (Date.now() < restDueMs) return;
    restDueMs = Date.now() + REST_MS;
    const [status, promised, models] = await Promise.all([ask("status"), ask("privacy"), ask("models")]);
    showName(status.device);
    fill(doing, status.words.map((/** @type {string} */ each) => element("li", {}, each)));
    drawRequired(promised);
    drawUsed(models);
    const begunMs = Date.now();
    if (begunMs < windowsDueMs) return;
    /** @type {Windows} */
    const kept = await ask("windows").catch(noWindows);
    windowsDueMs = Date.now() + Math.max(WINDOWS_MS, SHARE * (Date.now() - begunMs));
    labels = kept.labels;
    form.show({ labels, why: kept.why_no_labels });
    windows.show(kept);
  };
  const askNow = async () => {
    const found = await ask("now");
    now.show(found, labels);
    signals.show(found.signals);
  };
  const askTeaching = async () => drawPart((await teaching.refresh()).participation);
  ends = [follow(askRest, LIVE_MS), follow(askNow, LIVE_MS), follow(askTeaching, TEACHING_MS)];
}

/** @param {unknown} error @returns {Windows} */
function noWindows(error) {
  if (!(error instanceof Refused)) throw error;
  return { labels: [], why_no_labels: error.message, classes: [], days: [] };
}

function signalsCard() {
  const charts = [signalChart("Acceleration", "m/s²", [0, 1, 2]), signalChart("Rotation", "rad/s", [3, 4, 5])];
  const note = element("p", { class: "quiet" });
  const show = (/** @type {number[][]} */ rows) => {
    for (const chart of charts) chart.show(rows);
    tell(note, rows.length ? `The last window: ${rows.length} samples, as measured.` : "No window of signals has come yet.");
  };
  return { root: card("Signals", ...charts.map((chart) => chart.root), note), show };
}

/** Samples as lines on one scale. @param {string} title @param {string} unit @param {number[]} columns x, y and z of a row */
function signalChart(title, unit, columns) {
  const svg = drawn("svg", { class: "lines", preserveAspectRatio: "none", role: "img", "aria-label": `${title} of the last window` });
  const range = element("span");
  const keys = ["x", "y", "z"].flatMap((axis, i) => [element("i", { class: `class-${i}` }), axis]);
  const root = element("figure", {}, element("figcaption", {}, `${title}, ${unit}`, element("span", { class: "keys" }, keys), range), svg);
  const show = (/** @type {number[][]} */ rows) => {
    const all = rows.flatMap((row) => columns.map((column) => row[column]));
    const low = Math.min(...all), high = Math.max(...all), span = Math.max(1, high - low);
    tell(range, rows.length ? `${low.toFixed(1)} to ${high.toFixed(1)}` : "");
    svg.setAttribute("viewBox", `0 0 ${Math.max(1, rows.length - 1)} 100`);
    const pointsOf = (/** @type {number} */ column) => rows.map((row, n) => `${n},${50 - (96 * (row[column] - (low + high) / 2)) / span}`).join(" ");
    svg.replaceChildren(...columns.map((column, i) => drawn("polyline", { class: `line-${i + 1}`, points: pointsOf(column) })));
  };
  return { root, show };
}

// ---- what is kept

function windowsCard() {
  const problem = problemPlace(), done = element("p", { class: "good", role: "status" });
  const tables = element("div");
  /** A button that deletes, named for who does not see its row.
   * @param {string} what @param {number} count @param {object} selection */
  const deleting = (what, count, selection) => {
    const work = async () => {
      if (!window.confirm(`Delete ${counted(count, "window")} of ${what} for good?`)) return;
      const { windows } = await ask("delete", selection);
      done.textContent = `${counted(windows, "window")} ${windows === 1 ? "is" : "are"} deleted.`;
    };
    return element("button", { type: "button", "aria-label": `Delete ${what}`, onclick: () => attempt(problem, work) }, "Delete");
  };
  /** @param {Windows} found */
  const draw = ({ classes, days }) => {
    /** @type {{[activity: string]: number}} */
    const counts = {};
    for (const kept of classes) counts[kept.activity] = (counts[kept.activity] ?? 0) + kept.windows;
    const names = Object.keys(counts);
    const number = (/** @type {string} */ name) => /** @type {const} */ ({ name, number: true });
    const byActivity = classes.map((one) => [
      nameOf(one.activity),
      one.origin,
      one.windows,
      (one.bytes / 1e6).toFixed(2),
      time(one.last_s),
      deleting(nameOf(one.activity), counts[one.activity], { activity: one.activity }),
    ]);
    const byDay = days.map(([day, kept]) => [
      new Date(day).getTime() / 1000 < SET_S ? CLOCK_NOT_SET : day,
      ...names.map((name) => kept[name] ?? 0),
      deleting(day, Object.values(kept).reduce((sum, n) => sum + n, 0), { day }),
    ]);
    fill(
      tables,
      classes.length ? table("By activity", ["activity", "source", number("windows"), number("MB"), "last", ""], byActivity) : "Nothing is kept yet.",
      days.length ? table("By day", ["day", ...names.map((name) => number(nameOf(name))), ""], byDay) : null,
    );
  };
  return { root: card("Windows", tables, done, problem), show: whenChanged((found) => found, draw) };
}

/** @param {Models} found */
function modelsTable({ models }) {
  const rows = models.map(({ adopted, name, whole, score, sha256 }) => [
    name + (adopted ? " (in use)" : "") + (whole ? "" : " (gone)"),
    score === null ? "–" : score.toFixed(3), // with as many digits as in the words about models
    sha256.slice(0, 8),
  ]);
  return models.length ? table("Models", ["model", { name: "score", number: true }, "sha256"], rows) : null;
}

function doctorCard() {
  const findings = element("ul", { class: "findings" });
  const note = element("p", { class: "quiet", role: "status" });
  const examine = action("Examine this device", async () => {
    note.textContent = "It looks at config, clock, disk, server, broker and sensors; this takes seconds.";
    /** @type {{findings: Finding[]}} */
    const found = await ask("doctor").finally(() => (note.textContent = ""));
    const items = found.findings.map(({ level, check, message, advice }) =>
      element("li", { class: level }, element("b", {}, level), ` ${check}: ${message}${advice ? ` – ${advice}` : ""}`),
    );
    fill(findings, items);
  });
  return card("Doctor", examine, note, findings);
}

// ---- session

/** Nothing is asked any more until somebody logs in. */
function close() {
  for (const end of ends) end();
  ends = [];
  find("logout").hidden = find("all").hidden = true;
  find("login").hidden = false;
  password.focus();
}

async function open() {
  const session = await ask("session");
  if (!session.open) return close();
  find("login").hidden = true;
  find("all").hidden = false;
  find("logout").hidden = !session.needs_password;
  restDueMs = windowsDueMs = 0;
  if (location.pathname === "/timeline") await dayPage();
  else devicePage();
}

const refused = find("login-error");
const password = /** @type {HTMLInputElement} */ (find("password"));
find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  void attempt(refused, async () => {
    await ask("login", { password: password.value });
    password.value = "";
    await open();
  });
});
find("logout").addEventListener("click", () => void logOut().then(close, () => {})); // an agent that is silent is said above
for (const link of document.querySelectorAll("nav a")) {
  if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
}
addEventListener(CHANGED, () => void (restDueMs = windowsDueMs = 0));
addEventListener(LOGGED_OUT, close);
await open();
