// Reads {model (a path), x (windows one after the other), shape} and writes the embeddings, by ONNX Runtime for the web.
import { readFileSync } from "node:fs";
import * as ort from "../../../phone/app/vendor/ort/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1;
const { model, x, shape } = JSON.parse(readFileSync(0, "utf8"));
const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(model)));
const { embedding } = await session.run({ x: new ort.Tensor("float32", Float32Array.from(x), shape) });
process.stdout.write(JSON.stringify(Array.from(embedding.data)));
