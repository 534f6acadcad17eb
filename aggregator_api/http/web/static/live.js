// Keeps a page up to date: one stream tells what has changed, and the parts that show it are asked for anew.
"use strict";

const MIN_MS = 1000; // between two refreshes of a part; longer where the server takes longer
const PAUSE_FACTOR = 4; // in times that the last refresh has taken
const RETRY_MS = 3000; // until a stream that was refused, as by a proxy whose server restarts, is asked for again
const MAX_MS = 60_000;

/** A part of the page that can be refreshed. */
class Part {
  /** @param {HTMLElement} element with `data-live`: the subjects that it shows, or `*` */
  constructor(element) {
    this.element = element;
    this.subjects = (element.dataset.live ?? "").split(" ");
    this.busy = this.stale = this.pausing = false;
    this.began = 0;
    element.addEventListener("htmx:before:request", () => this.begin());
    element.addEventListener("htmx:finally:request", () => this.end());
    element.addEventListener("refreshed", () => this.end());
  }

  /** @param {string[]} subjects that have changed */
  subjectsChanged(subjects) {
    if (this.subjects[0] !== "*" && !subjects.some((one) => one === "*" || this.subjects.includes(one))) return;
    this.stale = true;
    this.refresh();
  }

  refresh() {
    if (!this.stale || this.busy || document.hidden) return;
    this.stale = false;
    this.begin();
    if (this.element.dataset.charts) this.element.dispatchEvent(new CustomEvent("refresh"));
    else htmx.trigger(this.element, "refresh");
  }

  begin() {
    if (!this.busy) this.began = performance.now();
    this.busy = true;
  }

  end() {
    if (!this.busy || this.pausing) return;
    this.pausing = true;
    setTimeout(() => {
      this.busy = this.pausing = false;
      this.refresh();
    }, Math.max(MIN_MS, PAUSE_FACTOR * (performance.now() - this.began)));
  }
}

/** A moment of the reader's clock as ISO 8601 writes it, as Swedes do too. @param {string} moment @param {boolean} to_second */
function written(moment, to_second) {
  return new Date(moment).toLocaleString("sv-SE", to_second ? {} : { dateStyle: "short" });
}

/** Say how long ago the moments on the page were. */
function updateTimes() {
  /** @type {[Intl.RelativeTimeFormatUnit, number][]} */
  const units = [["day", 86400], ["hour", 3600], ["minute", 60]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  for (const element of /** @type {NodeListOf<HTMLTimeElement>} */ (document.querySelectorAll("time[datetime]"))) {
    const seconds = (new Date(element.dateTime).getTime() - Date.now()) / 1000;
    const unit = units.find(([, size]) => Math.abs(seconds) >= size);
    const far = unit && unit[0] === "day" && Math.abs(seconds) > 14 * 86400;
    element.title = written(element.dateTime, true);
    element.textContent = far ? written(element.dateTime, false)
      : unit ? words.format(Math.round(seconds / unit[1]), unit[0])
      : Math.abs(seconds) < 5 ? "now" : words.format(Math.trunc(seconds), "second");
  }
}

/** @param {string} address of the stream @param {Part[]} parts @param {HTMLElement} shown says whether it is open */
function follow(address, parts, shown) {
  const all = () => parts.forEach((part) => part.subjectsChanged(["*"]));
  /** @type {EventSource} */
  let stream;
  let wasLost = false;
  let wait = RETRY_MS;
  const open = () => {
    stream = new EventSource(address);
    stream.addEventListener("open", () => {
      shown.textContent = "live";
      shown.classList.remove("lost");
      if (wasLost) all(); // something may have happened meanwhile
      wasLost = false;
      wait = RETRY_MS;
    });
    stream.addEventListener("error", () => {
      wasLost = true;
      shown.textContent = "connecting";
      shown.classList.add("lost");
      if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      all(); // it was refused: who has to log in is sent there by any part's answer
      setTimeout(open, wait);
      wait = Math.min(2 * wait, MAX_MS);
    });
    stream.addEventListener("changed", (event) => parts.forEach((part) => part.subjectsChanged(event.data.split(" "))));
  };
  open();
  window.addEventListener("pagehide", () => stream.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

/** A form is sent once, however often its button is pressed, and says that the server is at it. @param {SubmitEvent} event */
function sentOnce(event) {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.sent) return event.preventDefault();
  form.dataset.sent = "yes";
  const words = event.submitter?.dataset.working;
  if (event.submitter && words) event.submitter.textContent = words;
}

document.addEventListener("submit", sentOnce);
document.addEventListener("DOMContentLoaded", () => {
  /** @type {NodeListOf<HTMLElement>} */
  const elements = document.querySelectorAll("[data-live]");
  const parts = [...elements].map((element) => new Part(element));
  updateTimes();
  setInterval(() => updateTimes(), 10_000);
  document.addEventListener("htmx:after:swap", () => updateTimes());
  document.addEventListener("visibilitychange", () => parts.forEach((part) => part.refresh()));
  const shown = document.getElementById("link");
  if (document.body.dataset.stream && shown) follow(document.body.dataset.stream, parts, shown);
});
