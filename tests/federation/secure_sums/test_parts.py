"""Shares, the graph and the masks against what mathematics and the papers say of them."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, hypergeom

from federation.errors import WireError
from federation.secure_sums import masks, shamir
from federation.secure_sums.membership import CORRECTNESS_BITS, SECURITY_BITS, degree_for, neighbours_of
from tests.federation.secure_sums.small_sums import seeded

POINTS = np.array([1, 4, 5, 9, 16_384], np.uint64)


def combined(points: np.ndarray, shares: list[bytes]) -> bytes | None:
    return shamir.combine(points[None].astype(np.uint64), [shares])[0]


@given(secret=st.binary(min_size=32, max_size=32), threshold=st.integers(1, 5))
def test_any_t_shares_give_the_secret_back(secret: bytes, threshold: int) -> None:
    shares = shamir.split(secret, POINTS, threshold, seeded("shares"))
    for chosen in combinations(range(5), threshold):
        assert combined(POINTS[list(chosen)], [shares[i] for i in chosen]) == secret


def test_shares_are_the_values_of_a_polynomial_by_pythons_own_integers() -> None:
    drawn = seeded("oracle")
    shares = shamir.split(bytes(range(32)), POINTS, 3, drawn)
    again = seeded("oracle")(4 * (2 * 11 + 8))
    coefficients = [int.from_bytes(again[i : i + 4], "little") & shamir.PRIME for i in range(0, 88, 4)]
    for point, share in zip(POINTS.tolist(), shares, strict=True):
        square, linear = coefficients[0], coefficients[11]
        value = (square * point**2 + linear * point + int.from_bytes(bytes(range(3)), "little")) % shamir.PRIME
        assert int.from_bytes(share[:4], "little") == value


def test_fewer_shares_say_nothing() -> None:
    """Each share alone is uniform, whatever the secret: chi-square of the low byte of 20,000 numbers."""
    entropy = seeded("uniform")
    numbers = [np.frombuffer(shamir.split(b"\xff" * 32, POINTS[:2], 2, entropy)[1], "<u4") for _ in range(20_000 // 11)]
    counts = np.bincount(np.concatenate(numbers) & 255, minlength=256)
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2.sf(statistic, 255) > 1e-4


def test_shares_of_no_secret_are_seen() -> None:
    shares = shamir.split(bytes(32), POINTS, 3, seeded("x"))
    assert combined(POINTS[:3], [*shares[:2], bytes(44)]) != bytes(32)
    assert combined(POINTS[:2], shares[:2]) is None, "too few give numbers that no secret has, but for luck"


@pytest.mark.parametrize(("points", "threshold"), [([0, 1, 2], 2), ([1, 1, 2], 2), ([1, 2], 3), ([1, 2], 0)])
def test_points_that_would_give_the_secret_away_are_refused(points: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match="different points"):
        shamir.split(bytes(32), np.array(points, np.uint64), threshold, seeded("x"))


@pytest.mark.parametrize("members", [60, 100, 500, 1000, 3000])
@pytest.mark.parametrize(("colluding", "lost"), [(200, 200), (100, 300), (333, 100)])
def test_degree_and_threshold_keep_the_papers_bounds(members: int, colluding: int, lost: int) -> None:
    """By scipy's hypergeometric distribution."""
    k, t, quorum = degree_for(members, colluding, lost)
    corrupt, gone = members * colluding // 1000, members * lost // 1000
    assert members * hypergeom.sf(t - 1, members - 1, corrupt, k) <= 2.0**-SECURITY_BITS * (1 + 1e-6)
    assert members * hypergeom.sf(k - t, members - 1, gone, k) <= 2.0**-CORRECTNESS_BITS * (1 + 1e-6)
    # two lists: everybody signs one of them, those who work for the server both
    assert 2 * quorum > members + corrupt
    if k < members - 1:
        removed = corrupt + gone
        assert members * math.comb(removed, k // 2) / math.comb(members - 1, k // 2) <= 2.0**-SECURITY_BITS
        assert k % 2 == 0


@pytest.mark.parametrize("members", range(3, 40))
def test_small_sums_are_among_all_or_nearly_all(members: int) -> None:
    k, t, quorum = degree_for(members, 200, 200)
    assert k // 2 + 1 <= t <= k < members
    assert members // 2 < quorum <= members - members // 5
    with pytest.raises(ValueError, match="at least 3 members"):
        degree_for(2, 200, 200)


@given(members=st.integers(3, 200), seed=st.binary(min_size=32, max_size=32), data=st.data())
def test_neighbours_are_mutual_and_as_many_as_said(members: int, seed: bytes, data: st.DataObject) -> None:
    degree = data.draw(st.sampled_from([k for k in (4, 10, members - 1) if k < members]))
    graph = [neighbours_of(index, members, degree, seed) for index in range(members)]
    for index, own in enumerate(graph):
        assert len(set(own)) == degree
        assert index not in own
        assert all(index in graph[other] for other in own)


def test_the_graph_follows_from_its_seed_alone() -> None:
    first, second = (tuple(neighbours_of(i, 50, 4, bytes([seed]) * 32) for i in range(50)) for seed in (1, 2))
    assert first != second
    # in another language: places by rising SHA-256 of seed and index (4 bytes, big-endian)
    assert first[0] == neighbours_of(0, 50, 4, bytes([1]) * 32)


def test_a_stream_is_aes_256_in_counter_mode() -> None:
    """NIST SP 800-38A, F.5.5 has another first counter, so this is AES-256 of the counter itself, by ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = encryptor.update(b"".join(i.to_bytes(16, "big") for i in range(3)))
    assert masks.stream(key, 5, 64).tobytes() == blocks[:40]
    assert masks.stream(key, 9, 32).tobytes() == blocks[:36]


def test_a_point_of_small_order_is_refused() -> None:
    with pytest.raises(WireError, match="small order"):
        masks.pair_key(masks.private_key(bytes(range(32))), bytes(32), b"")
