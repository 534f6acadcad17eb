"""Which model serves, for `phone.json`: what devices have, what they report, and what they choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from federation.rounds.serving import (
    SHARED,
    Evidence,
    GainSums,
    Prior,
    Rival,
    expected_gains,
    likeliest,
)


class Device(NamedTuple):
    """A device that chooses among three models. `right`: how often each is, and then the shared one."""

    name: str
    classes: int = 4
    windows: int = 60
    sessions: int = 3
    others: int = 24
    """Devices that have reported gains."""
    lacking: int = 0
    """Of its classes, the last ones, which have no held-out windows."""
    untrained: int = 0
    right: tuple[float, float, float, float] = (0.9, 0.85, 0.8, 0.75)
    margin: float = 0.0


CANDIDATES = ("midway", "personalized", "adapted")
DEVICES = (
    *(Device(f"{classes} classes", classes, sessions=sessions) for classes in range(2, 7) for sessions in (1, 4)),
    Device("a few windows", windows=5),
    Device("reports of ten others", others=10),
    Device("reports of nine others are too few", others=9),
    Device("no reports", others=0),
    Device("no held-out windows", windows=0),
    Device("no held-out windows, and no reports", windows=0, others=0),
    Device("a class without held-out windows", lacking=1),
    Device("a class without held-out windows, and no reports", lacking=1, others=0),
    Device("a class that it never trained on", lacking=1, untrained=1),
    Device("a class that it never trained on, but has held-out windows of", untrained=1),
    Device("two classes that it never trained on", classes=6, lacking=2, untrained=2, right=(1.0, 1.0, 0.8, 0.9)),
    Device("all are right: a tie", others=0, right=(1.0, 1.0, 1.0, 1.0)),
    Device("a gain that reaches the margin", margin=0.05),
    Device("no gain reaches the margin", margin=0.3),
    Device("the shared model is the best", right=(0.6, 0.5, 0.7, 0.95)),
)


def preferences() -> Iterator[dict[str, Any]]:
    """Return a case for each device."""
    for number, device in enumerate(DEVICES):
        yield _preference(number, device)


def _preference(number: int, device: Device) -> dict[str, Any]:
    """Return what a device has, what it reports, and which model it serves."""
    random = np.random.default_rng(number)
    classes, windows = device.classes, device.windows
    y, session = random.integers(0, classes - device.lacking, windows), random.integers(0, device.sessions, windows)
    *qualities, shared = (random.random((4, windows)) < np.array(device.right)[:, None]).astype(int)
    recall = min((float(shared[y == label].mean()) for label in np.unique(y)), default=0.0)
    trained = np.arange(classes) < classes - device.untrained
    rows, candidates = [], {}
    for name, quality in zip(CANDIDATES, qualities, strict=True):
        evidence = Evidence.of(y, quality.astype(float), shared, session, classes) if windows else None
        own = evidence.report() if evidence else None
        sums = _gain_sums(random, device, own)
        candidates[name] = Rival(evidence, Prior.of(sums, own) if sums else None, forgets=name != "adapted")
        rows.append({"name": name, "quality": quality.tolist(), "sums": sums, **_known(candidates[name])})
    gains = expected_gains(candidates, trained, recall)
    return {
        **{"name": device.name, "labels": y.tolist(), "session": session.tolist(), "shared": shared.tolist()},
        **{"trained": trained.tolist(), "recall": recall, "margin": device.margin, "candidates": rows, "gains": gains},
        "serves": likeliest(gains, (*CANDIDATES, SHARED), device.margin),
    }


def _gain_sums(random: np.random.Generator, device: Device, own: GainSums | None) -> list[int] | None:
    """Add up reports of others, who lack a class now and then, and the device's own."""
    if not device.others:
        return None
    gain = random.normal(0.05, 0.2, (device.others, device.classes))
    gain[random.random(gain.shape) < 0.3] = np.nan
    gain[:, 0] = 0.1
    reports = [Evidence(one, np.where(np.isnan(one), np.nan, 0.02), 40).report() for one in gain]
    return [int(number) for number in np.sum([*reports, *([own] if own else [])], axis=0)]


def _known(candidate: Rival) -> dict[str, Any]:
    evidence, prior = candidate.evidence, candidate.prior
    return {
        "forgets": candidate.forgets,
        "gain": evidence and [None if np.isnan(one) else one for one in evidence.gain.tolist()],
        "variance": evidence and [None if np.isnan(one) else one for one in evidence.variance.tolist()],
        "report": evidence and evidence.report(),
        "prior": prior and [prior.mean, prior.variance, *prior.by_class.tolist()],
    }
