// Reads cases of models' answers on a holdout, and writes what the phone decides and says of each.
import { readFileSync } from "node:fs";
import { evaluate } from "../../../phone/app/learning/acceptance.js";
import { byStretch } from "../../../phone/app/learning/comparison.js";

const attempt = ({ model, answered, error }) => ({ model, answered: answered && Int32Array.from(answered), error });
const decisions = JSON.parse(readFileSync(0, "utf8")).map((given) => {
  const windows = {
    startS: Float64Array.from(given.start_s),
    y: Int32Array.from(given.y),
    session: Int32Array.from(given.session),
  };
  const { answer, reason, found, instead, compared } = evaluate(
    attempt(given.candidate),
    given.asked,
    { y: windows.y, groups: byStretch(windows), labels: given.labels },
    given.present && attempt(given.present),
    given.others.map(attempt),
    { margin: given.margin },
  );
  return { answer, reason, instead, compared, described: found && found.described() };
});
process.stdout.write(JSON.stringify(decisions));
