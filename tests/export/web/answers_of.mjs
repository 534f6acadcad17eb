// Reads {model (base64), units, chunks: [{sensor, times, values}], logits} and writes the answers and warnings of the
// browser's recognizer. In place of the network it gives the mean over time of the first four channels.
import { readFileSync } from "node:fs";
import { Recognizer } from "../../../export/web/gaitway.js";
import { readMetadata } from "../../../export/web/onnx_metadata.js";

const { model, units, chunks } = JSON.parse(readFileSync(0, "utf8"));
const metadata = readMetadata(new Uint8Array(Buffer.from(model, "base64")));
const mean = async (x) => [0, 1, 2, 3].map((channel) => x.filter((_, i) => i % 6 === channel).reduce((a, b) => a + b) / 128);
const recognizer = new Recognizer(metadata, mean, { units, onWarning: () => {} });
const answers = [];
for (const { sensor, times, values } of chunks) answers.push(...(await recognizer.pushSensor(sensor, times, values)));
answers.push(...(await recognizer.flush()));
process.stdout.write(JSON.stringify({ metadata, answers, warnings: [...recognizer.warnings.values()] }));
