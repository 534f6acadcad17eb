"""What the server holds before shares are opened is uniformly random, whatever the devices' numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from federation.protocol.signing import Kind
from federation.secure_sums.messages import SumRequest, VectorReady
from federation.secure_sums.server import ServerStage
from tests.federation.secure_sums.small_sums import LAYOUT, NAMES, Network, request

SEEDS, NUMBERS = 30, 64


BEFORE_IT_IS_OPENED = dict.fromkeys(NAMES, ServerStage.LISTS)


def asked(seed: int) -> SumRequest:
    return request(attempt=seed.to_bytes(32, "big"), length=NUMBERS)


def p_value(values: np.ndarray) -> float:
    """Return how likely bytes as uneven as these are where all are equally likely."""
    counts = np.bincount(values, minlength=256)
    return float(chi2.sf(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 255))


@pytest.mark.parametrize("own", [0, 7, -1000])
def test_what_the_server_stores_is_uniform(own: int) -> None:
    """Chi-square over the bytes of one device's vector and of the sum of all before it is opened, in 30 sums.

    All numbers of all devices are the same: a mask that was missing, short or used twice would be seen at once.
    """
    stored: dict[str, list[np.ndarray]] = {"device0": [], "sum": [], "difference": []}
    for seed in range(SEEDS):
        network = Network(NAMES[:4], asked(seed), seed=f"transcript {seed}", lost=BEFORE_IT_IS_OPENED)
        network.vectors = {name: VectorReady(np.full(NUMBERS, own), 1000, LAYOUT) for name in network.names}
        network.run()
        sent = {name: np.frombuffer(m.vector, "<u4") for name, m in network.history if m.kind is Kind.SUM_VECTOR}
        assert len(sent) == 4
        stored["device0"].append(sent["device0"])
        stored["sum"].append(np.sum(list(sent.values()), axis=0, dtype=np.uint32))
        stored["difference"].append(sent["device0"] - sent["device1"])
    for what, numbers in stored.items():
        assert p_value(np.concatenate(numbers).view(np.uint8)) > 1e-4, what


def test_unevenness_would_be_seen() -> None:
    """The devices' own numbers under a mask of 16 bits instead of 32."""
    masked = np.random.default_rng(1).integers(0, 1 << 16, SEEDS * NUMBERS).astype(np.uint32) + np.uint32(7)
    assert p_value(masked.view(np.uint8)) < 1e-9


def test_no_two_masks_are_the_same() -> None:
    """Over pairs, purposes and sums: keys that came twice would show the difference of two devices' numbers."""
    seen = set()
    for seed in range(10):
        network = Network(NAMES[:5], asked(seed), lost=BEFORE_IT_IS_OPENED)
        network.vectors = {name: VectorReady(np.zeros(NUMBERS, int), 1000, LAYOUT) for name in network.names}
        network.run()
        seen |= {m.vector for _, m in network.history if m.kind is Kind.SUM_VECTOR}
    assert len(seen) == 50
