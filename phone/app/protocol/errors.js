/** What goes wrong between a phone and its server; each message is for people, and says what to do. */

/** Bytes came that are not of the protocol. */
export class WireError extends Error {}

/** A tensor holds NaN or infinity. */
export class NotFiniteError extends WireError {}

/** The server's model can't be used, although its bytes are the announced ones: the phone refuses it, signed. */
export class UnusableModelError extends Error {}

/**
 * Do what depends on the server's model alone, and blame the model for what goes wrong; throws an UnusableModelError.
 * @template T @param {() => T | Promise<T>} work @param {string} [what] goes wrong
 * @param {typeof WireError} [kind] of error that is the model's fault @returns {Promise<T>}
 */
export async function blamingModel(work, what = "the server's model can't be used", kind = WireError) {
  try {
    return await work();
  } catch (error) {
    throw error instanceof kind ? new UnusableModelError(`${what}: ${error.message}`) : error;
  }
}

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
