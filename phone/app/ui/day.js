/** A day on the phone: signals, what is recognized, labels; tap or drag a stretch to label or correct it. */

import { labelText } from "../labels.js";
import { labelsWithin, MINUTE_MS, minutesOf, movementOf, sampleOf, stretchesOf, uncertainOf } from "../timeline.js";
import { counted, day, drawn, element, fill } from "./dom.js";

const TITLE = "The day";
const REFRESH_MS = 700;
const COLOURS = 8;
const HOUR_MS = 3_600_000;
const MAX_HOURS_MARKS = 6;
const MAX_ASKED = 5;
/** m/s²: a bar of full height. */
const MOVEMENT_FULL = 4;
/** A drag over fewer pixels is a tap. */
const TAP_PX = 6;

/** @typedef {import("../timeline.js").Stretch} Stretch */
/** @typedef {{fromMs: number, toMs: number}} Span */

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const view = new DayView(app);
  fill(root, element("h1", {}, TITLE), ...view.parts);
  view.refresh();
  const timer = setInterval(() => view.refresh(), REFRESH_MS);
  return () => {
    clearInterval(timer);
    view.ended = true;
  };
}

class DayView {
  /** @param {import("../main.js").App} app */
  constructor(app) {
    this.app = app;
    this.ended = false;
    /** @type {Map<number, import("../timeline.js").Look>} */ this.looks = new Map();
    /** @type {unknown} */ this.shownMarks = null;
    this.shownLooks = -1;
    this.reading = false;
    /** @type {Span | null} */ this.chosen = null;
    /** @type {(() => Promise<void>) | null} */ this.takeBack = null;
    this.which = element("select", { id: "day", onchange: () => this.draw() });
    this.chart = element("div");
    this.asked = element("div");
    this.list = element("ul", { class: "stretches" });
    this.problem = element("p", { class: "reason", hidden: true });
    this.done = element("p", { class: "good", role: "status" });
    this.back = element("button", { type: "button", hidden: true, onclick: () => this.takeBack?.() }, "Take it back");
    this.from = element("input", { type: "time", id: "day-from", onchange: () => this.typed() });
    this.to = element("input", { type: "time", id: "day-to", onchange: () => this.typed() });
    this.choices = element("div", { class: "choices", role: "group", "aria-label": "What you did" });
    this.parts = [
      element("p", {}, element("label", { for: "day" }, "Day "), this.which),
      this.problem,
      element("section", { class: "card", "aria-label": "Timeline" }, this.chart, this.form(), this.done, this.back),
      this.asked,
      element("section", { class: "card", "aria-labelledby": "day-list" }, element("h2", { id: "day-list" }, "Stretches"), this.list),
    ];
  }

  form() {
    return element(
      "div",
      {},
      element("p", { class: "quiet" }, "Drag over the chart, or tap a stretch of it; or set the times. Then say what you did."),
      element(
        "div",
        { class: "pair" },
        element("div", {}, element("label", { for: "day-from" }, "From"), this.from),
        element("div", {}, element("label", { for: "day-to" }, "To"), this.to),
      ),
      this.choices,
    );
  }

  /** Draw what is new, and look at windows that were not looked at yet. */
  refresh() {
    const { marks, models } = this.app;
    if (this.shownMarks !== marks) {
      this.shownMarks = marks;
      this.listDays();
      this.draw();
    } else if (this.shownLooks !== this.looks.size) this.draw();
    this.problem.hidden = !models.unavailableReason;
    this.problem.textContent = models.unavailableReason && `Nothing is recognized: ${models.unavailableReason}`;
    void this.read();
  }

  listDays() {
    const known = [...new Set(this.app.marks.map(({ startMs }) => dayBegin(startMs)))].reverse();
    const kept = Number(this.which.value) || known[0];
    fill(this.which, known.map((each) => element("option", { value: each }, day(each))));
    if (known.includes(kept)) this.which.value = String(kept);
    fill(
      this.choices,
      this.app.activities().map((label) =>
        element("button", { type: "button", onclick: () => this.give(this.chosen, label) }, labelText(label)),
      ),
      element("button", { type: "button", onclick: () => this.give(this.chosen, null) }, "none of these"),
    );
  }

  get minutes() {
    const begin = Number(this.which.value);
    return minutesOf(this.app.marks.filter(({ startMs }) => dayBegin(startMs) === begin));
  }

