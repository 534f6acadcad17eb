"""Lloyd's k-means from a given start (S. Lloyd, IEEE Trans. Inf. Theory 28, 1982), without unnecessary work.

Three facts make most distances unnecessary without changing a label:

- a point that is nearer to its centre than half the way to the next centre has no other nearest one (C. Elkan, 'Using
  the triangle inequality to accelerate k-means', ICML 2003, lemma 1);
- a point that is nearer to its centre than any other centre was when last seen can only go to a centre that has moved
  since (the lower bound of G. Hamerly, 'Making k-means even faster', SDM 2010, but kept without the loss of its step);
- only clusters that won or lost a point move, and their sums change by these points alone.

The rest is matrix products of blocks that stay in cache.

`Stream` is k-means in one pass, in memory that does not grow with the points: D. Sculley, 'Web-scale k-means
clustering', WWW 2010, with a client's prototypes as the mini-batch. Each point moves the currently nearest centre, and
a centre is the mean of all points that moved it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Distances held at a time, whatever the number of points: on a CPU 4 MB of float32."""

WORTHWHILE = 0.1
"""Share of points that the test against the next centre must spare to be made again."""

FULL_SEARCH_SHARE = 0.6
"""Share of points from which all of them are searched: to copy so many costs more."""


class Clustering(NamedTuple):
    """What k-means found."""

    centres: Tensor  # (G, d)
    labels: Tensor  # (M,) int64, nearest centre before the last move
    inertia: float  # Σ squared distance to that centre
    iterations: int


def kmeans(
    points: Tensor | Sequence[Tensor],
    start: Tensor,
    *,
    hint: Tensor | None = None,
    max_iterations: int = 300,
    tolerance: float = 1e-4,
) -> Clustering:
    """Cluster points (M, d), or pieces of them, from the centres `start` (G, d).

    Stops when no label changes, or when Σ‖centre moved‖² ≤ tolerance · mean variance of the points, as scikit-learn
    does. A cluster that is emptied keeps its previous centre. `hint` (M,) guesses each point's nearest start: a good
    guess spares its first search, a bad one changes nothing.
    """
    pool = points if isinstance(points, Tensor) else torch.cat(list(points))
    # around the mean, ‖c‖² − 2·x·c loses fewer digits
    mean = pool.mean(0)
    lloyd = _Lloyd(pool - mean, start.to(pool) - mean, hint)
    threshold = tolerance * float(lloyd.norms.double().mean()) / pool.shape[1]
    iterations, inertia, done = 0, 0.0, False
    while iterations < max_iterations and not done:
        changed = lloyd.assign()
        inertia, shift = lloyd.inertia(), lloyd.move(changed)
        done = shift <= threshold or (iterations > 0 and not len(changed.rows))
        iterations += 1
    return Clustering((lloyd.centres + mean).to(start.dtype), lloyd.labels, inertia, iterations)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Return the index of each point's (M, d) nearest centre (G, d), the lowest in a tie."""
    half, rows = torch.linalg.vecdot(centres, centres) / 2, rows_at_once(points, len(centres))
    return torch.cat([torch.addmm(half, some, centres.T, alpha=-1).argmin(1) for some in torch.split(points, rows)])


