// Reads programs that Python wrote, in base64, and says of each why it is refused; "" where it is not.
import { readFileSync } from "node:fs";
import { readProgram } from "../../../phone/app/training/archive.js";

const said = [];
for (const text of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    await readProgram(new Uint8Array(Buffer.from(text, "base64")));
    said.push("");
  } catch (error) {
    said.push(error.message);
  }
}
process.stdout.write(JSON.stringify(said));
