/** What is kept on the phone: take it away, bring it back, delete it, leave. */

import { ImportFileError, linesOf, windowsOf } from "../collection/csv.js";
import { askToPersist } from "../collection/store.js";
import { action, bytesIn, card, confirmed, counted, element, explained, figures, fill } from "../views/dom.js";
import { timeRangeInputs } from "../views/label.js";

export const title = "Data";
const REFRESH_MS = 1000;
/** Of an imported file, unpacked or not: 14 hours of samples have about 200 MB. */
const MAX_BYTES = 400e6;
const MAX_DEVIATION_MS = 1;

/** @param {HTMLElement} root @param {import("../main.js").App} app @returns {() => void} */
export function show(root, app) {
  const held = kept(app);
  fill(root, element("h1", {}, title), held.root, moved(app), deleted(app), promised());
  held.refresh();
  const timer = setInterval(held.refresh, REFRESH_MS);
  return () => clearInterval(timer);
}

/** How much there is. @param {import("../main.js").App} app */
function kept(app) {
  const list = element("div");
  const safe = element("div");
  const root = card("On this phone", list, safe);
  /** @type {unknown} */
  let shown;
  const refresh = async () => {
    if (shown === (shown = app.marks)) return;
    const labelled = app.marks.filter((each) => each.label !== null).length;
    const { usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
    fill(
      list,
      figures([
        ["Windows", app.marks.length.toLocaleString("en")],
        ["With a label", labelled.toLocaleString("en")],
        ["Storage", bytesIn(usage)],
      ]),
    );
    const persisted = await navigator.storage?.persisted?.();
    const may = "It does when the phone's storage is short, or after weeks without a visit. Adding this app to the home screen helps.";
    fill(safe, persisted ? explained("The browser keeps it until you delete it.") : explained("The browser may delete it.", may));
  };
  return { root, refresh };
}

/** Export and import. @param {import("../main.js").App} app */
function moved({ store }) {
  const done = element("p", { class: "good", role: "status" });
  const file = element("input", { type: "file", id: "import-file", accept: ".csv,.gz,text/csv,application/gzip" });
  const write = action("Export everything", async () => {
    const windows = (await store.windows()).map((window) => ({ ...window, label: window.personal ?? window.label }));
    if (!windows.length) throw new Error("There is nothing to export yet.");
    const blob = await packed(windows);
    const address = URL.createObjectURL(blob);
    const name = `gaitway-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.csv.gz`;
    element("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
    done.textContent = `${counted(windows.length, "window")} in ${name}, ${bytesIn(blob.size)}.`;
  });
  const read = action("Import", async () => {
    const [chosen] = file.files ?? [];
    if (!chosen) throw new Error("Choose a file first.");
    const found = await imported(chosen);
    const known = (await store.marks()).map((each) => each.startMs);
    const added = found.filter(({ startMs }) => !within(known, startMs));
    if (known.length + added.length > store.maxWindows) {
      const room = Math.max(0, store.maxWindows - known.length);
      throw new Error(
        `${chosen.name} has ${counted(added.length, "new window")}, and there is room for ${room.toLocaleString("en")}: delete a stretch first. Nothing was imported.`,
      );
    }
    await store.addWindows(added);
    await askToPersist();
    const before = found.length - added.length;
    done.textContent = `${counted(added.length, "window")} came in${before ? `; ${before.toLocaleString("en")} were there already` : ""}.`;
    file.value = "";
  });
  const about = explained(
    "One file has all samples with their labels.",
    "It is compressed CSV with 50 samples a second. Gaitway's programs read it, and this app on another phone.",
  );
  const label = element("label", { for: "import-file" }, "A file of this app");
  return card("Export and import", about, write, label, file, read, done);
}

/** @param {import("../types.js").StoredWindow[]} windows */
async function packed(windows) {
  const encoder = new TextEncoder();
  const lines = linesOf(windows);
  const text = new ReadableStream({
    pull(controller) {
      const { done, value } = lines.next();
      if (done) controller.close();
      else controller.enqueue(encoder.encode(value));
    },
  });
  return new Response(text.pipeThrough(new CompressionStream("gzip")), {
    headers: { "Content-Type": "application/gzip" },
  }).blob();
}

/** @param {File} file @returns {Promise<import("../types.js").StoredWindow[]>} */
async function imported(file) {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const isPacked = head[0] === 0x1f && head[1] === 0x8b;
  const bytes = isPacked ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
  try {
    return await windowsOf(textOf(bytes));
  } catch (error) {
    if (error instanceof ImportFileError) throw new Error(`${file.name}: ${error.message}. Nothing was imported.`);
    throw new Error(`${file.name} cannot be read: ${/** @type {Error} */ (error).message}. Nothing was imported.`);
  }
}

/** @param {ReadableStream<Uint8Array>} bytes @returns {AsyncGenerator<string>} */
async function* textOf(bytes) {
  const reader = bytes.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    size += value.length;
    if (size > MAX_BYTES) {
      await reader.cancel();
      throw new ImportFileError(`the file has more than ${bytesIn(MAX_BYTES)}`);
    }
    yield decoder.decode(value, { stream: true });
  }
}

/** Whether one of sorted times is about this one. @param {number[]} times @param {number} time */
function within(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time - MAX_DEVIATION_MS) low = middle + 1;
    else high = middle;
  }
  return low < times.length && times[low] <= time + MAX_DEVIATION_MS;
}

