"""What was released to a device, as its database has it, in words for `status` and `models`; also while it runs."""

from __future__ import annotations

from edge_agent.machine.releases import holds, offered_to
from edge_agent.serving.acceptance import Shelf
from edge_agent.storage.state_store import Store
from federation.protocol.messages import AdoptionReport, Offer, Release, ReleaseOrder, ReleaseReport, read

ORDER, OFFER, REPORT, ADOPTION = "order", "offer", "release", "adoption"
"""Names in the store: the server's last order and offer that were believed, what the device has said about a release,
and about the last candidate of any kind."""


def kept_order(store: Store) -> ReleaseOrder | None:
    """Return the last order that was believed."""
    text = store.get(ORDER)
    return read(ReleaseOrder, text.encode()) if text else None


def kept_offer(store: Store) -> Offer | None:
    """Return the last offer that was believed."""
    text = store.get(OFFER)
    return read(Offer, text.encode()) if text else None


def kept_report(store: Store) -> ReleaseReport | None:
    """Return what the device has said last about a release."""
    text = store.get(REPORT)
    return read(ReleaseReport, text.encode()) if text else None


def kept_adoption(store: Store) -> AdoptionReport | None:
    """Return what the device has said last about a model that it might have used."""
    text = store.get(ADOPTION)
    return read(AdoptionReport, text.encode()) if text else None


def release_words(store: Store, device: str) -> list[str]:
    """Say which release the device uses, and what it waits for; nothing where nothing was ever released."""
    order, report, present = kept_order(store), kept_report(store), Shelf(store).present()
    if order is None:
        return []
    using = present.get("rollout", 0) if present else 0
    words = [f"It uses the model of release {using}." if using else "It uses no released model."]
    offer = holds(kept_offer(store), store.get("identity").partition("/")[0], store.epoch)
    offered = offered_to(device, order, offer)
    if offered and offered.rollout != using:
        words.append(_about(offered, report, kept_adoption(store)))
    if order.candidate and order.candidate != offered:
        share = f"{order.millionths / 10_000:g} % of the devices" if order.millionths else "groups of devices"
        words.append(f"{_named(order.candidate)} goes to {share} for now; this one waits for its wave.")
    return words


def _about(offered: Release, report: ReleaseReport | None, judged: AdoptionReport | None) -> str:
    if report and report.rollout == offered.rollout:
        reason = f": {report.reason}" if report.reason else ""
        return f"{_named(offered)} is for it, and was {_DONE[report.answer]}{reason}."
    undecided = judged and (judged.round, judged.source, judged.answer) == (offered.round, "global", "undecided")
    if undecided and offered.model.score is None:
        return f"{_named(offered)} is for it, and waits for a score by devices that can check it."
    return f"{_named(offered)} is for it; it is taken up when there is no round to train, and the device may work."


_DONE = {"adopted": "adopted", "refused": "refused", "failed": "given up", "rolled_back": "left again"}


def _named(release: Release) -> str:
    return f"Release {release.rollout} (version {release.version})"
