/** The views by the address's fragment, the bar of links to them, and notes about the app itself. */

import { element, fill } from "./dom.js";

/**
 * @typedef {object} View
 * @property {string} title
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
  const show = () => {
    if (app.opened(location.hash)) return; // a link of enrolment, which has become another fragment
    const asked = location.hash.slice(1);
    const name = Object.hasOwn(views, asked) ? asked : app.participation.membership || app.marks.length ? "collect" : "join";
    fill(
      bar,
      Object.entries(views).map(([each, { title }]) =>
        element("a", { href: `#${each}`, "aria-current": each === name ? "page" : null }, title),
      ),
    );
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
 * Say something about the app as a whole.
 * @param {string} words @param {Node} [more] @param {string} [kind]
 */
export function note(words, more, kind = "warning") {
  const notes = /** @type {HTMLElement} */ (document.getElementById("notes"));
  const close = element("button", { type: "button", onclick: () => said.remove() }, "Close");
  const said = element("div", { class: `note ${kind}` }, element("p", {}, words), more ?? close);
  notes.append(said);
}
