/** The device's page: asks the agent on the same address, and shows what it says as text, never as HTML. */
import { colour, drawConfidence, drawLines } from "./charts.js";
import { $, ask, field, find, LOGGED_OUT, logOut, make, pressable, Refused, say, setTexts, spoken } from "./dom.js";
import { followTeaching } from "./teach.js";

/** @typedef {{now: number, by: string, seen: [number, string, number | null][], error: string, signals: number[][]}} Now */
/** @typedef {{from_s: number, to_s: number, windows: number}} Stretch */
/** @typedef {{activity: string, origin: string, windows: number, bytes: number, last_s: number}} Kept */
/** @typedef {{labels: string[], spoken: {[label: string]: string}, why_no_labels: string, classes: Kept[], days: [string, {[activity: string]: number}][],
 *   unlabelled: Stretch[], unlabelled_more: number}} Windows */
/** @typedef {{name: string, adopted: boolean, whole: boolean, score: number | null, sha256: string}} Model */
/** @typedef {{models: Model[], serving: string, judged: string[], released: string[]}} Models */
/** @typedef {{level: string, check: string, message: string, advice: string}} Finding */

/** @param {string} id */
const canvas = (id) => find(id, HTMLCanvasElement);
/** @param {string} id */
const body = (id) => find(id, HTMLTableElement).tBodies[0];
const SPAN_S = 300, LIVE_MS = 1000, REST_MS = 5000, WINDOWS_MS = 30_000;
/** Counting 40,000 windows takes a second or more: it is to be a twentieth of the device's time at the most. */
const SHARE = 20;
/** @type {string[]} */
let labels = [];
let asked = 0, windowsDue = 0;

/** @param {(Node | string | number)[]} cells */
const row = (...cells) => {
  const found = make("tr");
  for (const cell of cells) found.append(cell instanceof Node ? cell : make("td", cell, typeof cell === "number" ? "n" : ""));
  return found;
};
/** @param {string} id @param {string[]} lines */
const list = (id, lines) => $(id).replaceChildren(...lines.map((line) => make("li", line)));
/** @param {string} activity */
const nameOf = (activity) => spoken(activity) || "(none)";
/** A moment of the reader's clock as ISO 8601 writes it, as Swedes do too: days are told so as well. @param {number} s */
const time = (s) => s < SET_S ? CLOCK_NOT_SET : new Date(s * 1000).toLocaleString("sv-SE");
/** Earlier times are of a clock that nobody had set, as a board's after a start without a network. */
const SET_S = 1_000_000_000, CLOCK_NOT_SET = "clock not set";
/** A number of windows, in words. @param {number} count */
const windowsText = (count) => (count === 1 ? "1 window" : `${count} windows`);
/** @param {number} count */
const windowsAre = (count) => `${windowsText(count)} ${count === 1 ? "is" : "are"}`;

/** @typedef {() => Promise<string | void>} Act does something, and says what came of it */

/** A button that does something, says what came of it, and shows what is new.
 * @param {string} text @param {Act} act */
function button(text, act, className = "plain") {
  const found = make("button", text, className);
  found.addEventListener("click", () => attempt(act, found));
  return found;
}

/** @param {Act} act @param {HTMLButtonElement | HTMLSelectElement} pressed */
async function attempt(act, pressed) {
  pressed.disabled = true;
  try {
    const words = await act();
    if (words) say(words);
    windowsDue = 0;
    await rest();
  } catch (error) {
    say(error instanceof Refused ? error.message : "The agent does not answer.", true);
  } finally {
    pressed.disabled = false;
  }
}

// ---- now

/** @param {string} label */
const colourOf = (label) => colour(`--c${((labels.indexOf(label) + 8) % 8) + 1}`);

async function live() {
  /** @type {Now} */
  const found = await ask("now");
  const last = found.seen.at(-1);
  $("label").textContent = last ? spoken(last[1]) : "–";
  const chance = !last || last[2] === null ? "" : `${Math.round(100 * last[2])} %, `;
  const by = found.by ? `, by ${found.by}` : "";
  $("probability").textContent = last ? `${chance}${Math.max(0, Math.round(found.now - last[0]))} s ago${by}` : "nothing in the last five minutes";
  $("live-error").textContent = found.error;
  drawConfidence(canvas("confidence"), found.seen, found.now, SPAN_S, colourOf);
  const legend = [...new Set(found.seen.filter((one) => one[2] !== null).map((one) => one[1]))].map((label) => {
    const key = make("i");
    key.className = `c${((labels.indexOf(label) + 8) % 8) + 1}`;
    const item = make("span"); // the colour and its name on one line
    item.className = "item";
    item.append(key, `${spoken(label)} `);
    return item;
  });
  $("legend").replaceChildren(...legend);
  drawLines(canvas("acc"), found.signals, [0, 1, 2]);
  drawLines(canvas("gyro"), found.signals, [3, 4, 5]);
  $("signals-note").textContent = found.signals.length ? `The last window: ${found.signals.length} samples, as measured.` : "No window of signals has come yet.";
}

