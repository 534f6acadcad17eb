/**
 * Reads what the server says to a phone. The checks themselves are generated from federation/protocol/messages.py:
 * messages.generated.js.
 */

import { TrustError, WireError } from "./errors.js";
import { acknowledgement, announcement, invitation, MESSAGE_BYTES, notice, offer } from "./messages.generated.js";
import { textOf } from "./signing.js";

/** @typedef {import("./messages.generated.js").Announcement} Announcement */
/** @typedef {import("./messages.generated.js").Invitation} Invitation */
/** @typedef {import("./messages.generated.js").Offer} Offer */
/** @typedef {import("./messages.generated.js").Notice} Notice */
/** @typedef {import("./messages.generated.js").Acknowledgement} Acknowledgement */

/**
 * Read a message of JSON.
 * @template T @param {import("./checks.js").Check<T>} check @param {Uint8Array} bytes
 * @param {string} what it is, for the error @returns {T} throws a WireError
 */
export function readJson(check, bytes, what) {
  if (bytes.length > MESSAGE_BYTES) {
    throw new WireError(`${what} of ${bytes.length} bytes came, at most ${MESSAGE_BYTES} are read`);
  }
  let value;
  try {
    value = JSON.parse(textOf(bytes));
  } catch {
    throw new WireError(`${what} came that is not JSON`);
  }
  try {
    return check(value, "");
  } catch (error) {
    if (error instanceof WireError) throw new WireError(`not a valid ${what}: ${error.message}`);
    throw error;
  }
}

/** @param {Uint8Array} body @returns {Announcement} throws a WireError, as the others do */
export function readAnnouncement(body) {
  const found = readJson(announcement, body, "announcement");
  if (new Set(found.plan.labels).size !== found.plan.labels.length) throw new WireError("the plan names a label twice");
  return found;
}
/** @param {Uint8Array} body @returns {Invitation} */
export const readInvitation = (body) => readJson(invitation, body, "invitation");
/** @param {Uint8Array} body @returns {Offer} */
export const readOffer = (body) => readJson(offer, body, "offer");
/** @param {Uint8Array} body @returns {Notice} */
export const readNotice = (body) => readJson(notice, body, "notice");
/** @param {Uint8Array} body @returns {Acknowledgement} */
export const readAcknowledgement = (body) => readJson(acknowledgement, body, "acknowledgement");

/** @typedef {{epoch: number, serial: number}} Newest of the announcements that were believed */

/**
 * Refuse an announcement of another federation, one that has expired, and one older than the newest that was believed.
 * @param {Announcement} a @param {string} federation @param {Newest} newest @param {number} nowMs @returns {Newest}
 */
export function checkOrder(a, federation, newest, nowMs) {
  if (a.federation !== federation) {
    throw new TrustError(`the announcement is of federation '${a.federation}', and this phone is in '${federation}'`);
  }
  if (a.epoch < newest.epoch) {
    throw new TrustError(
      `the announcement is of the server's epoch ${a.epoch}, and this phone has seen ${newest.epoch}: it goes back ` +
        "to no older one; if the server was restored by a wrong clock, its operator begins an epoch above " +
        `${newest.epoch}`,
    );
  }
  if (a.expires === null) throw new TrustError("the announcement does not say until when it holds");
  const lateS = nowMs / 1000 - a.expires;
  if (lateS > 0) {
    throw new TrustError(
      `the announcement expired ${Math.round(lateS)} s ago by this phone's clock; check the clock, or the server has ` +
        "not announced for long",
    );
  }
  if (a.epoch === newest.epoch && a.serial < newest.serial) {
    throw new TrustError(
      `the announcement is number ${a.serial}, and this phone has seen ${newest.serial}: somebody repeats an old one`,
    );
  }
  return { epoch: a.epoch, serial: a.serial };
}
