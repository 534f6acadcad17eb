// Reads true and answered classes, and writes the metrics that an update would carry.
import { readFileSync } from "node:fs";
import { holdoutMetrics } from "../../../phone/app/learning/metrics.js";
import { ClassSoundness } from "../../../phone/app/learning/soundness.js";

const cases = JSON.parse(readFileSync(0, "utf8"));
const found = cases.map(({ y, before, after, labels }) => {
  const [one, other] = [before, after].map((answered) => answered && ClassSoundness.of(y, answered, labels));
  return holdoutMetrics(one, other);
});
process.stdout.write(JSON.stringify(found));
