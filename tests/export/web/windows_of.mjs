// Reads {input, chunks: [{sensor, times, values}]} on standard input, and writes the windows of the browser's pipeline.
import { readFileSync } from "node:fs";
import { WindowStream } from "../../../export/web/windows.js";

const { input, chunks } = JSON.parse(readFileSync(0, "utf8"));
const stream = new WindowStream(input);
const windows = chunks.flatMap(({ sensor, times, values }) => stream.push(sensor, times, values));
windows.push(...stream.flush());
process.stdout.write(JSON.stringify(windows.map(({ x, startS }) => ({ x: Array.from(x), start_s: startS }))));
