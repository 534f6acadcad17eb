"""k-means against scikit-learn and against Lloyd's algorithm without any shortcut; the streaming one against both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from federation.aggregation.kmeans import begin_stream, kmeans, nearest, take_points


def plain_lloyd(points: Tensor, centres: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return centres and labels after so many full iterations, in float64."""
    for _ in range(iterations):
        labels = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        filled = [points[labels == g].mean(0) if bool((labels == g).any()) else c for g, c in enumerate(centres)]
        centres = torch.stack(filled)
    return centres, labels


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 400),
    clusters=st.integers(1, 40),
    spread=st.sampled_from([0.05, 0.5, 3.0]),
    hinted=st.sampled_from(["no", "right", "random"]),
)
def test_no_shortcut_changes_a_label(seed: int, count: int, clusters: int, spread: float, hinted: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    places = torch.randn(clusters, 5, generator=draw, dtype=torch.float64)
    member = torch.randint(clusters, (count,), generator=draw)
    points = places[member] + spread * torch.randn(count, 5, generator=draw, dtype=torch.float64)
    start = places + 0.3 * torch.randn(clusters, 5, generator=draw, dtype=torch.float64)
    guess = {"no": None, "right": member, "random": torch.randint(clusters, (count,), generator=draw)}[hinted]
    ours = kmeans(points, start, hint=guess, tolerance=0.0)
    centres, labels = plain_lloyd(points, start, ours.iterations)
    assert torch.equal(ours.labels, labels)
    assert torch.allclose(ours.centres, centres, rtol=0, atol=1e-9)
    inertia = (
        float(((points - plain_lloyd(points, start, ours.iterations - 1)[0][labels]) ** 2).sum())
        if ours.iterations > 1
        else float(((points - start[labels]) ** 2).sum())
    )
    assert ours.inertia == pytest.approx(inertia, rel=1e-6, abs=1e-9)


def test_work_that_cannot_matter_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prototypes that stayed near their centres cost no search at all; spread points cost less with every iteration."""
    searched: list[int] = []
    multiply = torch.addmm

    def counted(half: Tensor, points: Tensor, across: Tensor, *, alpha: float) -> Tensor:
        searched.append(len(points) * across.shape[1])
        return multiply(half, points, across, alpha=alpha)

    monkeypatch.setattr(torch, "addmm", counted)
    draw = torch.Generator().manual_seed(3)
    centres = torch.randn(64, 32, generator=draw)
    drifted = [centres + 0.05 * torch.randn(64, 32, generator=draw) for _ in range(20)]
    kmeans(drifted, centres, hint=torch.arange(64).repeat(20))
    assert sum(searched) == 0
    spread = torch.randn(6400, 32, generator=draw)
    iterations = kmeans(spread, spread[:64]).iterations
    assert sum(searched) < 0.7 * iterations * 6400 * 64


def test_nearest_takes_the_lowest_of_equals() -> None:
    centres = torch.tensor([[1.0], [-1.0], [1.0]])
    assert nearest(torch.tensor([[0.0], [2.0], [-3.0]]), centres).tolist() == [0, 0, 1]


def test_streaming_keeps_the_mean_of_what_came() -> None:
    stream = begin_stream(torch.tensor([[0.0], [10.0], [50.0]]))
    stream = take_points(stream, torch.tensor([[1.0], [9.0]]))  # each replaces the start of its cluster
    stream = take_points(stream, torch.tensor([[3.0], [4.0], [10.0]]))
    assert stream.centres.flatten().tolist() == pytest.approx([(1 + 3 + 4) / 3, 9.5, 50.0])
    assert stream.counts.tolist() == [3, 2, 0]


@pytest.mark.parametrize(("drift", "most"), [(0.05, 1.001), (0.5, 1.05)])
def test_streaming_loses_little_inertia_on_prototypes(drift: float, most: float) -> None:
    draw = torch.Generator().manual_seed(5)
    centres = torch.randn(64, 16, generator=draw)
    pieces = [centres + drift * torch.randn(64, 16, generator=draw) for _ in range(30)]
    stream = begin_stream(centres)
    for piece in pieces:
        stream = take_points(stream, piece)
    pool = torch.cat(pieces)

    def inertia(found: Tensor) -> float:
        return float((torch.cdist(pool, found).amin(1) ** 2).sum())

    exact = kmeans(pool, centres).centres
    assert inertia(stream.centres.float()) <= most * inertia(exact)


@pytest.mark.parametrize("pieces", [1, 3])
def test_kmeans_is_lloyds(pieces: int) -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(900, 8)) + rng.integers(0, 6, (900, 1)) * 3 + 50
    start = points[:12]
    reference = KMeans(12, init=start, n_init=1, max_iter=300, tol=1e-4, algorithm="lloyd").fit(points)
    pool = list(torch.tensor(points).chunk(pieces)) if pieces > 1 else torch.tensor(points)
    ours = kmeans(pool, torch.tensor(start))
    assert np.allclose(ours.centres.numpy(), reference.cluster_centers_, atol=1e-2)
    assert ours.inertia == pytest.approx(reference.inertia_, rel=1e-3)
    assert (ours.labels.numpy() == reference.labels_).mean() > 0.999


def test_kmeans_in_float32_far_from_the_origin() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(500, 4)) + rng.integers(0, 5, (500, 1)) * 10 + 1000
    single = kmeans(torch.tensor(points, dtype=torch.float32), torch.tensor(points[:5], dtype=torch.float32))
    double = kmeans(torch.tensor(points), torch.tensor(points[:5]))
    assert single.centres.dtype == torch.float32
    assert single.inertia == pytest.approx(double.inertia, rel=1e-4)


def test_an_emptied_cluster_keeps_its_centre() -> None:
    points = torch.tensor([[0.0], [1.0], [10.0]])
    result = kmeans(points, torch.tensor([[0.0], [10.0], [500.0]]))
    assert result.centres.flatten().tolist() == pytest.approx([0.5, 10.0, 500.0])


def test_kmeans_stops_at_its_limit() -> None:
    points = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    assert kmeans(points, points[:20], max_iterations=2).iterations == 2
