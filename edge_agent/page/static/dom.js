/** Elements of the device's page, and questions to its agent; texts are never read as HTML. */

/** The event of an answer that wants a password first. */
export const LOGGED_OUT = "gaitway-logged-out";

/** Find an element of the page, which is of that kind.
 * @template {HTMLElement} E @param {string} id @param {new () => E} kind @returns {E} */
export function find(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} ${id}`);
  return found;
}

/** @param {string} id */
export const $ = (id) => find(id, HTMLElement);
/** @param {string} id */
export const field = (id) => find(id, HTMLInputElement);
/** @param {string} id */
export const pressable = (id) => find(id, HTMLButtonElement);
/** What the agent refuses, in its words. */
export class Refused extends Error {}

/** @type {Set<Promise<any>>} */
const underWay = new Set();
let isLeaving = false;

/** Ask the agent; a change has a body. Throws Refused with the agent's words.
 * @param {string} name @param {object=} body @returns {Promise<any>} JSON at the edge: its reader says what it is */
export async function ask(name, body) {
  if (isLeaving) throw new Refused("You are being logged out.");
  const answer = request(name, body);
  underWay.add(answer);
  try {
    return await answer;
  } finally {
    underWay.delete(answer);
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
  const answer = await fetch(`/api/${name}`, options);
  const found = await answer.json();
  if (answer.status === 401 && name !== "login") dispatchEvent(new Event(LOGGED_OUT));
  if (!answer.ok) throw new Refused(found.error);
  return found;
}

/** Make an element with text.
 * @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string | number} text @param {string} className */
export function make(tag, text = "", className = "") {
  const found = document.createElement(tag);
  found.textContent = String(text);
  if (className) found.className = className;
  return found;
}

/** Labels as people read them, where the device has said. @type {{[label: string]: string}} */
const texts = {};

/** @param {{[label: string]: string}} found */
export const setTexts = (found) => void Object.assign(texts, found);

/** @param {string} activity */
export const spoken = (activity) => texts[activity] ?? activity.replaceAll("_", " ");

/** @param {string} words */
export const say = (words, bad = false) => { $("said").textContent = words; $("said").className = bad ? "bad" : "good"; };
