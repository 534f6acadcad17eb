/** What the federation does, why this phone does not train where it does not, and which model it uses. */

import { modelsInUse, privacy as privacyOf } from "../device.js";
import { MAX_UPLOADS } from "../protocol/agent_state.js";
import { action, bytesIn, card, clock, element, explained, figures } from "../views/dom.js";
import { model, participation as participationPart, privacy as privacyPart, table } from "../views/federation.js";
import { capital, labelText } from "../views/labels.js";
import { followed, gone } from "./frame.js";

export const title = "Take part";

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { participation, models } = app;
  const shown = () => {
    const { state, membership, bytesSent } = participation;
    const { description, caution, reason, choices, lastResult } = models;
    const shownState = state && { ...state, model: models.name, plan: state.plan?.secure ?? null };
    return [membership, shownState, bytesSent, description, caution, reason, choices, lastResult];
  };
  const draw = () => (participation.membership ? [federation(app), privacy(app), model(app.device, modelsInUse(app)), uploads(app)] : [nothing()]);
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

/** In a federation in rounds. @type {Partial<Record<import("../types.js").AgentState["name"], string>>} */
const DOES_IN_ROUNDS = {
  ready: "It is ready for a round.",
  training: "It trains a round.",
  uploading: "It sends what it has trained.",
  idle: "It takes part, and waits to be drawn for the next round.",
  withdrawn: "It is withdrawn: it trains no round, and sends nothing about its windows.",
};
/** What is said of such a federation, the sentence first. */
const ABOUT_SUMS = [
  "This phone sends sums over its labelled windows, and no window.",
  "Nothing is trained in rounds. The server adds up everybody's sums, and one equation gives the model. What this phone sends " +
    "again replaces what it sent before.",
];
const ABOUT_PRIVATE = [
  "The server learns only the sum of all devices in a round.",
  "What this phone adds is hidden by random numbers that cancel in the sum of at least as many devices as the plan asks for: " +
    "neither the server nor another device sees this phone's own sums, how many windows it has, or what you did when.",
  "The server does see that this phone takes part, when it is here, when its sums changed last, which rounds it was in, and how " +
    "well the model did here (one number). A server that invents devices, or works with most of the others, could undo that; " +
    "whoever runs it hands out their keys.",
];
const ABOUT_ROUNDS = [
  "The server draws devices for each round; keep this page open for it.",
  "A phone that is drawn trains the network on its labelled windows and sends the trained network, never a window. A round " +
    "that a closed page interrupts goes on from its last whole pass over the windows, if it is still open then.",
];

const WITHDRAWS_SUMS =
  "The sums of this phone's windows are taken out of the federation's: its next version is as if this phone had never sent " +
  "any. Models that were given out before stay as they are. The phone stays in the federation, uses its models, and sends " +
  "nothing about its windows until you take part again.";
const WITHDRAWS_FROM_ROUNDS =
  "This phone trains no more rounds and sends nothing about its windows until you take part again. What it sent before is in " +
  "the models of those rounds, and stays there. The phone stays in the federation and uses its models.";

const WITHDRAWS_FROM_SUMS =
  "This phone adds nothing to the next sum, so the next version of the model is without its windows. Models that were given " +
  "out before stay as they are. The phone sends nothing about its windows until you take part again.";

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
function federation({ participation, device }) {
  const { state, membership, bytesSent } = participation;
  const isContinuous = state?.isContinuous ?? true;
  const accepted = state?.uploads.filter(({ answer, withdraw }) => answer === "accepted" && !withdraw).length ?? 0;
  return element(
    "section",
    { class: "card stack", "aria-label": "Federation" },
    element("h2", {}, membership?.federation ?? ""),
    element("p", { class: "lead", role: "status" }, state ? doing(state) : "It begins."),
    state?.progress ? progressBar(state.progress) : null,
    state?.reason ? element("p", { class: "reason" }, capital(state.reason)) : null,
    gone(participation),
    figures([
      [isContinuous ? "Version" : "Round", String(state?.version || "–")],
      [isContinuous ? "Sums accepted" : "Rounds accepted", accepted < MAX_UPLOADS ? String(accepted) : `${accepted} or more`],
      ["Labelled windows", (state?.examples ?? 0).toLocaleString("en")],
      ["Sent", bytesIn(bytesSent)],
    ]),
    explained(...(isContinuous ? ABOUT_SUMS : ABOUT_ROUNDS)),
    isPrivateState(state) ? explained(...ABOUT_PRIVATE) : null,
    membership?.approved ? participationPart(device, wishOf(state)) : null,
  );
}

/** What this phone requires of any plan, and the person's choice. @param {import("../main.js").App} app */
function privacy(app) {
  const { state, membership } = app.participation;
  if (!membership?.approved || !state?.required) return null;
  const asJoined = () => app.participation.setMinDevices(null);
  const more = state.requires ? action("Require only what was promised when I joined", asJoined) : hidingChoice(app.participation);
  return privacyPart(app.device, privacyOf(app), more);
}

/** @param {import("../participation.js").Participation} participation */
function hidingChoice(participation) {
  const size = /** @type {HTMLInputElement} */ (element("input", { type: "number", id: "min-devices", min: "3", max: "16384", value: "50", inputmode: "numeric" }));
  return element(
    "details",
    { class: "confirm" },
    element("summary", { class: "button" }, "Require more …"),
    element(
      "div",
      { class: "card stack" },
      element("label", { for: "min-devices" }, "Take part only if the server never sees what this phone sends, but only sums over at least so many devices:"),
      size,
      action("Require this", () => {
        if (!size.reportValidity()) throw new Error("Give a whole number from 3 to 16384.");
        return participation.setMinDevices(Number(size.value));
      }),
    ),
  );
}

/** Whether the server learns sums alone. @param {import("../types.js").AgentState | null} state */
function isPrivateState(state) {
  return (state?.plan?.secure?.mode ?? "off") !== "off";
}

/** @param {import("../types.js").AgentState} state */
function doing({ name, isContinuous }) {
  return (isContinuous ? null : DOES_IN_ROUNDS[name]) ?? DOES[name];
}

/** @param {import("../protocol/round_worker.js").RoundProgress} progress */
function progressBar({ round, steps, all }) {
  const words = `Round ${round}: ${steps} of ${all} steps`;
  return element("p", {}, element("progress", { max: String(all), value: String(steps), "aria-label": words }), ` ${words}`);
}

/** @param {import("../types.js").AgentState | null} state @returns {import("../views/api.js").Participation} */
function wishOf(state) {
  const seen = (state?.isContinuous ?? true) ? WITHDRAWS_SUMS : WITHDRAWS_FROM_ROUNDS;
  const withdraws = isPrivateState(state) ? WITHDRAWS_FROM_SUMS : seen;
  return { takes_part: state?.takesPart !== false, can: true, words: "", withdraws };
}

/** @param {import("../main.js").App} app */
function uploads({ participation }) {
  const { uploads: sent = [], isContinuous = true } = participation.state ?? {};
  if (!sent.length) return null;
  const rows = sent.slice(-10).reverse();
  return card(
    "What was sent",
    table(
      "The last ten",
      [isContinuous ? "Version" : "Round", "When", "What", "Answer"],
      rows.map((each) => [
        String(each.version),
        clock(each.atMs),
        each.withdraw ? "withdrawal" : isContinuous ? "sums" : "network",
        `${labelText(each.answer)}${each.reason ? `: ${each.reason}` : ""}`,
      ]),
    ),
  );
}