  /** Look at some windows of each minute, the newest minutes first; what was looked at stays so. */
  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      const wanted = this.minutes.reverse().flatMap(sampleOf).filter(({ id }) => !this.looks.has(id));
      if (!wanted.length) return;
      const samples = new Map((await this.app.store.windows()).map((each) => [/** @type {any} */ (each).id, each.x]));
      for (const { id } of wanted) {
        if (this.ended) return;
        const x = samples.get(id);
        if (x) this.looks.set(id, { ...(await this.recognized(x)), movement: movementOf(x) });
      }
    } finally {
      this.reading = false;
    }
  }

  /** @param {Float32Array} x @returns {Promise<{label: string | null, probability: number}>} */
  async recognized(x) {
    if (this.app.models.unavailableReason) return { label: null, probability: 0 };
    try {
      const [[label, probability]] = (await this.app.recognition.rank(x)).ranking;
      return { label, probability };
    } catch {
      return { label: null, probability: 0 }; // its model has gone meanwhile
    }
  }

  draw() {
    if (this.choosesInList()) return;
    this.shownLooks = this.looks.size;
    const { minutes } = this;
    const labels = this.app.activities();
    const runs = stretchesOf(minutes, this.looks);
    if (!minutes.length) {
      fill(this.chart, element("p", {}, "There are no windows yet: record some under Collect."));
      fill(this.list);
      fill(this.asked);
      return;
    }
    fill(this.chart, this.drawChart(minutes, runs, labels));
    fill(this.list, runs.map((each) => this.item(each, labels)));
    const uncertain = uncertainOf(minutes, this.looks);
    fill(
      this.asked,
      element(
        "section",
        { class: "card", "aria-labelledby": "day-asked" },
        element("h2", { id: "day-asked" }, "Help me with these"),
        uncertain.length
          ? [
              element("p", { class: "quiet" }, "Where the model is least certain, a label helps most. It counts in the next sums."),
              element("ul", { class: "stretches" }, uncertain.slice(0, MAX_ASKED).map((each) => this.item(each, labels))),
            ]
          : element("p", { class: "quiet" }, "Nothing to ask: what was recognized is certain, or labelled."),
      ),
    );
  }

  /** Whether somebody is choosing a label now, which redrawing would end. */
  choosesInList() {
    return document.activeElement instanceof HTMLSelectElement && !!document.activeElement.closest(".stretches");
  }

  /** @param {import("../timeline.js").Minute[]} minutes @param {Stretch[]} runs @param {string[]} labels */
  drawChart(minutes, runs, labels) {
    const first = Math.floor((minutes[0].number * MINUTE_MS) / HOUR_MS) * HOUR_MS;
    const hours = Math.ceil(((minutes[minutes.length - 1].number + 1) * MINUTE_MS - first) / HOUR_MS);
    const step = Math.ceil(hours / MAX_HOURS_MARKS);
    const width = 60 * step * Math.ceil(hours / step);
    const minuteOf = (/** @type {number} */ ms) => (ms - first) / MINUTE_MS;
    const svg = drawn("svg", {
      class: "day-chart",
      viewBox: `0 0 ${width} 120`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Movement, what was recognized and labels in ${counted(runs.length, "stretch", "stretches")}, which are listed below`,
    });
    for (const minute of minutes) {
      const { movement } = stretchesOf([minute], this.looks)[0];
      const height = 56 * Math.min(1, Math.sqrt((movement ?? 0) / MOVEMENT_FULL));
      svg.append(drawn("rect", { class: "movement", x: minuteOf(minute.number * MINUTE_MS), y: 58 - height, width: 1, height }));
    }
    for (const run of runs) {
      const place = { x: minuteOf(run.fromMs), width: minuteOf(run.toMs) - minuteOf(run.fromMs), height: 26 };
      if (run.recognized)
        svg.append(drawn("rect", { ...place, y: 64, class: classOf(run.recognized, labels), "fill-opacity": Math.max(0.25, run.certainty) }));
      svg.append(drawn("rect", { ...place, y: 94, class: run.label ? classOf(run.label, labels) : "open" }));
    }
    const mark = drawn("rect", { class: "selection", y: 0, height: 120, width: 0 });
    svg.append(mark);
    this.mark = { element: mark, minuteOf };
    this.showChosen();
    this.follow(/** @type {SVGSVGElement} */ (svg), width, first, runs);
    const marks = Array.from({ length: width / 60 / step }, (_, i) => element("li", {}, clock(first + i * step * HOUR_MS)));
    const used = labels.filter((label) => runs.some((each) => each.recognized === label || each.label === label));
    return [
      element("p", { class: "lanes quiet", "aria-hidden": "true" }, "Movement · Recognized · Label, from above"),
      svg,
      element("ol", { class: "hours quiet", "aria-hidden": "true" }, marks),
      element("ul", { class: "legend" }, used.map((label) => element("li", {}, element("i", { class: classOf(label, labels) }), labelText(label)))),
    ];
  }

  /** @param {SVGSVGElement} svg @param {number} width in minutes @param {number} first @param {Stretch[]} runs */
  follow(svg, width, first, runs) {
    const at = (/** @type {PointerEvent} */ event) => {
      const box = svg.getBoundingClientRect();
      return Math.min(width, Math.max(0, ((event.clientX - box.left) / box.width) * width));
    };
    const choose = (/** @type {number} */ from, /** @type {number} */ to) =>
      this.choose({ fromMs: first + from * MINUTE_MS, toMs: first + Math.max(from + 1, to) * MINUTE_MS });
    /** @type {{x: number, minute: number} | null} */
    let began = null;
    svg.addEventListener("pointerdown", (event) => {
      began = { x: event.clientX, minute: at(event) };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!began || Math.abs(event.clientX - began.x) < TAP_PX) return;
      const [low, high] = [began.minute, at(event)].sort((one, other) => one - other);
      choose(Math.floor(low), Math.ceil(high));
    });
    svg.addEventListener("pointerup", (event) => {
      const isTap = began && Math.abs(event.clientX - began.x) < TAP_PX;
      began = null;
      const ms = first + at(event) * MINUTE_MS;
      const tapped = isTap && runs.find((each) => each.fromMs <= ms && ms < each.toMs);
      if (tapped) this.choose(tapped);
    });
    svg.addEventListener("pointercancel", () => (began = null)); // the page is scrolled
  }

  /** @param {Span} span */
  choose({ fromMs, toMs }) {
    this.chosen = { fromMs, toMs };
    this.from.value = clock(fromMs);
    this.to.value = clock(Math.min(toMs, dayEnd(fromMs) - MINUTE_MS));
    this.showChosen();
  }

  showChosen() {
    if (!this.mark || !this.chosen) return;
    const [from, to] = [this.mark.minuteOf(this.chosen.fromMs), this.mark.minuteOf(this.chosen.toMs)];
    this.mark.element.setAttribute("x", String(from));
    this.mark.element.setAttribute("width", String(Math.max(0, to - from)));
  }

  typed() {
    const begin = Number(this.which.value);
    const [fromMs, toMs] = [this.from.value, this.to.value].map((value) => timeOn(begin, value));
    this.chosen = fromMs < toMs ? { fromMs, toMs } : null;
    this.showChosen();
  }

  /** @param {Stretch} stretch @param {string[]} labels */
  item(stretch, labels) {
    const when = `${clock(stretch.fromMs)} to ${clock(stretch.toMs)}`;
    const which = element(
      "select",
      { "aria-label": `What you did from ${when}` },
      labels.map((label) => element("option", { value: label }, labelText(label))),
    );
    which.value = stretch.label ?? stretch.recognized ?? labels[0];
    const verb = stretch.label ? "Correct" : "Label";
    const seen = stretch.recognized
      ? `${labelText(stretch.recognized)}, ${Math.round(100 * stretch.certainty)} %`
      : stretch.movement === null ? "not looked at yet" : "not recognized";
    const differs = stretch.label && stretch.recognized && stretch.label !== stretch.recognized ? " (differs)" : "";
    const given = stretch.label ? `labelled ${labelText(stretch.label)}${differs}` : "no label";
    return element(
      "li",
      {},
      element("b", {}, when),
      element("span", {}, `${seen} · ${given}`),
      element(
        "span",
        { class: "give" },
        which,
        element(
          "button",
          { type: "button", "aria-label": `${verb} ${when}`, onclick: () => this.give(stretch, which.value) },
          verb,
        ),
      ),
    );
  }

  /** @param {Span | null} span @param {string | null} label */
  async give(span, label) {
    if (!span) {
      this.done.textContent = "Choose a stretch first: drag over the chart, tap it, or set the times.";
      return;
    }
    const { store, recorder } = this.app;
    if (recorder.running) await recorder.work;
    const before = labelsWithin(this.app.marks, span.fromMs, span.toMs);
    const count = await store.label(span.fromMs, span.toMs, label);
    const words = label === null ? "without a label" : labelText(label);
    this.done.textContent = count
      ? `${counted(count, "window")} ${count === 1 ? "is" : "are"} ${words} now, from ${clock(span.fromMs)} to ${clock(span.toMs)}.`
      : "There are no windows in that time.";
    this.back.hidden = !count;
    this.takeBack = async () => {
      this.back.hidden = true;
      for (const span of before) await store.label(span.fromMs, span.toMs, span.label);
      this.done.textContent = "Taken back: the labels are as before.";
    };
  }
}

/** @param {string} label @param {string[]} labels */
const classOf = (label, labels) => `class-${(labels.indexOf(label) + COLOURS) % COLOURS}`;
/** @param {number} ms */
const dayBegin = (ms) => new Date(ms).setHours(0, 0, 0, 0);
/** @param {number} ms */
const dayEnd = (ms) => new Date(ms).setHours(24, 0, 0, 0);
/** Hours and minutes, as a field takes them. @param {number} ms */
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
/** @param {number} begin of the day @param {string} value such as 14:05 */
function timeOn(begin, value) {
  const [hours, minutes] = value.split(":").map(Number);
  return new Date(begin).setHours(hours, minutes, 0, 0);
}
