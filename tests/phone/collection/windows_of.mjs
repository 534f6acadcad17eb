// Reads {events: [{timeStamp, acceleration, rotation}], agent, offsetMs, changes} on standard input, dispatches them as a
// browser would, and writes the stored windows and the CSV file of them.
import { readFileSync } from "node:fs";
import { MotionStream } from "../../../phone/app/collection/motion.js";
import { linesOf, windowsOf } from "../../../phone/app/collection/csv.js";
import { listenToMotion } from "../../../phone/app/recognizer/device_motion.js";

const { events, agent, offsetMs, changes } = JSON.parse(readFileSync(0, "utf8"));
const page = Object.assign(new EventTarget(), { navigator: { userAgent: agent, maxTouchPoints: 5 } });
const labelAt = (ms) => changes.findLast(([fromMs]) => fromMs <= ms)?.[1] ?? null;
const stream = new MotionStream({ offsetMs, session: "one", labelAt });
const windows = [];
const stop = listenToMotion(page, (time, acc, gyro) => windows.push(...stream.push(time, acc, gyro).windows));
for (const { timeStamp, acceleration, rotation } of events) {
  const event = new Event("devicemotion");
  Object.defineProperty(event, "timeStamp", { value: timeStamp });
  const [x, y, z] = acceleration;
  const [alpha, beta, gamma] = rotation;
  page.dispatchEvent(
    Object.assign(event, { accelerationIncludingGravity: { x, y, z }, rotationRate: { alpha, beta, gamma } }),
  );
}
stop();
windows.push(...stream.finish());

async function* pieces(text) {
  for (let at = 0; at < text.length; at += 1000) yield text.slice(at, at + 1000);
}
const file = [...linesOf(windows)].join("");
const again = await windowsOf(pieces(file));
const said = (each) => ({ start_ms: each.startMs, x: Array.from(each.x), label: each.label, session: each.session });
process.stdout.write(JSON.stringify({ windows: windows.map(said), again: again.map(said), file }));
