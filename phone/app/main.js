/** The app: what it consists of, put together. */

import { Recorder } from "./collection/recorder.js";
import { Store } from "./collection/store.js";
import { PhoneDevice } from "./device.js";
import { keepOnPhone, unsupportedReason } from "./install.js";
import { Learner } from "./learning/learner.js";
import { Models } from "./models.js";
import { Participation } from "./participation.js";
import { Recognition } from "./recognition.js";
import { LateEmbedder } from "./runtime.js";
import { Teacher } from "./teaching/teacher.js";
import { RemoteHost } from "./training/remote_host.js";
import * as collect from "./ui/collect.js";
import * as data from "./ui/data.js";
import { note, run } from "./ui/frame.js";
import * as join from "./ui/join.js";
import * as recognize from "./ui/recognize.js";
import * as takePart from "./ui/take_part.js";
import * as teach from "./ui/teach.js";
import { element, fill } from "./views/dom.js";

/** The view of a day, loaded when it is opened for the first time. @type {import("./ui/frame.js").View} */
const day = {
  title: "The day",
  within: "recognize",
  show(root, app) {
    let isOver = false;
    let end = () => {};
    import("./ui/day.js").then(({ show }) => {
      if (!isOver) end = show(root, app);
    });
    return () => {
      isOver = true;
      end();
    };
  },
};
const VIEWS = { join, teach, collect, recognize, "take-part": takePart, data, day };
/** What can be labelled before a federation says what it learns. */
const LABELS = ["walking", "running", "stairs_up", "stairs_down", "sitting", "standing", "lying", "cycling"];
const LINK = "#gaitway-enrol";
const MARKS_MS = 300;

/**
 * @typedef {object} App
 * @property {Store} store @property {Recorder} recorder @property {Recognition} recognition
 * @property {Participation} participation @property {Models} models @property {Teacher} teacher
 * @property {PhoneDevice} device as views ask it
 * @property {() => string[]} labels of the federation: the plan's
 * @property {() => string[]} activities that can be given as labels: those, and the person's own behind them
 * @property {import("./collection/store.js").Mark[]} marks of all windows, by time; another list whenever they change
 * @property {(hash: string) => boolean} opened whether a fragment was a link of enrolment, which was taken
 */

async function begin() {
  const store = await Store.open();
  const recorder = new Recorder(store);
  const learner = new Learner();
  const embedder = new LateEmbedder();
  const host = new RemoteHost();
  const participation = new Participation(store, learner, embedder, host);
  const models = new Models(store, embedder, learner, host, participation);
  const teacher = new Teacher(store, recorder, models);
  const labels = () => participation.state?.plan?.labels ?? LABELS;
  const app = /** @type {App} */ ({
    store,
    recorder,
    models,
    participation,
    teacher,
    recognition: new Recognition(recorder, models, teacher),
    labels,
    activities: () => [...labels(), ...teacher.personal.map(({ name }) => name)],
    marks: await store.marks(),
    opened: (/** @type {string} */ hash) => opened(hash, participation),
  });
  app.device = new PhoneDevice(app);
  followMarks(app);
  followLink(participation);
  await teacher.begin();
  await participation.begin();
  run(VIEWS, app);
  await keepOnPhone();
}

/**
 * Take a link out of the address, where its token would stay in the history.
 * @param {string} hash @param {Participation} participation
 */
function opened(hash, participation) {
  if (!hash.startsWith(LINK)) return false;
  try {
    participation.invite(hash.slice(1));
  } catch (error) {
    participation.problem = /** @type {Error} */ (error).message;
  }
  location.replace("#join");
  return true;
}

/** Read the marks again after a change, not more than some times a second. @param {App} app */
function followMarks(app) {
  let waits = false;
  app.store.watchers.add(() => {
    if (waits) return;
    waits = true;
    setTimeout(async () => {
      waits = false;
      app.marks = await app.store.marks();
    }, MARKS_MS);
  });
}

/** Whether the server is heard, in the page's head. @param {Participation} participation */
function followLink(participation) {
  const link = /** @type {HTMLElement} */ (document.getElementById("link"));
  participation.watchers.add(() => {
    const { state, membership } = participation;
    const isHere = membership?.approved && state && state.name !== "elsewhere";
    const words = !isHere ? "" : state.connected ? "connected" : "no server";
    if (link.textContent !== words) link.textContent = words;
    link.classList.toggle("lost", words === "no server");
  });
}

/** @param {string} words */
function refuse(words) {
  fill(
    /** @type {HTMLElement} */ (document.getElementById("main")),
    element("h1", {}, "Gaitway cannot run here"),
    element("p", { class: "problem" }, words),
  );
}

addEventListener("unhandledrejection", ({ reason }) => note(reason?.message ?? String(reason)));
const why = unsupportedReason(window);
if (why) refuse(why);
else begin().catch((error) => refuse(error.message));
