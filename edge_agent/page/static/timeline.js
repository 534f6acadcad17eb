/** The timeline of a day: drag over the chart, or tap a stretch, and the form below it has the times. */

const SVG = "http://www.w3.org/2000/svg";
/** A drag over fewer pixels is a tap. */
const TAP_PX = 6;

const chart = document.querySelector("#chart"), form = document.querySelector("#span");
if (chart instanceof SVGSVGElement && form instanceof HTMLFormElement) follow(chart, form);

/** @param {SVGSVGElement} chart @param {HTMLFormElement} form */
function follow(chart, form) {
  const minutes = Number(chart.dataset.minutes), firstMinute = minuteOf(chart.dataset.first ?? "00:00");
  const how = document.querySelector("#how");
  if (how) how.textContent = "Drag over the chart, or tap a stretch of it; or type the times, which are this device's. Then say what you did.";
  chart.classList.add("drawable");
  const mark = document.createElementNS(SVG, "rect");
  mark.setAttribute("class", "selection");
  mark.setAttribute("y", "0");
  mark.setAttribute("height", "120");
  /** @type {{x: number, minute: number} | null} */
  let began = null;

  /** @param {PointerEvent} event @returns {number} whole minutes from the chart's beginning */
  const minuteAt = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.min(minutes, Math.max(0, ((event.clientX - box.left) / box.width) * minutes));
  };
  /** @param {number} from @param {number} to of the chart */
  const choose = (from, to) => {
    mark.setAttribute("x", String(from));
    mark.setAttribute("width", String(Math.max(1, to - from)));
    if (!mark.isConnected) chart.append(mark);
    field(form, "from").value = clock(firstMinute + from);
    field(form, "to").value = clock(firstMinute + Math.max(from + 1, to));
  };

  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = { x: event.clientX, minute: minuteAt(event) };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!began || Math.abs(event.clientX - began.x) < TAP_PX) return;
    const [low, high] = [began.minute, minuteAt(event)].sort((a, b) => a - b);
    choose(Math.floor(low), Math.ceil(high));
  });
  chart.addEventListener("pointerup", (event) => {
    const tapped = began && Math.abs(event.clientX - began.x) < TAP_PX;
    began = null;
    if (!tapped) return;
    const [from, to] = stretchAt(chart, minuteAt(event)) ?? [Math.floor(minuteAt(event)), Math.floor(minuteAt(event)) + 1];
    choose(from, to);
  });
  chart.addEventListener("pointercancel", () => { began = null; }); // the page is scrolled
}

/** The stretch of what was recognized or labelled at a minute.
 * @param {SVGSVGElement} chart @param {number} minute @returns {[number, number] | null} */
function stretchAt(chart, minute) {
  for (const rect of chart.querySelectorAll("rect[data-from]")) {
    const from = Number(rect.getAttribute("x")), to = from + Number(rect.getAttribute("width"));
    if (from <= minute && minute < to) return [from, to];
  }
  return null;
}

/** @param {HTMLFormElement} form @param {string} name */
function field(form, name) {
  const found = form.elements.namedItem(name);
  if (!(found instanceof HTMLInputElement)) throw new Error(`the form has no ${name}`);
  return found;
}

/** @param {string} clock such as 14:05 */
function minuteOf(clock) {
  const [hours, minutes] = clock.split(":").map(Number);
  return 60 * hours + minutes;
}

/** A minute of the day as a field takes it; the day's end is its last minute there. @param {number} minute */
function clock(minute) {
  const within = Math.min(minute, 24 * 60 - 1);
  return `${String(Math.floor(within / 60)).padStart(2, "0")}:${String(within % 60).padStart(2, "0")}`;
}
