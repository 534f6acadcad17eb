/**
 * A phone's motion sensors by the browser's DeviceMotion events, as samples for `Recognizer`: milliseconds, m/s² with
 * gravity in Android's axes and signs, and degrees a second.
 *
 * iOS reports accelerations with the opposite sign, and no field of an event says so: the user agent does.
 */

/** The units of the samples. */
export const DEVICE_MOTION_UNITS = { time: "ms", acc: "m/s2", gyro: "deg/s" };

/** @param {Navigator} navigator @returns {boolean} */
export function isApple(navigator) {
  const ipad = /Macintosh/.test(navigator.userAgent) && navigator.maxTouchPoints > 1;
  return /iPhone|iPad|iPod/.test(navigator.userAgent) || ipad;
}

/**
 * Ask for the sensors; on iOS only a tap may call it. Throws an Error that says what is missing.
 * @param {Window & typeof globalThis} window
 */
export async function askForMotion(window) {
  if (!window.isSecureContext) throw new Error("browsers give motion sensors to pages over HTTPS only (or localhost)");
  if (!("DeviceMotionEvent" in window)) throw new Error("this browser has no motion sensors");
  const ask = /** @type {any} */ (window.DeviceMotionEvent).requestPermission;
  if (ask && (await ask()) !== "granted") {
    throw new Error("the sensors were refused: allow Motion & Orientation for this site, and tap again");
  }
}

/**
 * Call `onSample` with each event's time, acceleration and rotation; an axis that the browser leaves out is NaN.
 * @param {Window & typeof globalThis} window
 * @param {(time: number, acc: number[], gyro: number[]) => void} onSample
 * @returns {() => void} stops it
 */
export function listenToMotion(window, onSample) {
  const sign = isApple(window.navigator) ? -1 : 1;
  const listener = (/** @type {DeviceMotionEvent} */ event) => {
    const { x, y, z } = event.accelerationIncludingGravity ?? {};
    const { alpha, beta, gamma } = event.rotationRate ?? {};
    const acc = [x, y, z].map((each) => sign * (each ?? NaN));
    onSample(event.timeStamp, acc, [alpha, beta, gamma].map((each) => each ?? NaN));
  };
  window.addEventListener("devicemotion", listener);
  return () => window.removeEventListener("devicemotion", listener);
}
