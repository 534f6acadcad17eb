// Reads cases of models' answers on a holdout, and writes what the phone decides and says of each.
import { readFileSync } from "node:fs";
import { evaluate } from "../../../phone/app/learning/acceptance.js";
import { byStretch } from "../../../phone/app/learning/comparison.js";
import { versionScore } from "../../../phone/app/protocol/messages.generated.js";

const whole = (codes) => codes && Int32Array.from(codes);
const attempt = ({ model, answered, error, validated }) => {
  return { model, answered: whole(answered), error, validated: whole(validated) };
};
const timed = ({ start_s: startS, y, session }) => {
  return { startS: Float64Array.from(startS), y: whole(y), session: whole(session) };
};
const asked = ({ serverScore, ...others }) => {
  return { ...others, serverScore: serverScore && versionScore(serverScore, "score") };
};
const decisions = JSON.parse(readFileSync(0, "utf8")).map((given) => {
  const windows = timed(given.windows);
  const { answer, reason, found, instead, compared } = evaluate(
    attempt(given.candidate),
    asked(given.asked),
    { y: windows.y, groups: byStretch(windows), labels: given.labels, labelled: given.labelled && timed(given.labelled) },
    given.present && attempt(given.present),
    given.others.map(attempt),
    { margin: given.margin },
  );
  return { answer, reason, instead, compared, described: found && found.described() };
});
process.stdout.write(JSON.stringify(decisions));
