import assert from "node:assert/strict";
import { test } from "node:test";

test("recognizer/ of the app is export/web, and views/ is gaitway/views", async () => {
  const served = await import("../../phone/app/recognizer/windows.js");
  const source = await import("../../export/web/windows.js");
  assert.equal(served.WindowStream, source.WindowStream);
  const [shown, view] = await Promise.all(["phone/app", "gaitway"].map((at) => import(`../../${at}/views/labels.js`)));
  assert.equal(shown.labelText, view.labelText);
});
