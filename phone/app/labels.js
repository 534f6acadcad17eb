/** Labels and sentences as people read them. */

/** Names that data sets publish, where people would not guess them. @type {Record<string, string>} */
const SPELLED_OUT = {
  dws: "stairs down",
  ups: "stairs up",
  wlk: "walking",
  jog: "jogging",
  sit: "sitting",
  std: "standing",
  climbingup: "climbing up",
  climbingdown: "climbing down",
};

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
