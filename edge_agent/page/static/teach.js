/** Teach me: tap an activity, move for 20 seconds, and see how well it does; asks the agent, which has all of it. */
import { $, ask, field, find, make, pressable, Refused, say, spoken } from "./dom.js";

/** @typedef {{activity: string, done_s: number, paused: boolean, warning: string}} Lesson */
/** @typedef {{right: number, windows: number, macro_f1: number | null}} Score */
/** @typedef {{rows: string[], columns: string[], matrix: number[][], learnt: number[], right: number, windows: number,
 *   own: Score, shared: Score, solve_s: number}} Result */
/** @typedef {{takes_part: boolean, words: string, can: boolean}} Participation */
/** @typedef {{labels: string[], personal: {name: string, counts_as: string}[], lesson: Lesson | null, said: string,
 *   lesson_s: number, result: Result | null, why_not: string, used: string,
 *   participation: Participation}} Teaching */
/** @typedef {{unable: string, used: string, participation: Participation}} Unable */

const REST_MS = 1500, LESSON_MS = 400;
/** @type {Teaching | null} */
let shown = null;
let activities = "", matrix = "", personal = "";

/** Have something done, and look at what came of it. @param {string} name @param {object} body */
async function act(name, body = {}) {
  try {
    const done = await ask(name, body);
    if (done.words) say(done.words);
  } catch (error) {
    say(error instanceof Refused ? error.message : "The agent does not answer.", true);
  }
  await refresh();
}

/** @param {string} id @param {string} words only where they are others: a screen reader says each once */
function tell(id, words) {
  if ($(id).textContent !== words) $(id).textContent = words;
}

// ---- the lesson

/** @param {Teaching} found */
function showLesson({ lesson, said, lesson_s: all }) {
  $("stage").classList.toggle("runs", lesson !== null);
  const left = lesson ? Math.max(0, Math.ceil(all - lesson.done_s)) : all;
  $("countdown").textContent = String(left);
  find("lesson-bar", HTMLProgressElement).max = all;
  find("lesson-bar", HTMLProgressElement).value = lesson?.done_s ?? 0;
  tell("lesson-title", lesson ? `${lesson.paused ? "Paused" : "Now"}: ${spoken(lesson.activity)}` : "Tap an activity");
  tell("lesson-words", lesson ? lesson.warning || (lesson.paused ? "Nothing counts until you go on." : `Go on for ${all} seconds, as you always do it.`) : said ? spoken(said) : `Then do it for ${all} seconds, with the sensor where it always is.`);
  $("lesson-words").classList.toggle("bad", !!lesson?.warning);
  pressable("pause").disabled = pressable("cancel").disabled = !lesson;
  pressable("pause").textContent = lesson?.paused ? "Go on" : "Pause";
}

/** @param {Teaching} found */
function showActivities({ labels, personal: own, lesson, result }) {
  const names = [...labels, ...own.map((one) => one.name)];
  const learnt = Object.fromEntries(result?.rows.map((name, i) => [name, result.learnt[i]]) ?? []);
  const wanted = JSON.stringify([names.map(spoken), learnt, lesson?.activity]);
  if (wanted === activities) return;
  activities = wanted;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.activity : undefined;
  $("activities").replaceChildren(...names.map((name) => {
    const pressed = make("button", "", "activity");
    pressed.dataset.activity = name;
    pressed.setAttribute("aria-pressed", String(lesson?.activity === name));
    const count = learnt[name] ?? 0;
    pressed.append(make("b", spoken(name)), make("span", count ? `${count} windows` : "not taught yet"));
    pressed.classList.toggle("taught", count > 0);
    pressed.addEventListener("click", () => act("teach", { activity: name }));
    return pressed;
  }));
  for (const pressed of $("activities").children) if (pressed instanceof HTMLElement && focused && pressed.dataset.activity === focused) pressed.focus();
}

// ---- how well it does

/** @param {Score} score */
const share = ({ right, windows }) => (windows ? right / windows : 0);

/** @param {Teaching} found */
function showResult({ result, why_not: whyNot, used }) {
  tell("used", used);
  const wanted = JSON.stringify([result, whyNot]);
  if (wanted === matrix) return;
  matrix = wanted;
  const has = !!result && result.windows > 0;
  tell("score", has && result ? `${result.right} of ${result.windows}` : "–");
  tell("score-words", whyNot || (has && result ? `left-out windows right, of ${result.rows.length} ${result.rows.length === 1 ? "activity" : "activities"}; solved in ${result.solve_s.toFixed(2)} s` : "Of each stretch the last quarter is left out, and asked afterwards: that is the score."));
  /** @type {[string, Score | undefined][]} */
  const bars = [["own", result?.own], ["shared", result?.shared]];
  for (const [name, score] of bars) {
    find(`bar-${name}`, HTMLMeterElement).value = score ? share(score) : 0;
    tell(`bar-${name}-words`, score?.windows ? `${score.right} of ${score.windows}` : "–");
  }
  $("matrix").replaceChildren(...(has && result ? [confusionTable(result)] : [make("p", "Here you will see what it takes for what.", "quiet")]));
}

