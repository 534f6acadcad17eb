/** The views by the address's fragment, how they follow what they show, and notes about the app itself. */

import { action, element, fill, moment, whenChanged } from "../views/dom.js";

const REFRESH_MS = 1000;
/** While a button is at work, its view is left as it is. */
const BUSY_MS = 50;

/**
 * @typedef {object} View
 * @property {string} title
 * @property {string} [within] the view that opens it; without one it stands in the bar
 * @property {(root: HTMLElement, app: import("../main.js").App) => () => void} show returns what ends it
 */

/**
 * Show the view that the address names, now and whenever it changes.
 * @param {Record<string, View>} views @param {import("../main.js").App} app
 */
export function run(views, app) {
  const main = /** @type {HTMLElement} */ (document.getElementById("main"));
  const bar = /** @type {HTMLElement} */ (document.getElementById("views"));
  let end = () => {};
  let first = true;
  const named = () => {
    const fragment = location.hash.slice(1);
    return Object.hasOwn(views, fragment) ? fragment : app.participation.membership || app.marks.length ? "collect" : "join";
  };
  const drawBar = whenChanged(
    () => [named(), !!app.participation.membership],
    () => {
      const name = named();
      const missing = app.participation.membership ? "join" : "take-part"; // one is what the other becomes
      const links = Object.entries(views).filter(([each, { within }]) => within === undefined && each !== missing);
      fill(
        bar,
        links.map(([each, { title }]) =>
          element("a", { href: `#${each}`, "aria-current": each === (views[name].within ?? name) ? "page" : null }, title),
        ),
      );
    },
  );
  app.participation.watchers.add(() => drawBar(null));
  const show = () => {
    if (app.opened(location.hash)) return; // a link of enrolment, which has become another fragment
    const name = named();
    drawBar(null);
    bar.hidden = false;
    end();
    end = views[name].show(main, app);
    document.title = `${views[name].title} · Gaitway`;
    if (!first) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    first = false;
  };
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // its fragment is no view's
    main.focus();
  });
  addEventListener("hashchange", show);
  show();
}

/**
 * Draw a view, and draw it anew whenever what it shows has changed: at once where that is said, else within a second.
 * @param {HTMLElement} root @param {import("../main.js").App} app @param {string} title
 * @param {() => unknown} shown what is compared, as JSON @param {() => (import("../views/dom.js").Child | import("../views/dom.js").Child[])[]} draw
 * @returns {() => void} what ends it
 */
export function followed(root, { participation }, title, shown, draw) {
  const body = element("div");
  fill(root, element("h1", {}, title), body);
  let before = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let soon;
  const refresh = () => {
    const now = JSON.stringify(shown());
    if (now === before) return;
    clearTimeout(soon);
    if (body.querySelector("button:disabled")) {
      soon = setTimeout(refresh, BUSY_MS);
      return;
    }
    before = now;
    const open = [...body.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
    fill(body, ...draw());
    for (const summary of body.querySelectorAll("details > summary")) {
      if (open.includes(summary.textContent)) /** @type {HTMLDetailsElement} */ (summary.parentElement).open = true;
    }
  };
  refresh();
  const timer = setInterval(refresh, REFRESH_MS);
  participation.watchers.add(refresh);
  return () => {
    clearInterval(timer);
    clearTimeout(soon);
    participation.watchers.delete(refresh);
  };
}

/** That the server seems to be gone, and what may be done. @param {import("../participation.js").Participation} participation */
export function gone(participation) {
  const retry = participation.state?.retry;
  if (!retry) return null;
  return element(
    "div",
    { class: "stack" },
    element(
      "p",
      { class: "reason" },
      `The server has not answered since ${moment(retry.sinceMs)}, and may be gone for good. ` +
        `This phone tries again at about ${moment(retry.nextMs)}.`,
    ),
    action("Try now", () => participation.retryNow()),
  );
}

/**
 * Say something about the app as a whole.
 * @param {string} words @param {Node} [more] @param {string} [kind]
 */
export function note(words, more, kind = "warning") {
  const notes = /** @type {HTMLElement} */ (document.getElementById("notes"));
  const close = element("button", { type: "button", onclick: () => box.remove() }, "Close");
  const box = element("div", { class: `note ${kind}` }, element("p", {}, words), more ?? close);
  notes.append(box);
}