// ---- labels

function span() {
  const chosen = document.querySelector("input[name=span]:checked");
  if (chosen instanceof HTMLInputElement && chosen.value !== "stretch") return { last_s: Number(chosen.value) };
  const [from_s, to_s] = ["from", "to"].map((id) => new Date(field(id).value).getTime() / 1000);
  if (!(to_s > from_s)) throw new Refused("Say from when to when; the end is after the begin.");
  return { from_s, to_s };
}

/** @param {string} activity @param {object} when */
async function give(activity, when) {
  const done = await ask("label", { activity, ...when });
  const none = done.windows ? "" : "; none lies there yet, those to come will have it";
  return `${windowsAre(done.windows)} now ${spoken(done.activity)}${none}.`;
}

/** @param {Windows} found */
function showLabels(found) {
  setTexts(found.spoken);
  if (String(labels) !== String(found.labels) || !$("labels").childElementCount) {
    labels = found.labels;
    const buttons = labels.map((label) => button(spoken(label), () => give(label, span()), "label"));
    $("labels").replaceChildren(...(buttons.length ? buttons : [make("p", found.why_no_labels, "quiet")]));
  }
}

// ---- windows

/** @param {number} count @param {string} what @param {object} selection */
async function removed(count, what, selection) {
  if (!window.confirm(`Delete ${windowsText(count)} of ${what} for good?`)) return "";
  return `${windowsAre((await ask("delete", selection)).windows)} deleted.`;
}

/** A cell with a button that deletes, named for who does not see its row.
 * @param {string} what @param {Act} act */
function deleting(what, act) {
  const cell = make("td"), pressed = button("Delete", act, "danger");
  pressed.setAttribute("aria-label", `Delete ${what}`);
  cell.append(pressed);
  return cell;
}

/** @param {Windows} found */
function showWindows(found) {
  /** @type {{[activity: string]: number}} */
  const counts = {};
  for (const kept of found.classes) counts[kept.activity] = (counts[kept.activity] ?? 0) + kept.windows;
  const classes = found.classes.map((one) => {
    const what = nameOf(one.activity);
    const cell = deleting(what, () => removed(counts[one.activity], what, { activity: one.activity }));
    return row(what, one.origin, one.windows, Number((one.bytes / 1e6).toFixed(2)), time(one.last_s), cell);
  });
  body("classes").replaceChildren(...classes);
  const names = Object.keys(counts);
  find("days", HTMLTableElement).createTHead().replaceChildren(row(...["day", ...names.map(nameOf), ""].map((name) => make("th", name))));
  body("days").replaceChildren(...found.days.map(([day, kept]) => {
    const total = Object.values(kept).reduce((sum, n) => sum + n, 0);
    const cell = deleting(day, () => removed(total, day, { day }));
    return row(new Date(day).getTime() / 1000 < SET_S ? CLOCK_NOT_SET : day, ...names.map((name) => kept[name] ?? 0), cell);
  }));
  showStretches(found);
}

/** @param {string} label */
function option(label) {
  const made = make("option", spoken(label));
  made.value = label;
  return made;
}

/** @param {Windows} found */
function showStretches(found) {
  if ($("unlabelled").contains(document.activeElement)) return; // a choice is being made
  body("unlabelled").replaceChildren(...found.unlabelled.map((one) => {
    const cell = make("td"), select = make("select");
    select.setAttribute("aria-label", `label for ${time(one.from_s)}`);
    select.append(make("option", "label…"), ...labels.map(option));
    select.addEventListener("change", () => {
      select.blur();
      attempt(() => give(select.value, { from_s: one.from_s, to_s: one.to_s }), select);
    });
    cell.append(select);
    return row(time(one.from_s), time(one.to_s), one.windows, cell);
  }));
  $("more").textContent = found.unlabelled_more ? `and ${found.unlabelled_more} earlier ones` : "";
}

// ---- models, status, doctor

/** A cell with a score, with as many digits as in the words about models. @param {number | null} value */
function score(value) {
  return make("td", value == null ? "–" : value.toFixed(3), "n");
}

