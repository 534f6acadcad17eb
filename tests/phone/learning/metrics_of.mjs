// Reads true and answered classes, and writes the metrics that an update would carry.
import { readFileSync } from "node:fs";
import { holdoutMetrics } from "../../../phone/app/learning/metrics.js";
import { ClassSoundness } from "../../../phone/app/learning/soundness.js";

const cases = JSON.parse(readFileSync(0, "utf8"));
const found = cases.map(({ y, answered, labels }) => holdoutMetrics(ClassSoundness.of(y, answered, labels)));
process.stdout.write(JSON.stringify(found));
