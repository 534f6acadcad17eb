/** A day of the device: movement, what was recognized, labels; tap or drag a stretch to label or correct it. */

import { attempt, card, counted, drawn, element, fill, minuteClock, problemPlace, tell } from "./dom.js";
import { labelled, nameOf } from "./label.js";
import { classOf, labelText } from "./labels.js";
import { legend } from "./now.js";

const MINUTE_S = 60;
const HOUR_S = 3600;
const MAX_HOURS_MARKS = 6;
const MAX_LISTED = 200;
/** m/s²: a bar of full height; walking has two to four. */
const MOVEMENT_FULL = 4;
/** A drag over fewer pixels is a tap. */
const TAP_PX = 6;
/** Earlier days are of a clock that nobody had set. */
const FIRST_SET_DAY = "2001-01-01";

/** @typedef {import("./api.js").Stretch} Stretch */
/** @typedef {import("./api.js").Day} Day */
/** @typedef {{from_s: number, to_s: number}} Span */

export class DayView {
  /** @param {import("./api.js").Device} device @param {string | null} [day] that is shown first */
  constructor(device, day = null) {
    this.device = device;
    this.first = day;
    /** @type {Day | null} */ this.found = null;
    this.shown = "";
    /** @type {Span | null} */ this.chosen = null;
    this.which = element("select", { id: "day", onchange: () => this.refresh() });
    this.chart = element("div");
    this.asked = element("ul", { class: "stretches" });
    this.askedWords = element("p", { class: "quiet" });
    this.list = element("ul", { class: "stretches" });
    this.listWords = element("p", { class: "quiet" });
    this.reason = element("p", { class: "reason", role: "status", hidden: true });
    this.problem = problemPlace();
    this.done = element("p", { class: "good", role: "status" });
    this.back = element("button", { type: "button", hidden: true, onclick: () => this.takeBack() }, "Take it back");
    this.from = element("input", { type: "time", id: "day-from", onchange: () => this.typed() });
    this.to = element("input", { type: "time", id: "day-to", onchange: () => this.typed() });
    this.choices = element("div", { class: "choices", role: "group", "aria-label": "What you did" });
    this.body = element(
      "div",
      { hidden: true },
      element("div", { class: "days" }, element("label", { for: "day" }, "Day"), this.which),
      card("Timeline", this.chart, this.form(), this.done, this.back, this.problem),
      card("Help me with these", this.askedWords, this.asked),
      card("Stretches", this.list, this.listWords),
    );
    this.roots = [this.reason, this.body];
  }

  form() {
    return element(
      "div",
      {},
      element("p", { class: "quiet" }, "Drag over the chart or tap a stretch of it, then say what you did."),
      element(
        "div",
        { class: "pair" },
        element("div", {}, element("label", { for: "day-from" }, "From"), this.from),
        element("div", {}, element("label", { for: "day-to" }, "To"), this.to),
      ),
      this.choices,
    );
  }

