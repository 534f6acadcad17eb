/**
 * What the server says to a phone, validated as federation/protocol/messages.py does: sizes are bounded, and unknown
 * keys refused. Of the plan, which is the operator's and signed, a phone checks the parts that it reads.
 */

import { anyObject, flag, list, number, object, oneOf, or, orNull, readJson, text, whole } from "./checks.js";
import { TrustError, WireError } from "./errors.js";

const INTEGER = 2 ** 53 - 1;
const MAX_ROUNDS = 2 ** 31 - 1;
const MAX_CLASSES = 10_000;
const MAX_WITHDRAWN = 32;
const SHA256 = /^[0-9a-f]{64}$/;
export const NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

const instance = text(32, /^[0-9a-f]{32}$/);
const epoch = or(whole(1, INTEGER), 1);
const version = or(oneOf(1), 1);
const metric = text(64, /^[a-z0-9_]{1,64}$/);
const millionths = whole(0, 1e12);

const scoreToday = object({
  metric: or(metric, "macro_f1"),
  value: millionths,
  trivial: millionths,
  devices: whole(1, MAX_ROUNDS),
  working: whole(0, MAX_ROUNDS),
  measured: oneOf("version", "updates"),
});

/** @type {import("./checks.js").Check<import("../types.js").VersionScore & {metric: string}>} */
function score(value, at) {
  const { macro_f1, most_frequent, ...rest } = anyObject(value, at);
  // 0.2.0 named the fields after its only metric, and so do servers today where it is the metric
  const today =
    "metric" in rest ? value : { ...rest, value: macro_f1 ?? rest.value, trivial: most_frequent ?? rest.trivial };
  const found = scoreToday(today, at);
  if (found.working > found.devices) throw new WireError(`${at}: ${found.working} of ${found.devices} devices`);
  return found;
}

const pointer = object({
  sha256: text(64, SHA256),
  size: whole(0, 2 ** 34),
  url: text(1024),
  score: orNull(score),
});

const release = object({
  rollout: whole(1, MAX_ROUNDS),
  version: whole(0, MAX_ROUNDS),
  round: whole(0, MAX_ROUNDS),
  model: pointer,
});

const order = object({
  serial: whole(0, INTEGER),
  released: orNull(release),
  candidate: orNull(release),
  millionths: or(whole(0, 1_000_000), 0),
  withdrawn: or(list(whole(0, INTEGER), MAX_WITHDRAWN), []),
});

const NAMED = { others: true };
const plan = object(
  {
    labels: list(text(1024), MAX_CLASSES, 2),
    task: or(object({ name: text(64) }, NAMED), { name: "classification" }),
    model: object({ name: text(64, NAME), options: or(anyObject, {}) }),
    method: object({ name: text(64), backbone: or(text(64), "") }, NAMED),
    training: object(
      { classes: whole(2, MAX_CLASSES), feature_dim: or(whole(1, 65_536), 192), batch_size: or(whole(1, 65_536), 64) },
      NAMED,
    ),
    rounds: or(object({ rounds: or(whole(1, 1_000_000), 10), late: or(oneOf("drop", "next"), "drop") }, NAMED), {
      rounds: 10,
      late: "drop",
    }),
    rollout: or(object({ mode: or(oneOf("off", "manual", "automatic"), "off") }, NAMED), { mode: "off" }),
    data: or(
      object(
        {
          pipeline: or(anyObject, {}),
          input: orNull(anyObject),
          normalization: or(oneOf("client", "federated", "pooled", "none"), "client"),
          statistics: orNull(
            object({ count: whole(0, INTEGER), total: list(number, 4096), square: list(number, 4096) }),
          ),
          split: or(text(64), "temporal"),
          test_share: or(number, 0.2),
        },
        NAMED,
      ),
      {
        pipeline: {},
        input: null,
        normalization: "client",
        statistics: null,
        split: "temporal",
        test_share: 0.2,
      },
    ),
    light_clients: or(flag, false),
  },
  NAMED,
);

const announcement = object({
  schema_version: version,
  federation: text(64, NAME),
  instance,
  epoch,
  restored: orNull(number),
  serial: or(whole(0, INTEGER), 0),
  state: oneOf("waiting", "collecting", "aggregating", "paused", "finished", "stopped"),
  round: whole(0, MAX_ROUNDS),
  invited: or(whole(0, INTEGER), 0),
  deadline: orNull(number),
  plan,
  model: orNull(pointer),
  continuous: or(flag, false),
  feature_model: orNull(pointer),
  release: orNull(order),
  chunk_bytes: or(whole(1024, 1 << 20), 128 * 1024),
  presence_check: or(text(64), ""),
  created: number,
  expires: orNull(whole(0, INTEGER)),
});

const invitation = object({
  schema_version: version,
  instance,
  epoch,
  round: whole(1, MAX_ROUNDS),
  model: pointer,
});

const offer = object({ schema_version: version, instance, epoch, rollout: whole(1, MAX_ROUNDS) });

const notice = object({ schema_version: version, session: text(64), reason: text(500) });

const acknowledgement = object({
  schema_version: version,
  update_id: text(64, NAME),
  nonce: or(text(64), ""),
  status: oneOf("send", "accepted", "refused", "later"),
  next_chunk: or(whole(0, INTEGER), 0),
  reason: or(text(1000), ""),
});

/** @typedef {ReturnType<typeof announcement>} Announcement */
/** @typedef {ReturnType<typeof invitation>} Invitation */
/** @typedef {ReturnType<typeof offer>} Offer */
/** @typedef {ReturnType<typeof notice>} Notice */
/** @typedef {ReturnType<typeof acknowledgement>} Acknowledgement */
/** @typedef {ReturnType<typeof pointer>} Pointer */
/** @typedef {ReturnType<typeof release>} Release */
/** @typedef {ReturnType<typeof order>} ReleaseOrder */

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
