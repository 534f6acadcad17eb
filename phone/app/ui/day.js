/** The day on the phone. */

import { DayView } from "../views/day.js";
import { element, fill, follow } from "../views/dom.js";

const PAUSE_MS = 700;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const view = new DayView(app.device);
  fill(root, element("h1", {}, "The day"), ...view.roots);
  return follow(() => view.refresh(), PAUSE_MS);
}
