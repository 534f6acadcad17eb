"""k-means in one pass, in memory that does not grow with what comes.

D. Sculley, 'Web-scale k-means clustering', WWW 2010, with a client's prototypes as the mini-batch: each point takes the
nearest centre as it stands, and a centre is the mean of all points that ever took it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from federation.aggregation.kmeans import nearest


class Stream(NamedTuple):
    """The centres as they stand (G, d), and how many points each is the mean of (G,)."""

    centres: Tensor
    counts: Tensor


def begin(start: Tensor) -> Stream:
    """Start from the centres `start` (G, d), which weigh nothing: the first point that takes one replaces it."""
    return Stream(start.double(), torch.zeros(len(start), dtype=torch.int64, device=start.device))


def take(stream: Stream, points: Tensor) -> Stream:
    """Let each of the points (M, d) draw its nearest centre towards it."""
    labels = nearest(points.double(), stream.centres)
    added = torch.bincount(labels, minlength=len(stream.counts))
    counts = stream.counts + added
    sums = torch.zeros_like(stream.centres).index_add_(0, labels, points.double())
    step = (sums - added[:, None] * stream.centres) / counts.clamp(min=1)[:, None]
    return Stream(stream.centres + step, counts)
