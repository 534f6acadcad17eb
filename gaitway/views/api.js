/** What views ask of a device, and what it answers: an agent over HTTP as JSON, a phone in the page itself. */

/**
 * @typedef {object} Device
 * @property {(name: string, body?: object) => Promise<any>} ask Read something, or do it. The types below describe the
 *   answers; on failure it rejects with an Error whose message is for people.
 */

/**
 * @typedef {object} Now of "now"
 * @property {number} now seconds since 1970, as all times
 * @property {[number, string, number | null][]} seen when, what and how likely, over the last minutes
 * @property {string} by what recognized the last one @property {string} error
 * @property {[string, number][]} [others] what else it may be
 * @property {string} [idle] in place of an answer, where nothing is measured @property {string} [why]
 * @property {number[][]} [signals] rows of the last window
 */

/**
 * @typedef {object} Stretch Minutes that follow each other and look alike.
 * @property {number} from_s @property {number} to_s
 * @property {string} recognized empty: nothing @property {number | null} certainty
 * @property {number | null} movement m/s²; null: nothing was classified yet
 * @property {string} label empty: none @property {number} kept windows @property {number} unlabelled of them
 */
/**
 * @typedef {object} Day of "day" {day}, null for the newest
 * @property {string} day such as 2026-11-28 @property {string[]} days of which something is known, the newest first
 * @property {[number, number][]} movement of minutes: when, and m/s²
 * @property {Stretch[]} stretches @property {Stretch[]} uncertain ask for a label @property {number} uncertain_more
 * @property {string[]} labels that can be given; empty: none @property {string} why_no_labels
 * @property {string} problem
 */
/** "label" {activity, from_s, to_s} or {activity, last_s}, and "undo" {}, which takes it back: {activity, windows}. */

/** @typedef {{activity: string, done_s: number, paused: boolean, warning: string}} Lesson */
/** @typedef {{right: number, windows: number}} Score */
/**
 * @typedef {object} Taught What one's own model makes of windows left out: rows are true, columns answered activities.
 * @property {string[]} rows @property {string[]} columns @property {number[][]} matrix
 * @property {number[]} learnt windows of each row @property {number} right @property {number} windows
 * @property {Score} own @property {Score} shared @property {number} solve_s
 */
/**
 * @typedef {object} Teaching of "teaching". Done by "teach", "add-activity", "remove-activity" {activity},
 *   "count-as" {activity, label}, "pause-lesson", "resume-lesson", "cancel-lesson" {}.
 * @property {string} unable why nothing can be taught; the rest is missing then
 * @property {string[]} labels of the federation @property {{name: string, counts_as: string}[]} personal
 * @property {Lesson | null} lesson @property {number} lesson_s @property {string} message about the last lesson
 * @property {Taught | null} result @property {string} why_not there is none @property {string} used the model in use
 * @property {Participation} [participation]
 * @property {boolean} [recording] whether "stop-recording" {} would end something
 */

/** @typedef {{takes_part: boolean, can: boolean, words: string, withdraws?: string}} Participation "withdraw", "take-part" */
/**
 * @typedef {object} Privacy of "privacy"
 * @property {string[]} words @property {string} promises that "accept-plan" {promises} accepts; empty: none
 * @property {string} [more] what is said besides
 */
/** @typedef {{label: string, name: string, body?: object}} Choice an action, and what its button says */
/**
 * @typedef {object} Models of "models"
 * @property {string} used @property {string[]} why @property {Choice[]} choices
 * @property {string} [caution] @property {string} [result] of the last choice
 */

export {};
