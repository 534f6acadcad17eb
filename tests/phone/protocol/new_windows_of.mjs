// Reads windows now and before, and writes whether a phone makes its heads again.
import { readFileSync } from "node:fs";
import { hasNewWindows } from "../../../phone/app/protocol/versions.js";

const found = JSON.parse(readFileSync(0, "utf8")).cases.map(({ sendAfter, now, before, isDue }) => {
  const announced = { continuous: true, plan: { rollout: { mode: "off" }, publication: { send_after_windows: sendAfter } } };
  const memory = { judged: "1 a", adaptedTo: before, refreshed: isDue ? undefined : { atMs: 0, version: 1 } };
  return hasNewWindows(announced, now, memory, 1000);
});
process.stdout.write(JSON.stringify({ found }));
