/** The app on the phone: its worker, and what the person does when a newer version has come. */

import { element } from "./views/dom.js";
import { note } from "./ui/frame.js";

const UPDATE_INTERVAL_MS = 60 * 60_000;

/** Say what keeps the app from working here, in words; empty where nothing does. @param {Window} page @returns {string} */
export function unsupportedReason(page) {
  if (!page.isSecureContext) {
    const host = page.location.host;
    return (
      `This page came over plain HTTP from ${host}. Browsers give motion sensors, keys and storage for apps to HTTPS alone ` +
      `(and to this machine itself): open https://${host}${page.location.pathname}. If that does not answer, whoever runs the server has to ` +
      "set up a certificate; docs/operations.md says how."
    );
  }
  if (!page.crypto?.subtle || !("indexedDB" in page) || !("DecompressionStream" in page) || !Array.prototype.findLast) {
    return "This browser is too old for this app: update it, or use a current Chrome, Firefox or Safari.";
  }
  return "";
}

/** Keep the app on the phone, and offer a newer version when it has come. */
export async function keepOnPhone() {
  const { serviceWorker } = navigator;
  if (!serviceWorker)
    return note("This browser does not keep the app, as in private browsing: without the server it will not open.");
  let wanted = false;
  serviceWorker.addEventListener("controllerchange", () => wanted && location.reload());
  /** @type {ServiceWorkerRegistration} */
  let registration;
  try {
    registration = await serviceWorker.register("./service_worker.js", { scope: "./", updateViaCache: "none" });
  } catch (error) {
    console.info(error); // such as a certificate that was accepted by hand: for pages that holds, for workers it does not
    return note(
      "This browser could not keep the app: everything works, but only while the server answers. It keeps the app where " +
        "the phone trusts the server's certificate.",
    );
  }
  const offer = () => {
    const { waiting } = registration;
    if (!waiting || !serviceWorker.controller) return;
    const take = () => {
      wanted = true;
      waiting.postMessage("take over");
    };
    note(
      "A newer version of this app is here.",
      element("button", { type: "button", onclick: take }, "Use it now"),
      "info",
    );
  };
  offer();
  registration.addEventListener("updatefound", () => {
    const { installing } = registration;
    installing?.addEventListener("statechange", () => installing.state === "installed" && offer());
  });
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && checkForUpdate());
  setInterval(checkForUpdate, UPDATE_INTERVAL_MS);
  function checkForUpdate() {
    registration.update().catch(() => {}); // without a network there is nothing newer
  }
}
