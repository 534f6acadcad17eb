"""Entropy of a segmentation network by pixel: of its answer, and of its features.

U. Michieli, M. Ozay 2021 (arXiv 2105.08982), section 5.2: H_S is the Shannon entropy of the softmax probabilities,
H_E that of the features, normalized at each low-resolution pixel to sum 1 and scaled up to the input.

Differs from the paper: it does not say what becomes of negative features, which ReLU leaves none of. Here a pixel's
features are raised by their least where that is below 0; where all are 0 then, the entropy is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def softmax_entropy(logits: Tensor) -> Tensor:
    """Return H_S in nats, 0 to ln C, of logits (n, C, H, W): (n, H, W); a class that scores −∞ has no share."""
    return _entropy(logits.double().softmax(1))


def feature_entropy(features: Tensor, size: tuple[int, int]) -> Tensor:
    """Return H_E in nats, 0 to ln D, of features (n, D, h, w), interpolated bilinearly to size (H, W): (n, H, W)."""
    raised = features.double() - features.double().amin(1, keepdim=True).clamp(max=0)
    sums = raised.sum(1, keepdim=True)
    maps = _entropy(raised / torch.where(sums > 0, sums, 1.0))
    return functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _entropy(shares: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(shares).sum(1)  # −p ln p, 0 where p is 0
    return found
