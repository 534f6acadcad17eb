/** The device behind this page: questions to its agent over HTTP, as gaitway/views/api.js has them. */

import { tell } from "./views/dom.js";

/** The event of an answer that wants a password first. */
export const LOGGED_OUT = "gaitway-logged-out";
/** The event of a change, after which everything is asked again. */
export const CHANGED = "gaitway-changed";
const SILENT = "The agent does not answer.";

/** What the agent refuses, in its words. */
export class Refused extends Error {}

/** @type {Set<Promise<any>>} */
const underWay = new Set();
let isLeaving = false;

/** Ask the agent; what has a body may change something. Throws Refused with the agent's words.
 * @param {string} name @param {object=} body @returns {Promise<any>} JSON at the edge: its reader says what it is */
export async function ask(name, body) {
  if (isLeaving) throw new Refused("You are being logged out.");
  const answer = request(name, body);
  underWay.add(answer);
  try {
    return await answer;
  } finally {
    underWay.delete(answer);
    if (body && name !== "day") dispatchEvent(new Event(CHANGED));
  }
}

/** End the session once nothing is asked any more: whatever came after it would be refused, and be an error. */
export async function logOut() {
  isLeaving = true;
  try {
    await Promise.allSettled(underWay);
    await request("logout", {});
  } finally {
    isLeaving = false;
  }
}

/** @param {string} name @param {object=} body @returns {Promise<any>} */
async function request(name, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const link = /** @type {HTMLElement} */ (document.getElementById("link"));
  const answer = await fetch(`/api/${name}`, options).catch(() => null);
  tell(link, answer ? "" : SILENT);
  link.classList.toggle("lost", !answer);
  if (!answer) throw new Error(SILENT);
  const found = await answer.json();
  if (answer.status === 401 && name !== "login") dispatchEvent(new Event(LOGGED_OUT));
  if (!answer.ok) throw new Refused(found.error);
  return found;
}
