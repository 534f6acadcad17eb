/** Elements from descriptions; texts are never read as HTML. */

/**
 * @typedef {string | number | Node | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Attributes `on…` are listeners, true and false set or leave out, the rest is text
 */

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Attributes} [attributes] @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (name === "value") /** @type {any} */ (made).value = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  fill(made, ...children);
  return made;
}

/** Replace what is in an element. @param {Element} parent @param {...(Child | Child[])} children */
export function fill(parent, ...children) {
  const kept = children.flat().filter((each) => each !== null && each !== undefined && each !== false);
  parent.replaceChildren(...kept.map((each) => (each instanceof Node ? each : String(each))));
}

/**
 * A picture of lines and areas.
 * @param {string} tag @param {Record<string, string | number>} attributes @param {...Node} children
 */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** A list of names and figures. @param {[string, Child][]} pairs */
export function figures(pairs) {
  return element(
    "dl",
    { class: "figures" },
    pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

/**
 * A section with a title.
 * @param {string} title @param {...(Child | Child[])} children
 */
export function card(title, ...children) {
  const id = `h-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return element("section", { class: "card stack", "aria-labelledby": id }, element("h2", { id }, title), ...children);
}

/** A sentence, and what else is to be said of it. @param {...string} sentences */
export function explained(...sentences) {
  const [words, ...more] = sentences;
  const details = more.filter(Boolean).map((each) => element("p", { class: "quiet" }, each));
  const root = element("div", {}, element("p", { class: "quiet" }, words));
  if (details.length) root.append(element("details", {}, element("summary", {}, "Learn more"), ...details));
  return root;
}

/** Only where they are others: a screen reader says each once. @param {Element} place @param {string} words */
export function tell(place, words) {
  if (place.textContent !== words) place.textContent = words;
}

/**
 * Do again only when what is compared, as JSON, has changed.
 * @template T @param {(found: T) => unknown} compared @param {(found: T) => void} draw @returns {(found: T) => void}
 */
export function whenChanged(compared, draw) {
  let before = "";
  return (found) => {
    const now = JSON.stringify(compared(found));
    if (now === before) return;
    before = now;
    draw(found);
  };
}

/**
 * Do something now, and again and again while the page is seen: what is slow never overtakes itself.
 * @param {() => Promise<unknown>} refresh @param {number} pauseMs @returns {() => void} what ends it
 */
export function follow(refresh, pauseMs) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let isOver = false;
  const turn = async () => {
    if (!document.hidden) await refresh().catch((error) => console.info(error)); // the next one says so too
    if (!isOver) timer = setTimeout(turn, pauseMs);
  };
  void turn();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** A place for what went wrong. */
export const problemPlace = () => element("p", { class: "problem", role: "alert", hidden: true });

/**
 * Do what may fail: what went wrong is said.
 * @param {HTMLElement} problem @param {() => unknown} work @returns {Promise<void>}
 */
export async function attempt(problem, work) {
  problem.hidden = true;
  try {
    await work();
  } catch (error) {
    console.info(error);
    problem.textContent = error instanceof Error ? error.message : String(error);
    problem.hidden = false;
  }
}

/**
 * A button whose work may fail: it is not pressed twice, and what went wrong is said below it.
 * @param {string} words @param {() => unknown} work @param {Attributes} [attributes]
 */
export function action(words, work, attributes = {}) {
  const problem = problemPlace();
  const button = element("button", { type: "button", ...attributes, onclick: press }, words);
  async function press() {
    button.disabled = true;
    await attempt(problem, work);
    button.disabled = false;
  }
  return element("div", { class: "action" }, button, problem);
}

/**
 * Something that cannot be undone: a button that opens a question.
 * @param {string} words @param {string} question @param {string} yes @param {() => unknown} work
 */
export function confirmed(words, question, yes, work) {
  return element(
    "details",
    { class: "confirm" },
    element("summary", { class: "button" }, words),
    element("div", { class: "card" }, element("p", {}, question), action(yes, work, { class: "danger" })),
  );
}

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** @param {number} bytes */
export function bytesIn(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** @param {number} ms Unix time */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Hours and minutes, as a field takes them. @param {number} ms Unix time */
export function minuteClock(ms) {
  return clock(ms).slice(0, 5);
}

/** The time of day, and which day where that is another than today. @param {number} ms Unix time */
export function moment(ms) {
  return day(ms) === day(Date.now()) ? clock(ms) : `${clock(ms)} on ${day(ms)}`;
}

/** @param {number} ms Unix time */
export function day(ms) {
  return new Date(ms).toLocaleDateString("en-GB", {
    weekday: "short",
    day: "numeric",
    month: "short",
    year: "numeric",
  });
}
