// Reads {model (a path), chunks: [{sensor, times, values}]} and writes the answers of the browser's recognizer, by ONNX
// Runtime for the web itself.
import { readFileSync } from "node:fs";
import * as ort from "../../../phone/app/vendor/ort/ort.wasm.min.mjs";
import { Recognizer } from "../../../export/web/gaitway.js";

ort.env.wasm.numThreads = 1;
const { model, chunks } = JSON.parse(readFileSync(0, "utf8"));
const recognizer = await Recognizer.load(new Uint8Array(readFileSync(model)), ort, { onWarning: () => {} });
const answers = [];
for (const { sensor, times, values } of chunks) answers.push(...(await recognizer.pushSensor(sensor, times, values)));
answers.push(...(await recognizer.flush()));
process.stdout.write(JSON.stringify(answers));
