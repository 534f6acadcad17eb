/** The phone as views see it: it answers in this page what an agent answers over HTTP (gaitway/views/api.js). */

import { LESSON_MS } from "./teaching/lesson.js";
import { labelText } from "./views/labels.js";

/** @typedef {import("./main.js").App} App */

export class PhoneDevice {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Promise<import("./timeline.js").DayReader> | null} loaded when a day is wanted */ this.reader = null;
  }

  /** @param {string} name @param {any} [body] @returns {Promise<any>} */
  async ask(name, body = {}) {
    if (Object.hasOwn(OF_DAYS, name)) {
      this.reader ??= import("./timeline.js").then(({ DayReader }) => new DayReader(this.app));
      return OF_DAYS[name](await this.reader, body);
    }
    return (await ANSWERS[name](this.app, body)) ?? {};
  }
}

/** @type {Record<string, (reader: import("./timeline.js").DayReader, body: any) => unknown>} */
const OF_DAYS = {
  day: (reader, body) => reader.day(body),
  label: (reader, body) => reader.label(body),
  undo: (reader) => reader.undo(),
};

/** @type {Record<string, (app: App, body: any) => any>} */
const ANSWERS = {
  now,
  teaching,
  privacy,
  models: modelsInUse,
  teach: ({ teacher }, { activity }) => teacher.start(activity),
  "pause-lesson": ({ teacher }) => teacher.pause(),
  "resume-lesson": ({ teacher }) => teacher.resume(),
  "cancel-lesson": ({ teacher }) => teacher.cancel(),
  "stop-recording": ({ recorder }) => recorder.stop(),
  "add-activity": ({ teacher }, { activity }) => teacher.add(activity),
  "remove-activity": ({ teacher }, { activity }) => teacher.remove(activity),
  "count-as": ({ teacher }, { activity, label }) => teacher.countAs(activity, label),
  "take-part": ({ participation }) => participation.setTakesPart(true),
  withdraw: ({ participation }) => participation.setTakesPart(false),
  "accept-plan": ({ participation }, { promises }) => participation.acceptPlan(promises),
  choose: ({ models }, { label }) => models.carryOut(label),
};

/** @param {App} app @returns {import("./views/api.js").Now} */
function now({ recorder, recognition, models }) {
  const current = recognition.current;
  const { unavailableReason: reason, modelName } = recognition;
  const ready = recorder.running ? "The first answer takes about three seconds." : `Ready: ${modelName}. ${models.caution}`;
  return {
    now: Date.now() / 1000,
    seen: recognition.history.map(({ middleMs, label, probability }) => [middleMs / 1000, label, probability]),
    by: current?.by ?? "",
    error: recognition.problem,
    others: current?.ranking.slice(1, 3) ?? [],
    idle: current ? "" : reason ? "No model yet" : recorder.running ? "Listening …" : "Not listening",
    why: reason || ready,
  };
}

/** @param {App} app @returns {import("./views/api.js").Teaching} */
function teaching({ teacher, recorder, models, labels }) {
  const { lesson, message, lastTaught, taught } = teacher;
  const uses = models.model ? `Recognize uses ${models.name}${models.reason ? `; ${models.reason}` : ""}.` : models.unavailableReason;
  return {
    unable: teacher.unavailableReason,
    labels: labels(),
    personal: teacher.personal.map(({ name, countsAs }) => ({ name, counts_as: countsAs })),
    lesson: lesson && {
      activity: lesson.activity,
      done_s: lesson.doneMs / 1000,
      paused: lesson.paused,
      warning: lesson.warning(Date.now()),
    },
    lesson_s: LESSON_MS / 1000,
    message: lastTaught && message.includes("learnt.") ? `${labelText(lastTaught)}: ${message}` : message,
    result: taught && described(taught),
    why_not: teacher.problem,
    used: [uses, ...ownInWords(teacher)].join(" "),
    recording: recorder.running,
  };
}

/** As edge_agent/teaching/learned_head.py. @param {import("./teaching/learned_head.js").Taught} taught @returns {import("./views/api.js").Taught} */
function described({ activities, matrix, learnt, own, others, solveS }) {
  const codes = activities.map((_, code) => code);
  const rows = codes.filter((code) => learnt[code] || matrix[code].some((each) => each > 0));
  const columns = codes.filter((code) => rows.includes(code) || matrix.some((row) => row[code] > 0));
  return {
    rows: rows.map((code) => activities[code]),
    columns: columns.map((code) => activities[code]),
    matrix: rows.map((row) => columns.map((column) => matrix[row][column])),
    learnt: rows.map((code) => learnt[code]),
    right: codes.reduce((sum, code) => sum + matrix[code][code], 0),
    windows: matrix.flat().reduce((sum, each) => sum + each, 0),
    own,
    shared: others,
    solve_s: solveS,
  };
}

/** @param {import("./teaching/teacher.js").Teacher} teacher @returns {string[]} sentences */
function ownInWords({ ownLearnt: { named, unnamed } }) {
  const words = named.length ? [`Your model also names ${named.join(" and ")}.`] : [];
  const not = unnamed.map((name) => `It does not name ${name} yet: of what was taken for it, at most half was. Teach it again.`);
  return [...words, ...not];
}

/** @param {App} app @returns {import("./views/api.js").Privacy} */
export function privacy({ participation }) {
  const { required, offered, publicKey } = participation.state ?? {};
  const words = required ? [`Required on this phone: ${required}`] : [];
  if (offered) words.push(`The server's plan promises less: ${offered}`);
  if (publicKey) words.push(`This phone's key: ${publicKey}`);
  return { words, promises: offered ?? "", more: "This phone then sends nothing about its windows, and tells the server so." };
}

/** @param {App} app @returns {import("./views/api.js").Models} */
export function modelsInUse({ models }) {
  return {
    used: models.description,
    caution: models.caution,
    why: models.reason ? [models.reason] : [],
    choices: models.choices.map(({ label }) => ({ label, name: "choose", body: { label } })),
    result: models.lastResult,
  };
}
