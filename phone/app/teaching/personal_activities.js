/**
 * Activities that this phone's person alone has. Their windows are in nothing that is sent, unless the person says as
 * which of the federation's activities they may count; the name is never sent. As
 * edge_agent/storage/labels.py.
 */

/** Of the store's state. */
export const PERSONAL = "personal_activities";
export const MAX_NAME_LENGTH = 40;
const MAX_ACTIVITIES = 8;

/** @typedef {{name: string, countsAs: string}} PersonalActivity countsAs: a label of the plan; empty: not sent */

/**
 * Add an activity; throws an Error in words.
 * @param {readonly PersonalActivity[]} known @param {string} typed @param {readonly string[]} labels the federation's
 * @returns {PersonalActivity[]}
 */
export function withActivity(known, typed, labels) {
  const name = typed.trim().split(/\s+/).join(" ");
  if (!name || name.length > MAX_NAME_LENGTH) {
    throw new Error(`A name has 1 to ${MAX_NAME_LENGTH} letters; this one has ${name.length}.`);
  }
  if ([...labels, ...known.map((each) => each.name)].some((each) => each.toLowerCase() === name.toLowerCase())) {
    throw new Error(`There is an activity ${name} already: choose another name.`);
  }
  if (known.length >= MAX_ACTIVITIES) {
    throw new Error(`There are ${known.length} activities of your own, and no more fit: remove one first.`);
  }
  return [...known, { name, countsAs: "" }];
}

/**
 * Windows as they count for a federation: one of a personal activity that may be sent has the label that it counts as.
 * @template {{label: string | null}} W
 * @param {W[]} windows @param {readonly PersonalActivity[]} personal
 * @returns {(W & {personal?: string})[]}
 */
export function asCounted(windows, personal) {
  const counted = new Map(personal.filter((each) => each.countsAs).map((each) => [each.name, each.countsAs]));
  if (!counted.size) return windows;
  return windows.map((window) => {
    const label = window.label === null ? undefined : counted.get(window.label);
    return label === undefined ? window : { ...window, label, personal: /** @type {string} */ (window.label) };
  });
}