def rows_at_once(points: Tensor, columns: int) -> int:
    """Return the number of rows to process at a time for this many columns."""
    return max(256, CHUNK_ELEMENTS.get(points.device.type, CHUNK_ELEMENTS["cpu"]) // columns)


class _Changed(NamedTuple):
    rows: Tensor  # of the points whose label changed
    before: Tensor  # their labels before


class _Lloyd:
    """The state between two iterations.

    A centre c is compared by its value ‖c‖²/2 − x·c, which is (‖x − c‖² − ‖x‖²)/2. `own` is the value of the point's
    centre, `others` a lower bound of all other centres' values, −∞ where none is known.
    """

    def __init__(self, points: Tensor, centres: Tensor, hint: Tensor | None) -> None:
        self.points, self.centres = points, centres
        self.norms = torch.linalg.vecdot(points, points)
        self.labels = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.labels = self.labels if hint is None else hint.to(self.labels).clone()
        self.own, self.others = torch.zeros_like(self.norms), torch.full_like(self.norms, -torch.inf)
        self.sums = torch.zeros_like(centres, dtype=torch.float64)
        self.counts = torch.zeros(len(centres), dtype=torch.int64, device=points.device)
        self.moved = torch.ones(len(centres), dtype=torch.bool, device=points.device)
        self.labelled, self.first, self.test_the_next = hint is not None, True, True

    def assign(self) -> _Changed:
        """Assign every point to its nearest centre; in a tie it keeps its own."""
        before = self.labels.clone()
        tested = self.labelled and self.test_the_next
        unsure = self._unsure() if tested else torch.ones_like(self.labels, dtype=torch.bool)
        self.labelled = True
        bounded = unsure & (self.others > -torch.inf)
        if float(bounded.sum()) > FULL_SEARCH_SHARE * len(bounded):
            bounded[:] = True  # points in their order need no copy
        self._search(_where(bounded), _where(self.moved))
        everywhere = torch.arange(len(self.centres), device=self.points.device)
        self._search(_where(unsure & (self.others == -torch.inf)), everywhere)
        rows = _where(self.labels != before)
        return _Changed(rows, before[rows])

    def inertia(self) -> float:
        """Σ squared distance of the points to their centres."""
        return max(0.0, float(self.norms.double().sum() + 2 * self.own.double().sum()))

    def move(self, changed: _Changed) -> float:
        """Move the centres of the clusters that won or lost points; return Σ‖move‖²."""
        if self.first:
            self._count(torch.arange(len(self.points), device=self.points.device), self.labels, 1)
        else:
            self._count(changed.rows, self.labels[changed.rows], 1)
            self._count(changed.rows, changed.before, -1)
        self.first = False
        means = (self.sums / self.counts.clamp(min=1)[:, None]).to(self.centres)
        centres = torch.where(self.counts[:, None] > 0, means, self.centres)
        self.moved = (centres != self.centres).any(1)
        shift = float(((centres - self.centres).double() ** 2).sum())
        self.centres = centres
        return shift

    def _unsure(self) -> Tensor:
        """Measure all points; False where no other centre can be nearer, by the next centre's distance alone."""
        squared = torch.empty_like(self.norms)
        for some in self._pieces(torch.arange(len(squared), device=squared.device), self.points.shape[1]):
            span = slice(int(some[0]), int(some[-1]) + 1)
            # from differences, which cancel nothing
            difference = self.points[span] - self.centres[self.labels[span]]
            squared[span] = torch.linalg.vecdot(difference, difference)
        self.own = (squared - self.norms) / 2
        sure = squared < self._quarter_to_next()[self.labels]
        self.others[sure] = -torch.inf
        self.test_the_next = float(sure.sum()) >= WORTHWHILE * len(sure)
        return ~sure

    def _quarter_to_next(self) -> Tensor:
        """(min over other centres of ‖c − c'‖ / 2)², in float64 and rounded down, so that rounding spares nobody."""
        exact = self.centres.double()
        nearest = torch.empty_like(exact[:, 0])
        for rows in self._pieces(torch.arange(len(exact), device=exact.device), len(exact)):
            apart = torch.cdist(exact[rows], exact, compute_mode="use_mm_for_euclid_dist")
            apart[torch.arange(len(rows), device=exact.device), rows] = torch.inf
            nearest[rows] = apart.amin(1)
        return (nearest**2 * (0.25 * (1 - 1e-5))).to(self.norms)

    def _search(self, rows: Tensor, candidates: Tensor) -> None:
        """Compare these points' centres with the candidates, among which is every centre that moved.

        Where a centre outside the candidates may be the nearest, nothing is decided and the bound becomes −∞.
        """
        if not len(rows) or not len(candidates):
            return
        centres = self.centres[candidates]
        half, across = torch.linalg.vecdot(centres, centres) / 2, centres.T.contiguous()
        place = torch.full_like(self.counts, -1)  # of a centre among the candidates
        place[candidates] = torch.arange(len(candidates), device=place.device)
        ordered, complete = len(rows) == len(self.points), len(candidates) == len(self.centres)
        for some in self._pieces(rows, len(candidates)):
            span = slice(int(some[0]), int(some[-1]) + 1) if ordered else some
            values = torch.addmm(half, self.points[span], across, alpha=-1)
            column, own, others = place[self.labels[span]], self.own[span].clone(), self.others[span]
            among = _where(column >= 0)
            own[among] = values[among, column[among]]
            values[among, column[among]] = torch.inf  # a point's own centre is not one of the others
            best = values.amin(1)
            decided = torch.ones_like(own, dtype=torch.bool) if complete else torch.minimum(own, best) <= others
            bound = best if complete else torch.minimum(best, others)
            self.others[span] = torch.where(decided, bound, -torch.inf)
            self.own[span] = own
            won = _where(decided & (best < own))
            self._change(
                some[won], values[won], candidates, others[won] if not complete else best.new_tensor(torch.inf)
            )

    def _change(self, rows: Tensor, values: Tensor, candidates: Tensor, unseen: Tensor) -> None:
        """Move these points to the best of the candidates; their old centre is one of the others now."""
        best = values.min(1)
        values.scatter_(1, best.indices[:, None], torch.inf)
        self.others[rows] = torch.minimum(torch.minimum(unseen, self.own[rows]), values.amin(1))
        self.own[rows], self.labels[rows] = best.values, candidates[best.indices]

    def _count(self, rows: Tensor, labels: Tensor, sign: int) -> None:
        """Add the points to their clusters' sums, or take them out."""
        size = rows_at_once(self.points, self.points.shape[1])
        for some, part in zip(torch.split(rows, size), torch.split(labels, size), strict=True):
            self.sums.index_add_(0, part, self.points[some].double(), alpha=sign)
        self.counts += sign * torch.bincount(labels, minlength=len(self.counts))

    def _pieces(self, rows: Tensor, columns: int) -> Iterator[Tensor]:
        yield from torch.split(rows, rows_at_once(self.points, columns)) if len(rows) else ()


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]


class Stream(NamedTuple):
    """The current centres (G, d), and the number of points behind each (G,)."""

    centres: Tensor
    counts: Tensor


def begin_stream(start: Tensor) -> Stream:
    """Start from the centres `start` (G, d), which weigh nothing: the first point that takes one replaces it."""
    return Stream(start.double(), torch.zeros(len(start), dtype=torch.int64, device=start.device))


def take_points(stream: Stream, points: Tensor) -> Stream:
    """Move each point's (M, d) nearest centre towards it."""
    labels = nearest(points.double(), stream.centres)
    added = torch.bincount(labels, minlength=len(stream.counts))
    counts = stream.counts + added
    sums = torch.zeros_like(stream.centres).index_add_(0, labels, points.double())
    step = (sums - added[:, None] * stream.centres) / counts.clamp(min=1)[:, None]
    return Stream(stream.centres + step, counts)
