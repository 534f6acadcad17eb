/** What the federation does, why this phone does not train where it does not, and which model it uses. */

import { MAX_UPLOADS } from "../protocol/agent_state.js";
import { capital, labelText } from "../labels.js";
import { action, bytesIn, clock, confirmed, element, figures } from "./dom.js";
import { followed, gone } from "./frame.js";

export const title = "Take part";

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { participation, models } = app;
  const shown = () => {
    const { state, membership, bytesSent } = participation;
    const { description, caution, reason, choices, lastResult } = models;
    const shownState = state && { ...state, model: models.name, plan: null };
    return [membership, shownState, bytesSent, description, caution, reason, choices, lastResult];
  };
  const draw = () => (participation.membership ? [federation(app), model(app), uploads(app)] : [nothing()]);
  return followed(root, app, title, shown, draw);
}

function nothing() {
  return element(
    "section",
    { class: "card" },
    element(
      "p",
      {},
      "This phone is in no federation. ",
      element("a", { href: "#join" }, "Join one"),
      " by a link from whoever runs it.",
    ),
  );
}

const DOES = {
  elsewhere: "This app takes part in another tab of this browser.",
  waiting_for_approval: "It waits to be approved by whoever runs the federation.",
  connecting: "It looks for the server.",
  collecting: "It has too few labelled windows to take part.",
  ready: "It is ready to send the sums of its windows.",
  training: "It computes the sums that it sends.",
  uploading: "It sends the sums of its windows.",
  idle: "It takes part. The sums are sent again when enough windows have changed.",
  withdrawn: "It is withdrawn, and sends nothing about its windows.",
  finished: "The federation has ended.",
  not_taking_part: "It does not take part.",
  stopped: "It has stopped.",
};

/** @param {import("../main.js").App} app */
function federation({ participation }) {
  const { state, membership, bytesSent } = participation;
  const accepted = state?.uploads.filter(({ answer, withdraw }) => answer === "accepted" && !withdraw).length ?? 0;
  return element(
    "section",
    { class: "card stack", "aria-label": "Federation" },
    element("h2", {}, membership?.federation ?? ""),
    element("p", { class: "lead", role: "status" }, state ? DOES[state.name] : "It begins."),
    state?.reason ? element("p", { class: "reason" }, capital(state.reason)) : null,
    gone(participation),
    figures([
      ["Version", String(state?.version || "–")],
      ["Sums accepted", accepted < MAX_UPLOADS ? String(accepted) : `${accepted} or more`],
      ["Labelled windows", (state?.examples ?? 0).toLocaleString("en")],
      ["Sent", bytesIn(bytesSent)],
    ]),
    element(
      "p",
      { class: "quiet" },
      "Nothing is trained in rounds. A phone adds up features of its labelled windows and sends the sums; the server adds up " +
        "everybody's, and one equation gives the model. What this phone sends again replaces what it sent before.",
    ),
    membership?.approved ? takesPartAction(participation) : null,
  );
}

/** Withdraw, or take part again. @param {import("../participation.js").Participation} participation */
function takesPartAction(participation) {
  if (participation.state?.takesPart === false) {
    return action("Take part again", () => participation.setTakesPart(true));
  }
  return confirmed(
    "Withdraw …",
    "The sums of this phone's windows are taken out of the federation's: its next version is as if this phone had never sent " +
      "any. Models that were given out before stay as they are. The phone stays in the federation, uses its models, and sends " +
      "nothing about its windows until you take part again.",
    "Withdraw",
    () => participation.setTakesPart(false),
  );
}

/** @param {import("../main.js").App} app */
function model({ models }) {
  return element(
    "section",
    { class: "card stack", "aria-labelledby": "model-title" },
    element("h2", { id: "model-title" }, "The model in use"),
    element("p", {}, models.description),
    models.caution ? element("p", { class: "reason" }, models.caution) : null,
    models.reason
      ? element("details", {}, element("summary", {}, "Why"), element("p", { class: "quiet" }, capital(models.reason)))
      : null,
    models.choices.length
      ? element(
          "div",
          { class: "actions" },
          models.choices.map(({ label, run }) => action(label, () => models.carryOut(run))),
        )
      : null,
    element("p", { class: "quiet", role: "status" }, models.lastResult),
  );
}

/** @param {import("../main.js").App} app */
function uploads({ participation }) {
  const sent = participation.state?.uploads ?? [];
  if (!sent.length) return null;
  return element(
    "section",
    { class: "card", "aria-labelledby": "sent-title" },
    element("h2", { id: "sent-title" }, "What was sent"),
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["Version", "When", "What", "Answer"].map((each) => element("th", { scope: "col" }, each)),
        ),
      ),
      element(
        "tbody",
        {},
        sent
          .slice(-10)
          .reverse()
          .map((each) =>
            element(
              "tr",
              {},
              element("td", {}, String(each.version)),
              element("td", {}, clock(each.atMs)),
              element("td", {}, each.withdraw ? "withdrawal" : "sums"),
              element("td", {}, labelText(each.answer), each.reason ? `: ${each.reason}` : ""),
            ),
          ),
      ),
    ),
  );
}
