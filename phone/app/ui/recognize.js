/** What the phone thinks that its owner does, now and over the last minutes. */

import { action, card, element, fill, follow } from "../views/dom.js";
import { nowView } from "../views/now.js";

export const title = "Recognize";
const PAUSE_MS = 500;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { recorder, recognition } = app;
  const view = nowView();
  const start = action("Start", () => recorder.start(), { class: "primary" });
  const stop = action("Stop", () => recorder.stop());
  fill(
    root,
    element("h1", {}, title),
    element("section", { class: "card", "aria-label": "Now" }, ...view.answer, start, stop),
    card("The last five minutes", view.minutes, element("p", {}, element("a", { href: "#day" }, "The whole day: see it, label and correct it"))),
    element("p", { class: "quiet" }, "The model runs on this phone. What is recorded here is kept, as under Collect."),
  );
  return follow(async () => {
    start.hidden = recorder.running || !!recognition.unavailableReason;
    stop.hidden = !recorder.running;
    view.show(await app.device.ask("now"), app.activities());
  }, PAUSE_MS);
}
