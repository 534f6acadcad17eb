// Files that nobody's phone has written.
import assert from "node:assert/strict";
import { test } from "node:test";
import { HEADER, ImportFileError, windowsOf } from "../../../phone/app/collection/csv.js";

const row = (at, cell = "9.8") => `${1.79e12 + 20 * at},0,0,${cell},0,0,0,walking,s`;

async function* pieces(rows) {
  yield [HEADER, ...rows].join("\n");
}

test("numbers that a float32, a date or a sensor cannot have are refused by their line", async () => {
  const rows = Array.from({ length: 128 }, (_, at) => row(at));
  assert.equal((await windowsOf(pieces(rows))).length, 1);
  const wrong = [
    [row(5, "1e300"), "line 7: a number is too large"],
    [row(5, "-1e39"), "line 7: a number is too large"],
    [`1e300${row(5).slice(row(5).indexOf(","))}`, "line 7: a number is too large"],
    [row(5, "Infinity"), "line 7: a number is missing or is none"],
  ];
  for (const [bad, words] of wrong) {
    const said = windowsOf(pieces(rows.with(5, bad)));
    await assert.rejects(said, (error) => error instanceof ImportFileError && error.message.includes(words), bad);
  }
});
