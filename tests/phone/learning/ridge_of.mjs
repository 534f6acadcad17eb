// Reads features of windows and shared sums, and writes the sums that a phone would send and the head that it solves.
import { readFileSync } from "node:fs";
import {
  addWindows,
  distanceFromAll,
  emptySums,
  predict,
  restricted,
  solve,
  solveMean,
  travelling,
} from "../../../phone/app/learning/ridge.js";
import { pseudoLabelledHead } from "../../../phone/app/learning/pseudo_labels.js";
import { floats } from "./vectors.mjs";

/** @param {string} text base64 of little-endian int64 */
const wholes = (text) => new BigInt64Array(Uint8Array.from(Buffer.from(text, "base64")).buffer);

const written = (array) => Buffer.from(array.buffer).toString("base64");
const { cases, unlabelled, method, clip, variance } = JSON.parse(readFileSync(0, "utf8"));
const found = [];
for (const { features, y, width, classes, shared, clients, columns, share, damping, usable } of cases) {
  const embeddings = floats(features);
  const sums = emptySums(classes, width);
  const half = Math.floor(y.length / 2); // in two parts, as windows come
  await addWindows(sums, embeddings.subarray(0, half * width), y.slice(0, half), clip);
  await addWindows(sums, embeddings.subarray(half * width), y.slice(half), clip);
  const own = travelling(sums);
  const sent = { gram: wholes(shared.gram), moment: wholes(shared.moment), classes: shared.classes };
  const all = usable ? restricted(sent, usable) : sent;
  const begun = performance.now();
  const mine = clients ? own : null;
  const head = await (share ? solveMean(all, mine, clients, damping, columns, share) : solve(all, mine, clients, damping, columns));
  const seconds = (performance.now() - begun) / 1000;
  found.push({
    gram: written(own.gram),
    moment: written(own.moment),
    weight: written(head.weight),
    bias: written(head.bias),
    predicted: predict(embeddings, head),
    distance: await distanceFromAll(all, [0, 2, 4], [1, -1, 0.5], variance),
    seconds,
  });
}
const adapted = [];
for (const { features, shared, clients, columns, far } of unlabelled) {
  const all = { gram: wholes(shared.gram), moment: wholes(shared.moment), classes: shared.classes };
  const exchange = { shared: all, clients, own: null, method, orientationFree: columns, version: 1, sha256: "a" };
  const head = await pseudoLabelledHead(exchange, floats(features), far);
  adapted.push(head && { weight: written(head.weight), bias: written(head.bias) });
}
process.stdout.write(JSON.stringify({ found, adapted }));
