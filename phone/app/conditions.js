/** Whether a phone may train now, by what its browser tells of its battery; browsers on phones tell nothing of heat. */

/** As a native device's min_battery_percent. */
const MIN_BATTERY = 0.5;

/** @typedef {{charging: boolean, level: number}} Battery */

/** Why this phone does not train now, in words; empty where it may, or the browser does not tell. @returns {Promise<string>} */
export async function blockerOf() {
  const browser = /** @type {{getBattery?: () => Promise<Battery>}} */ (/** @type {unknown} */ (navigator));
  const battery = await browser.getBattery?.().catch(() => null);
  if (!battery || battery.charging || battery.level >= MIN_BATTERY) return "";
  const percent = Math.round(100 * battery.level);
  return `the battery has ${percent} %; it goes on from ${100 * MIN_BATTERY} %, or while the phone is charged`;
}
