// Reads what models answer on a phone's holdout, on standard input; writes which one it uses, what each gains, and why.
import { readFileSync } from "node:fs";
import { evaluate } from "../../../phone/app/learning/heads.js";

const found = JSON.parse(readFileSync(0, "utf8")).map(({ models, present, sums, holdout, ...question }) => {
  const [heads, held] = [models, present].map((each) => each && JSON.parse(JSON.stringify(each)));
  const answersOf = (model) => Int32Array.from(model.answers);
  const windows = { ...holdout, y: Int32Array.from(holdout.y) };
  const verdict = evaluate({ ...question, heads, present: held, holdout: windows, answersOf, isFar: false, others: { sums } });
  const gains = Object.fromEntries(verdict.compared.models.map(({ name, gain }) => [name, gain]));
  return { uses: verdict.model && verdict.model.sha, answer: verdict.answer, why: verdict.why, gains };
});
process.stdout.write(JSON.stringify(found));
