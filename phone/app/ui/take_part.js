/** What the federation does, why this phone does not train where it does not, and which model it uses. */

import { MAX_UPLOADS } from "../protocol/agent_state.js";
import { capital, labelText } from "../labels.js";
import { action, bytesIn, clock, element, figures } from "./dom.js";
import { followed, gone } from "./frame.js";

export const title = "Take part";

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { participation, models } = app;
  const shown = () => {
    const { state, membership, bytesSent } = participation;
    const { words, caution, reason, choices, said } = models;
    const known = state && { ...state, model: state.model?.round, plan: null };
    return [membership, known, bytesSent, words, caution, reason, choices, said];
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
  ready: "It is ready for the next round.",
  training: "It computes what it sends in this round.",
  uploading: "It sends its part of this round.",
  idle: "It waits for the next round.",
  finished: "The federation has ended.",
  not_taking_part: "It does not take part.",
  stopped: "It has stopped.",
};

/** @param {import("../main.js").App} app */
function federation({ participation }) {
  const { state, membership, bytesSent } = participation;
  const accepted = state?.uploads.filter((each) => each.answer === "accepted").length ?? 0;
  return element(
    "section",
    { class: "card", "aria-label": "Federation" },
    element("h2", {}, membership?.federation ?? ""),
    element("p", { class: "lead", role: "status" }, state ? DOES[state.name] : "It begins."),
    state?.reason ? element("p", { class: "reason" }, capital(state.reason)) : null,
    gone(participation),
    figures([
      // rounds that failed are counted, and are not among those that the federation is to have
      ["Round", state?.rounds ? (state.round > state.rounds ? `${state.round}` : `${state.round} of ${state.rounds}`) : "–"],
      ["Taken part in", accepted < MAX_UPLOADS ? String(accepted) : `${accepted} or more`],
      ["Labelled windows", (state?.examples ?? 0).toLocaleString("en")],
      ["Sent", bytesIn(bytesSent)],
    ]),
    element(
      "p",
      { class: "quiet" },
      "Phones do not train the network, which is the same for all. In each round a phone sends what its classes look like to that network, " +
        "on average; the server averages over everybody, and the nearest average names the class.",
    ),
  );
}

/** @param {import("../main.js").App} app */
function model({ models }) {
  return element(
    "section",
    { class: "card stack", "aria-labelledby": "model-title" },
    element("h2", { id: "model-title" }, "The model in use"),
    element("p", {}, models.words),
    models.caution ? element("p", { class: "reason" }, models.caution) : null,
    models.reason
      ? element("details", {}, element("summary", {}, "Why"), element("p", { class: "quiet" }, capital(models.reason)))
      : null,
    models.choices.length
      ? element(
          "div",
          { class: "actions" },
          models.choices.map(({ words, work }) =>
            action(words, () => models.carryOut(work)),
          ),
        )
      : null,
    element("p", { class: "quiet", role: "status" }, models.said),
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
          ["Round", "When", "Answer"].map((each) => element("th", { scope: "col" }, each)),
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
              element("td", {}, String(each.round)),
              element("td", {}, clock(each.atMs)),
              element("td", {}, labelText(each.answer), each.reason ? `: ${each.reason}` : ""),
            ),
          ),
      ),
    ),
  );
}
