import assert from "node:assert/strict";
import { test } from "node:test";
import { capital, labelText } from "../../gaitway/views/labels.js";

test("labels of data sets are read as words, and a label that is a property's name stays", () => {
  const said = ["dws", "std", "stairs_up", "WALKING_UPSTAIRS", "SEATED", "constructor", "walking"].map(labelText);
  const words = ["stairs down", "standing", "stairs up", "walking upstairs", "seated", "constructor", "walking"];
  assert.deepEqual(said, words);
  assert.equal(capital("it waits"), "It waits");
});