/** Delete and leave. @param {import("../main.js").App} app */
function deleted(app) {
  const stretch = timeRangeInputs("delete");
  const done = element("p", { class: "good", role: "status" });
  const { store, recorder, participation } = app;
  const leaving = confirmed(
    "Leave the federation …",
    "This phone's key and model are deleted, and your windows stay. What it sent stays with the server until its operator deletes the phone: to have sums " +
      "taken out, withdraw under Take part first, and wait for the answer. To come back, the phone needs a new link.",
    "Leave",
    async () => void (done.textContent = await left()),
  );
  leaving.hidden = !participation.membership;
  const left = async () => {
    if (!participation.membership) return "";
    done.textContent = "Telling the server …";
    const untold = await participation.leave();
    leaving.hidden = !participation.membership;
    const then = untold
      ? ` The server could not be told (${untold}); it will find the phone silent, and take it for offline.`
      : " The server knows it.";
    return `This phone has left the federation.${then}`;
  };
  return card(
    "Delete",
    element("p", {}, "Every window that reaches into this stretch:"),
    stretch.root,
    confirmed("Delete this stretch …", "These windows are gone then, for good, and an update that was not sent yet is made anew without them.", "Delete", async () => {
      const [from_s, to_s] = stretch.read();
      const count = await store.deleteWindows(1000 * from_s, 1000 * to_s);
      done.textContent = `${counted(count, "window")} deleted.`;
    }),
    confirmed(
      "Delete everything …",
      "All windows, labels, models and the phone's key are gone then, for good, and the phone leaves its federation.",
      "Delete everything",
      async () => {
        await recorder.stop();
        const message = await left();
        await store.clear();
        done.textContent = `Everything was deleted. ${message}`;
      },
    ),
    leaving,
    done,
  );
}

/** What leaves the phone, and what does not. */
function promised() {
  const points = [
    ["Never: samples and windows, and when you did what."],
    [
      "While it takes part: sums over your labelled windows, their number, and how well the model does here.",
      "They are sent when enough windows have changed: sums of features and of their products. They say much about how you move; " +
        "whoever runs the server can read them, unless the federation hides them. Whenever it changes: what the app is doing.",
    ],
    ["To enrol: the phone's name, from the link, and the public half of its key."],
    ["To nobody else: this app loads nothing from other servers."],
  ];
  const items = points.map((sentences) => element("li", {}, explained(...sentences)));
  return card("What leaves this phone", element("ul", {}, items));
}
