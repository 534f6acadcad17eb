// Reads cases of stored windows and a plan, and writes what a phone learns from.
import { readFileSync } from "node:fs";
import { Learner } from "../../../phone/app/learning/learner.js";
import { floats } from "./vectors.mjs";

const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const written = ({ x, y, startS, session }) => ({
  x: base64(x),
  y: Array.from(y),
  startS: Array.from(startS),
  session: Array.from(session),
});
const found = JSON.parse(readFileSync(0, "utf8")).map(({ plan, windows, x }) => {
  const all = floats(x);
  const stored = windows.map((each, i) => ({ ...each, x: all.subarray(i * 768, (i + 1) * 768) }));
  const { train, holdout, normalization } = new Learner().prepare(stored, plan);
  const { mean, std } = normalization ?? { mean: [], std: [] };
  return { train: written(train), holdout: written(holdout), mean: Array.from(mean), std: Array.from(std) };
});
process.stdout.write(JSON.stringify(found));
