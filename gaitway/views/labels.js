/** Labels and sentences as people read them. */

import { SPELLED_OUT } from "./labels.generated.js";

/** A label as people read it: stairs_up is 'stairs up', and so is MotionSense's ups. @param {string} label */
export function labelText(label) {
  if (Object.hasOwn(SPELLED_OUT, label)) return SPELLED_OUT[label];
  const words = label.replaceAll("_", " ");
  return words.length > 3 && words === words.toUpperCase() ? words.toLowerCase() : words;
}

/** A sentence's beginning. @param {string} words */
export function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const COLOURS = 8;

/** The class with a label's colour. @param {string} label @param {readonly string[]} labels of the federation */
export const classOf = (label, labels) => `class-${(labels.indexOf(label) + COLOURS) % COLOURS}`;
