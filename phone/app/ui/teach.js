/** Teach me, and what the phone makes of it right now. */

import { element, fill, follow } from "../views/dom.js";
import { nowView } from "../views/now.js";
import { teachingView } from "../views/teach.js";

export const title = "Teach me";
const PAUSE_MS = 250;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const view = teachingView(app.device);
  const now = nowView();
  const looks = element("section", { class: "card looks", "aria-label": "Now" }, element("p", {}, "Right now it looks like"), ...now.answer);
  fill(root, element("h1", {}, title), ...view.roots, looks);
  const refresh = async () => {
    const { unable } = await view.refresh();
    looks.hidden = !!unable;
    now.show(await app.device.ask("now"), app.activities());
  };
  app.teacher.watchers.add(view.refresh);
  const end = follow(refresh, PAUSE_MS);
  return () => {
    end();
    app.teacher.watchers.delete(view.refresh);
  };
}
