/** Join a federation, by a link or a pasted text; and where that stands. */

import { action, element } from "../views/dom.js";
import { followed, gone } from "./frame.js";

export const title = "Join";

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const { participation } = app;
  const shown = () => [participation.membership, participation.invitation, participation.problem, participation.state?.retry];
  return followed(root, app, title, shown, () => {
    const { membership, invitation, problem } = participation;
    return [
      membership ? joined(app) : invitation ? invited(app) : asked(app),
      problem ? element("p", { class: "problem", role: "alert" }, problem) : null,
    ];
  });
}

/** No link was opened yet. @param {import("../main.js").App} app */
function asked({ participation }) {
  const text = element("textarea", {
    id: "link-text",
    rows: 4,
    class: "code",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
  });
  return element(
    "section",
    { class: "card stack" },
    element("p", {}, "You join a federation by a link from whoever runs it: open it, scan its code, or paste it here."),
    element("label", { for: "link-text" }, "Link or text that begins with gaitway-enrol"),
    text,
    action("Go on", () => participation.invite(text.value), { class: "primary" }),
    element(
      "p",
      { class: "quiet" },
      "Without a federation you can record and label here all the same; nothing leaves this phone.",
    ),
  );
}

/** A link was opened: one tap joins. @param {import("../main.js").App} app */
function invited({ participation }) {
  const { federation, device, server } = /** @type {NonNullable<typeof participation.invitation>} */ (
    participation.invitation
  );
  return element(
    "section",
    { class: "card stack" },
    element(
      "p",
      { class: "lead" },
      "Take part in ",
      element("strong", {}, federation),
      " as ",
      element("strong", {}, device),
      "?",
    ),
    element(
      "p",
      { class: "quiet" },
      `At ${server}. This phone makes a key that it alone has; your motion stays on it. Only sums or weights computed from it are sent; Take part says which.`,
    ),
    element(
      "div",
      { class: "actions" },
      action("Join", () => participation.join(), { class: "primary" }),
      action("Not now", () => participation.dismiss()),
    ),
  );
}

/** @param {import("../main.js").App} app */
function joined({ participation }) {
  const { federation, device, approved } = /** @type {NonNullable<typeof participation.membership>} */ (
    participation.membership
  );
  return element(
    "section",
    { class: "card stack" },
    element("p", { class: "lead" }, `This phone is ${device} in the federation ${federation}.`),
    approved
      ? element(
          "p",
          {},
          "It was approved and takes part. ",
          element("a", { href: "#take-part" }, "See what it does"),
          ", ",
          element("a", { href: "#teach" }, "teach it what you do"),
          ", or ",
          element("a", { href: "#collect" }, "record and label"),
          ".",
        )
      : element(
          "p",
          { class: "waiting-words", role: "status" },
          "Whoever runs the federation has to approve this phone. You need to do nothing: it asks by itself while this page is open. Meanwhile you can ",
          element("a", { href: "#collect" }, "record and label"),
          ".",
        ),
    approved ? null : gone(participation),
    element(
      "p",
      { class: "quiet" },
      "To join another one, leave this one under ",
      element("a", { href: "#data" }, "Data"),
      ".",
    ),
  );
}