  /** Ask for the day that is chosen, and draw what is new; while somebody chooses a label in a list, nothing moves. */
  async refresh() {
    const day = this.which.value || this.first;
    try {
      /** @type {Day} */
      const found = await this.device.ask("day", { day });
      if (day !== (this.which.value || this.first)) return; // another one was chosen meanwhile
      this.say(found.problem, true);
      const now = JSON.stringify(found);
      if (now === this.shown || this.choosesInList()) return;
      this.shown = now;
      this.found = found;
      this.draw(found);
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, this.found !== null);
    }
  }

  /** @param {string} reason @param {boolean} hasDay */
  say(reason, hasDay) {
    tell(this.reason, reason);
    this.reason.hidden = !reason;
    this.body.hidden = !hasDay;
  }

  /** Whether somebody is choosing a label now, which redrawing would end. */
  choosesInList() {
    return document.activeElement instanceof HTMLSelectElement && !!document.activeElement.closest(".stretches");
  }

  /** @param {Day} found */
  draw(found) {
    fill(this.which, found.days.map((day) => element("option", { value: day }, dayName(day))));
    this.which.value = found.day;
    const giving = (/** @type {string} */ label) => () => this.give(this.chosen, label);
    fill(this.choices, found.labels.map((label) => element("button", { type: "button", onclick: giving(label) }, nameOf(label))));
    if (!found.labels.length) fill(this.choices, element("p", { class: "quiet" }, found.why_no_labels));
    fill(this.chart, found.stretches.length ? this.drawChart(found) : element("p", {}, "Nothing is known of this day."));
    const nothing = "Nothing to ask: what was recognized is certain, or labelled.";
    const more = found.uncertain_more ? ` ${found.uncertain_more.toLocaleString("en")} more come when these are labelled.` : "";
    tell(this.askedWords, found.uncertain.length ? `A label helps most where the model is least certain.${more}` : nothing);
    fill(this.asked, found.uncertain.map((each) => this.item(each, found)));
    fill(this.list, found.stretches.slice(0, MAX_LISTED).map((each) => this.item(each, found)));
    const left = found.stretches.length - MAX_LISTED;
    tell(this.listWords, left > 0 ? `And ${left.toLocaleString("en")} more of this day: label them by their time, above.` : "");
  }

  /** @param {Day} found */
  drawChart({ movement, stretches, labels }) {
    const first = hourOf(stretches[0].from_s);
    const hours = Math.ceil((stretches[stretches.length - 1].to_s - first) / HOUR_S);
    const step = Math.ceil(hours / MAX_HOURS_MARKS);
    const width = 60 * step * Math.ceil(hours / step);
    const minuteOf = (/** @type {number} */ s) => (s - first) / MINUTE_S;
    const svg = /** @type {SVGSVGElement} */ (
      drawn("svg", {
        class: "day-chart",
        viewBox: `0 0 ${width} 120`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `Movement, what was recognized and labels in ${counted(stretches.length, "stretch", "stretches")}, which are listed below`,
      })
    );
    for (const [at, moved] of movement) {
      const height = 56 * Math.min(1, Math.sqrt(moved / MOVEMENT_FULL));
      svg.append(drawn("rect", { class: "movement", x: minuteOf(at), y: 58 - height, width: 1, height }));
    }
    for (const each of stretches) {
      const place = { x: minuteOf(each.from_s), width: minuteOf(each.to_s) - minuteOf(each.from_s), height: 26 };
      const opacity = Math.max(0.25, each.certainty ?? 0);
      if (each.recognized) svg.append(drawn("rect", { ...place, y: 64, class: classOf(each.recognized, labels), "fill-opacity": opacity }));
      if (each.kept) svg.append(drawn("rect", { ...place, y: 94, class: each.label ? classOf(each.label, labels) : "open" }));
    }
    const mark = drawn("rect", { class: "selection", y: 0, height: 120, width: 0 });
    svg.append(mark);
    this.mark = { element: mark, minuteOf };
    this.showChosen();
    this.follow(svg, width, first, stretches);
    const marks = Array.from({ length: width / 60 / step }, (_, i) => element("li", {}, minuteClock(1000 * (first + i * step * HOUR_S))));
    const used = [...new Set(stretches.flatMap(({ recognized, label }) => [recognized, label]))].filter(Boolean).sort();
    const lanes = ["Movement", "Recognized", "Label"].map((each) => element("li", {}, each));
    return [
      element(
        "div",
        { class: "day-lanes" },
        element("ul", { class: "lanes quiet", "aria-hidden": "true" }, lanes),
        svg,
        element("ol", { class: "hours quiet", "aria-hidden": "true" }, marks),
      ),
      legend(used, labels),
    ];
  }

  /** @param {SVGSVGElement} svg @param {number} width in minutes @param {number} first @param {Stretch[]} stretches */
  follow(svg, width, first, stretches) {
    const at = (/** @type {PointerEvent} */ event) => {
      const box = svg.getBoundingClientRect();
      return Math.min(width, Math.max(0, ((event.clientX - box.left) / box.width) * width));
    };
    const choose = (/** @type {number} */ from, /** @type {number} */ to) =>
      this.choose({ from_s: first + from * MINUTE_S, to_s: first + Math.max(from + 1, to) * MINUTE_S });
    /** @type {{x: number, minute: number} | null} */
    let began = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
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
      const s = first + at(event) * MINUTE_S;
      const tapped = isTap && stretches.find((each) => each.from_s <= s && s < each.to_s);
      if (tapped) this.choose(tapped);
    });
    svg.addEventListener("pointercancel", () => (began = null)); // the page is scrolled
  }

  /** @param {Span} span */
  choose({ from_s, to_s }) {
    this.chosen = { from_s, to_s };
    const dayEnd = new Date(1000 * from_s).setHours(24, 0, 0, 0) / 1000;
    this.from.value = minuteClock(1000 * from_s);
    this.to.value = minuteClock(1000 * Math.min(to_s, dayEnd - MINUTE_S));
    this.showChosen();
  }

  showChosen() {
    if (!this.mark || !this.chosen) return;
    const [from, to] = [this.mark.minuteOf(this.chosen.from_s), this.mark.minuteOf(this.chosen.to_s)];
    this.mark.element.setAttribute("x", String(from));
    this.mark.element.setAttribute("width", String(Math.max(0, to - from)));
  }

  typed() {
    const [from_s, to_s] = [this.from.value, this.to.value].map((value) => new Date(`${this.which.value}T${value}`).getTime() / 1000);
    this.chosen = from_s < to_s ? { from_s, to_s } : null;
    this.showChosen();
  }

  /** @param {Stretch} stretch @param {Day} found */
  item(stretch, { labels, day }) {
    const { recognized, certainty, movement, label, kept } = stretch;
    const when = `${minuteClock(1000 * stretch.from_s)} to ${minuteClock(1000 * stretch.to_s)}`;
    const on = dayOf(stretch.from_s);
    const none = movement === null ? "not recognized yet" : "not recognized";
    const sure = certainty === null ? "" : `, ${Math.round(100 * certainty)} %`;
    const seen = recognized ? labelText(recognized) + sure : none;
    const differs = label && recognized && label !== recognized ? " (differs)" : "";
    const given = !kept ? "no window is kept" : label ? `labelled ${labelText(label)}${differs}` : "no label";
    return element(
      "li",
      {},
      element("b", {}, on === day ? when : `${dayName(on)}, ${when}`),
      element("span", {}, recognized ? element("i", { class: classOf(recognized, labels) }) : null, seen),
      element("span", { class: "quiet" }, movement === null ? "" : `${strengthOf(movement)} (${movement.toFixed(1)} m/s²)`),
      element("span", { class: differs ? "differs" : null }, given),
      kept && labels.length ? this.giving(stretch, when, labels.filter(Boolean)) : null,
    );
  }

  /** @param {Stretch} stretch @param {string} when @param {string[]} labels */
  giving(stretch, when, labels) {
    const options = labels.map((label) => element("option", { value: label }, labelText(label)));
    const which = element("select", { "aria-label": `What you did from ${when}` }, options);
    which.value = [stretch.label, stretch.recognized].find((label) => labels.includes(label)) ?? labels[0];
    const verb = stretch.label ? "Correct" : "Label";
    const give = () => this.give(stretch, which.value);
    return element("span", { class: "give" }, which, element("button", { type: "button", "aria-label": `${verb} ${when}`, onclick: give }, verb));
  }

  /** @param {Span | null} span @param {string} activity */
  async give(span, activity) {
    await attempt(this.problem, async () => {
      if (!span) throw new Error("Choose a stretch first: drag over the chart, tap it, or set the times.");
      const { from_s, to_s } = span;
      const done = await this.device.ask("label", { activity, from_s, to_s });
      const when = done.windows ? `, from ${minuteClock(1000 * from_s)} to ${minuteClock(1000 * to_s)}.` : "";
      this.done.textContent = labelled(done) + when;
      this.back.hidden = !done.windows;
      await this.refresh();
    });
  }

  async takeBack() {
    await attempt(this.problem, async () => {
      await this.device.ask("undo", {});
      this.back.hidden = true;
      this.done.textContent = "Taken back: the labels are as before.";
      await this.refresh();
    });
  }
}

/** @param {number} movement m/s² */
const strengthOf = (movement) => (movement < 0.2 ? "still" : movement < 1 ? "little movement" : "movement");
/** @param {number} s */
const hourOf = (s) => new Date(1000 * s).setMinutes(0, 0, 0) / 1000;

/** The day of the reader's calendar, such as 2026-11-28. @param {number} s */
export function dayOf(s) {
  const date = new Date(1000 * s);
  return [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
}

/** @param {string} day such as 2026-11-28 */
export function dayName(day) {
  if (day < FIRST_SET_DAY) return "clock not set";
  return new Date(`${day}T12:00`).toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short", year: "numeric" });
}
