// Reads messages that Python wrote, and says of each whether the phone takes it: "" or why not.
import { readFileSync } from "node:fs";
import { WireError } from "../../../phone/app/protocol/errors.js";
import * as messages from "../../../phone/app/protocol/messages.generated.js";
import * as sums from "../../../phone/app/secure_sums/messages.generated.js";

const readers = { ...messages, ...sums };

const verdicts = JSON.parse(readFileSync(0, "utf8")).map(([reader, message]) => {
  try {
    readers[reader](message, "");
    return "";
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    return error.message;
  }
});
process.stdout.write(JSON.stringify(verdicts));