/** @param {Result} result */
function confusionTable({ rows, columns, matrix: counts }) {
  const table = make("table", "", "confusion"), head = table.createTHead().insertRow();
  table.createCaption().textContent = "Rows: what you did. Columns: what it said.";
  head.append(make("td"), ...columns.map((name) => {
    const cell = make("th");
    cell.scope = "col";
    cell.append(make("span", spoken(name)));
    return cell;
  }));
  const body = table.createTBody();
  rows.forEach((name, i) => {
    const line = body.insertRow(), all = counts[i].reduce((sum, one) => sum + one, 0), title = make("th", spoken(name));
    title.scope = "row";
    line.append(title, ...columns.map((column, k) => {
      const cell = make("td", counts[i][k] || "·", column === name ? "right" : counts[i][k] ? "wrong" : "");
      cell.style.setProperty("--share", String(all ? counts[i][k] / all : 0));
      return cell;
    }));
  });
  return table;
}

// ---- one's own activities

/** @param {Teaching} found */
function showPersonal({ labels, personal: own }) {
  const wanted = JSON.stringify([labels, own]);
  const isChoosing = document.activeElement instanceof HTMLSelectElement && $("personal").contains(document.activeElement);
  if (wanted === personal || isChoosing) return;
  personal = wanted;
  $("personal").replaceChildren(...own.map(({ name, counts_as: label }) => {
    const item = make("li"), select = make("select"), id = `send-${own.findIndex((one) => one.name === name)}`;
    const words = make("label", "Sent to the federation: ");
    select.id = words.htmlFor = id;
    select.append(make("option", "no, it stays on this device"), ...labels.map((one) => make("option", `yes, as ${spoken(one)}`)));
    select.selectedIndex = labels.indexOf(label) + 1;
    select.addEventListener("change", () => {
      select.blur();
      act("count-as", { activity: name, label: labels[select.selectedIndex - 1] ?? "" });
    });
    const gone = make("button", "Remove", "danger");
    gone.setAttribute("aria-label", `Remove ${name}`);
    gone.addEventListener("click", () => window.confirm(`Forget ${name}? Its windows stay, without a label.`) && act("remove-activity", { activity: name }));
    item.append(make("b", name), words, select, gone);
    return item;
  }));
}

/** @param {Participation} part */
function showParticipation(part) {
  tell("part-words", part.words);
  const pressed = pressable("part");
  pressed.hidden = part.takes_part && !part.can;
  pressed.textContent = part.takes_part ? "Withdraw this device" : "Take part again";
  pressed.className = part.takes_part ? "danger" : "plain";
}

// ---- together

async function refresh() {
  if (document.hidden || $("all").hidden) return;
  try {
    /** @type {Teaching & Unable} */
    const found = await ask("teaching");
    showParticipation(found.participation);
    $("teach").classList.toggle("unable", found.unable !== "");
    tell("unable", found.unable);
    shown = found.unable ? null : found;
    if (!shown) return;
    showLesson(shown);
    showActivities(shown);
    showResult(shown);
    showPersonal(shown);
  } catch (error) {
    if (error instanceof Refused) tell("unable", error.message);
  }
}

/** Begin, and look again and again: often while a lesson runs. */
export async function followTeaching() {
  pressable("pause").addEventListener("click", () => act(shown?.lesson?.paused ? "resume-lesson" : "pause-lesson"));
  pressable("cancel").addEventListener("click", () => act("cancel-lesson"));
  pressable("part").addEventListener("click", () => {
    if (!shown?.participation.takes_part) void act("take-part");
    else if (window.confirm("Take what this device has sent out of the federation? The next version of the model is as if it had never taken part, and nothing is sent until you say so.")) void act("withdraw");
  });
  $("new-activity").addEventListener("submit", async (event) => {
    event.preventDefault();
    await act("add-activity", { activity: field("activity-name").value });
    field("activity-name").value = "";
  });
  for (;;) {
    await refresh();
    await new Promise((done) => setTimeout(done, shown?.lesson ? LESSON_MS : REST_MS));
  }
}
