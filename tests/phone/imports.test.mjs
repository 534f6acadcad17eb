import assert from "node:assert/strict";
import { test } from "node:test";

test("recognizer/ of the app is export/web", async () => {
  const served = await import("../../phone/app/recognizer/windows.js");
  const source = await import("../../export/web/windows.js");
  assert.equal(served.WindowStream, source.WindowStream);
});
