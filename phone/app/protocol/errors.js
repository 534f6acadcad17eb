/** What goes wrong between a phone and its server; each message is for people, and says what to do. */

/** Bytes came that are not of the protocol. */
export class WireError extends Error {}

/** A message is not the server's, or is an old one. */
export class TrustError extends Error {}

/** An enrolment, a token or a claim is refused. */
export class EnrolError extends Error {}

/** The server does not take this device any more: only a new enrolment helps. */
export class RevokedError extends EnrolError {}

/** Nobody answers, or not in time: the same may be sent again later. */
export class UnreachableError extends Error {}

/** The server refuses a request; the same would be refused again. */
export class RefusedError extends Error {
  /** @param {string} message @param {number} status of HTTP */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {unknown} error @returns {string} */
export function messageOf(error) {
  return error instanceof Error ? error.message || error.name : String(error);
}
