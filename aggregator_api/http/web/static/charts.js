// Draws scores, bytes and privacy over rounds; the numbers come as JSON, and the colours from the style sheet.
"use strict";

const HUES = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

/** @typedef {(number | null)[]} Column of values over rounds */
/** @typedef {{label: string, width?: number, class?: string, stroke?: string, [more: string]: unknown}} Series */
/** @typedef {[Column[], Series[], object[], ((value: number) => string)?]} Chart */
/** What `/live/…/scores` answers.
 * @typedef {object} Scores
 * @property {number[]} rounds @property {Column} mean @property {Column} worst @property {Column} low
 * @property {Column} high @property {{label: string, values: Column}[]} classes @property {Column} received
 * @property {Column} sent @property {Column} epsilon
 * @property {number | null} largest that a score can be; null: nobody knows */

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** @param {number} bytes */
const short = (bytes) => (bytes >= 1e9 ? `${bytes / 1e9} GB` : bytes >= 1e6 ? `${bytes / 1e6} MB` : bytes >= 1e3 ? `${bytes / 1e3} kB` : `${bytes} B`);

/** How wide the axis must be for its longest number.
 * @param {any} plot of uPlot @param {(string | number)[] | null} values @param {number} index
 * @param {number} cycle of the layout */
function widthOf(plot, values, index, cycle) {
  const axis = plot.axes[index];
  if (cycle > 1) return axis._size; // else the two axes would go on changing one another
  plot.ctx.font = axis.font[0];
  const widths = (values ?? []).map((value) => plot.ctx.measureText(String(value)).width / devicePixelRatio);
  return Math.ceil(axis.ticks.size + axis.gap + Math.max(24, ...widths) + 4);
}

/** @param {((value: number) => string)=} format */
function axes(format) {
  const line = { stroke: colour("--line"), width: 1 };
  const common = { stroke: colour("--quiet"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
  /** @param {unknown} _self @param {number[]} splits */
  const whole = (_self, splits) => splits.map((one) => (Number.isInteger(one) ? one : ""));
  /** @param {unknown} _self @param {number[]} splits */
  const formatted = (_self, splits) => splits.map((one) => (format ? format(one) : one));
  const values = format ? { values: formatted } : {};
  return [{ ...common, values: whole }, { ...common, size: widthOf, ...values }];
}

/** @param {string} label @param {string} name of a colour @param {object} extra @returns {Series} */
function line(label, name, extra = {}) {
  return { label, stroke: colour(name), width: 2, points: { size: 5 }, spanGaps: true, ...extra };
}

/** The edge of a band: it is there for the band, and is not drawn or named. */
const EDGE = { label: "", width: 0, points: { show: false }, class: "edge" };

/** What each chart shows: [data, series, bands, format of the axis]; no data, no chart.
 * @type {{[name: string]: (d: Scores) => Chart}} */
const CHARTS = {
  scores: (d) => [
    [d.rounds, d.mean, d.worst, d.high, d.low],
    [line("mean", "--c1"), line("worst tenth", "--c4"), EDGE, EDGE],
    [{ series: [3, 4], fill: `${colour("--c1")}22` }],
  ],
  classes: (d) => [
    [d.rounds, ...d.classes.map((one) => one.values)],
    d.classes.map((one, k) => line(one.label, HUES[k % HUES.length], k < HUES.length ? {} : { dash: [6, 4] })),
    [],
  ],
  bytes: (d) => [[d.rounds, d.received, d.sent], [line("received", "--c3"), line("sent", "--c5")], [], short],
  epsilon: (d) => [[d.rounds, d.epsilon], [line("ε", "--c5")], []],
};

/** How far the axis of scores reaches: a little beyond them, and with shares from 0 to 100 at the most.
 * @param {number | null} largest @returns {(plot: uPlot, low: number, high: number) => [number, number]} */
function within(largest) {
  return (_plot, low, high) => {
    const beyond = 0.1 * (high - low || Math.abs(high) || 1);
    return [Math.max(0, low - beyond), largest === null ? high + beyond : Math.min(largest, high + beyond)];
  };
}

/** @typedef {HTMLElement & {plot?: uPlot | null}} Drawn an element, and the chart that is in it */

/** @param {Drawn} element @param {Scores} data */
function draw(element, data) {
  const [columns, series, bands, format] = CHARTS[element.dataset.chart ?? ""](data);
  const scores = ["scores", "classes"].includes(element.dataset.chart ?? "");
  const has_data = columns.slice(1).some((column) => column.some((value) => value !== null));
  const figure = element.closest("figure");
  if (element.dataset.chart === "epsilon" && figure) figure.hidden = !has_data;
  if (element.plot) element.plot.destroy();
  element.plot = null;
  element.replaceChildren();
  if (!has_data) {
    const note = document.createElement("p");
    note.className = "quiet";
    note.textContent = "Nothing was measured yet.";
    element.append(note);
    return;
  }
  element.plot = new uPlot({
    width: element.clientWidth,
    height: 240,
    series: [{ label: "round" }, ...series],
    bands,
    axes: axes(format),
    scales: { x: { time: false }, y: scores ? { range: within(data.largest) } : {} },
    legend: { live: false },
    cursor: { drag: { x: false, y: false } },
  }, columns, element);
  /** @type {NodeListOf<HTMLElement>} */
  const named = element.plot.root.querySelectorAll(".u-legend .u-series");
  named.forEach((row, k) => { row.hidden = columns.length === 2 || series[k].class === "edge"; });
  element.plot.root.setAttribute("role", "img");
  element.plot.root.setAttribute("aria-label", chartDescription(columns, series));
}

/** The chart for who does not see it: where each line begins and ends.
 * @param {Column[]} columns @param {Series[]} series */
function chartDescription(columns, series) {
  const descriptions = series.map((one, k) => {
    if (one.class === "edge") return "";
    const known = columns[k + 1].filter((value) => value !== null);
    return known.length ? `${one.label} from ${known[0]} to ${known[known.length - 1]}` : "";
  });
  return `Rounds ${columns[0][0]} to ${columns[0][columns[0].length - 1]}: ${descriptions.filter(Boolean).join("; ")}`;
}

class Charts {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** @type {NodeListOf<Drawn>} */
    const found = root.querySelectorAll("[data-chart]");
    this.charts = [...found];
    /** @type {Scores | null} */
    this.data = null;
    root.addEventListener("refresh", () => this.load());
    new ResizeObserver(() => this.resize()).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.load();
  }

  async load() {
    try {
      const answer = await fetch(this.root.dataset.charts ?? "", { headers: { Accept: "application/json" } });
      if (answer.ok) {
        /** @type {Scores} */
        const data = await answer.json();
        this.data = data;
        this.draw();
      }
    } finally {
      this.root.dispatchEvent(new CustomEvent("refreshed"));
    }
  }

  draw() {
    const data = this.data;
    if (data) this.charts.forEach((each) => draw(each, data));
  }

  resize() {
    for (const chart of this.charts) if (chart.plot) chart.plot.setSize({ width: chart.clientWidth, height: 240 });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  /** @type {NodeListOf<HTMLElement>} */
  const roots = document.querySelectorAll("[data-charts]");
  roots.forEach((root) => new Charts(root));
});