/** @param {Models} found */
function showModels(found) {
  body("models").replaceChildren(...found.models.map((one) => row(one.adopted ? "yes" : "", one.name + (one.whole ? "" : " (gone)"), score(one.score), one.sha256.slice(0, 16))));
  $("roll-back").hidden = found.models.length < 2;
  $("serving").textContent = found.serving;
  list("judged", [...found.judged, ...found.released]);
}

async function examine() {
  $("examining").textContent = "It looks at config, clock, disk, server, broker and sensors; this takes seconds.";
  try {
    /** @type {{findings: Finding[]}} */
    const { findings } = await ask("doctor");
    $("findings").replaceChildren(...findings.map((one) => {
      const item = make("li", "", one.level);
      item.append(make("b", one.level), ` ${one.check}: ${one.message}${one.advice ? ` – ${one.advice}` : ""}`);
      return item;
    }));
  } finally {
    $("examining").textContent = "";
  }
}

/** @typedef {{words: string[], promises: string}} Privacy promises: what can be accepted here */
/** What the person was shown of a refused plan. */
let shownPromises = "";

/** @param {Privacy} found */
function showPrivacy({ words, promises }) {
  $("privacy").hidden = !words.length;
  list("privacy-words", words);
  $("accept-plan").hidden = !promises;
  shownPromises = promises;
}

async function acceptPlan() {
  if (!window.confirm(`Require no more than this from now on? ${shownPromises}`)) return "";
  await ask("accept-plan", { promises: shownPromises });
  return "Accepted: this device takes part under the plan.";
}

async function rest() {
  const [status, models, privacy] = await Promise.all([ask("status"), ask("models"), ask("privacy")]);
  showPrivacy(privacy);
  $("device").textContent = status.device;
  document.title = `${status.device} – Gaitway`;
  list("words", status.words);
  showModels(models);
  const begun = Date.now();
  if (begun < windowsDue) return;
  const windows = await ask("windows").catch(noWindows);
  windowsDue = Date.now() + Math.max(WINDOWS_MS, SHARE * (Date.now() - begun));
  if (windows) {
    showLabels(windows);
    showWindows(windows);
  }
}

/** @param {unknown} error @returns {null} */
function noWindows(error) {
  if (!(error instanceof Refused)) throw error;
  $("more").textContent = error.message;
  for (const id of ["classes", "days", "unlabelled"]) body(id).replaceChildren();
  return null;
}

// ---- session

function showLogin() {
  $("login").hidden = false;
  $("all").hidden = true;
  $("logout").hidden = true;
  $("password").focus();
}

async function open() {
  const session = await ask("session");
  if (!session.open) return showLogin();
  $("login").hidden = true;
  $("logout").hidden = !session.needs_password;
  $("all").hidden = false;
  await refresh();
}

/** Ask again and again while the page is seen; what is slow never overtakes itself. */
async function refresh() {
  if (document.hidden || $("all").hidden) return;
  try {
    if (Date.now() - asked >= REST_MS) {
      asked = Date.now();
      await rest();
    }
    await live();
    $("link").textContent = "";
  } catch (error) {
    if (!(error instanceof Refused)) $("link").textContent = "The agent does not answer.";
  }
}

async function forever() {
  await refresh();
  setTimeout(forever, LIVE_MS);
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("login", { password: field("password").value });
    field("password").value = $("login-error").textContent = "";
    await open();
  } catch (error) {
    $("login-error").textContent = error instanceof Refused ? error.message : "The agent does not answer.";
  }
});
$("logout").addEventListener("click", async () => {
  try {
    await logOut();
    showLogin();
  } catch {
    say("The agent does not answer.", true);
  }
});
pressable("undo").addEventListener("click", () => attempt(async () => {
  const done = await ask("undo", {});
  return `Taken back: ${done.activity}; ${done.windows} windows are as before.`;
}, pressable("undo")));
pressable("roll-back").addEventListener("click", () => attempt(async () => `Now in use: the ${(await ask("roll-back", {})).model}.`, pressable("roll-back")));
pressable("accept-plan").addEventListener("click", () => attempt(acceptPlan, pressable("accept-plan")));
pressable("examine").addEventListener("click", () => attempt(examine, pressable("examine")));
for (const id of ["from", "to"]) {
  field(id).addEventListener("input", () => {
    const stretch = document.querySelector("input[value=stretch]");
    if (stretch instanceof HTMLInputElement) stretch.checked = true;
  });
}
addEventListener(LOGGED_OUT, showLogin);
void followTeaching();
await open();
forever();
