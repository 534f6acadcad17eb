"""Hand-made features of raw windows, and random cosines of them, under a linear head: nothing below the head trains.

159 numbers of a window in m/s² and rad/s: of each axis mean, standard deviation, mean |Δ| and |rfft| of bins 1 to 8
(66); the same of |a|, |ω| and of the vertical and horizontal parts of both about the window's mean acceleration,
without the means of |a| and of the vertical acceleration, which tell one sensor's error from another's (64); minima and
maxima of the axes and of |ω| (14); 15 correlations. All but the correlations as sign · log(1 + |·|), then (h − μ) / σ,
clipped to ±4, by constants that ship (`models.har_feature_scale`): federated ones would take a round more.

The lift 2 cos(z R + b) is random Fourier features of a Gaussian kernel (A. Rahimi, B. Recht: Random Features for
Large-Scale Kernel Machines, NIPS 2007), R ∈ N(0, 1/F), b ∈ U(0, 2π), of a seed: every client has the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.har_feature_scale import MEAN, STD
from models.model import Model, ModelOutput

WINDOW, BINS = 128, 8
CLIP = 4.0
FEATURES = 159
_SMALL = 1e-12
"""Under a root: a length of 0 stays 0 up to a millionth."""


class HarFeatures(Model):
    """Features of raw windows (B, 128, 6), `cosines` random cosines of them, and a linear head. D = 159 + cosines.

    It takes windows as they were measured: a plan with it has `data.normalization = "none"`.
    """

    input_shape = (WINDOW, 6)
    input_kinds = ("window",)
    takes_raw_input = True
    small: ClassVar[Mapping[str, Any]] = {"cosines": 17}

    feature_mean: Tensor
    feature_std: Tensor
    projection: Tensor
    phase: Tensor
    waves: Tensor

    def __init__(self, classes: int, *, cosines: int = 600, seed: int = 0) -> None:
        super().__init__(classes, cosines=cosines, seed=seed)
        if not 0 <= cosines <= 16_384:
            raise OptionError(f"cosines={cosines}: expected 0 to 16384 random cosines of the features")
        if not 0 <= seed < 2**63:
            raise OptionError(f"seed={seed}: expected a number from 0 to 2**63 - 1")
        self.feature_dim = FEATURES + cosines
        directions, phases = _draws(seed, cosines)
        constants = {
            "feature_mean": MEAN, "feature_std": STD, "projection": directions, "phase": phases, "waves": _waves(),
        }  # fmt: skip
        for name, value in constants.items():  # of the options alone: every client has the same
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.head = nn.Linear(self.feature_dim, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map raw x (B, 128, 6) in m/s² and rad/s to features (B, D) and logits (B, classes)."""
        standard = ((self.raw_features(x) - self.feature_mean) / self.feature_std).clamp(-CLIP, CLIP)
        lifted = 2 * torch.cos(standard @ self.projection + self.phase)
        features = torch.cat([standard, lifted], dim=1)
        return ModelOutput(features, self.head(features))

    def raw_features(self, x: Tensor) -> Tensor:
        """Return the 159 features (B, 159) of raw windows (B, 128, 6), before they are standardized."""
        mean = x.mean(1)
        acceleration, rotation = x[..., :3], x[..., 3:]
        sizes = torch.stack([_length(acceleration), _length(rotation)], dim=2)
        down = mean[:, None, :3] / (_length(mean[:, None, :3])[..., None] + 1e-6)  # the direction of gravity
        vertical = [(each * down).sum(2) for each in (acceleration, rotation)]
        horizontal = [
            _length(each - along[..., None] * down)
            for each, along in zip((acceleration, rotation), vertical, strict=True)
        ]
        levels = torch.stack([vertical[0], horizontal[0], vertical[1], horizontal[1]], dim=2)
        extremes = torch.cat([x.amin(1), x.amax(1), sizes.amin(1)[:, 1:], sizes.amax(1)[:, 1:]], dim=1)
        parts = [self._moments(x), self._moments(sizes)[:, 1:], self._moments(levels)[:, 1:], extremes]
        squashed = [torch.sign(part) * torch.log1p(part.abs()) for part in parts]
        return torch.cat([*squashed, _correlations(x - mean[:, None])], dim=1)

    def _moments(self, x: Tensor) -> Tensor:
        """Mean, deviation, mean |Δ| and |rfft| of BINS bins of x (B, 128, k): (B, 11 k), bin after bin."""
        centred = x - x.mean(1, keepdim=True)
        deviation = torch.sqrt((centred**2).mean(1) + _SMALL)
        cosine, sine = torch.einsum("kbt,ntc->knbc", self.waves, centred)
        spectrum = torch.sqrt(cosine**2 + sine**2 + _SMALL).flatten(1)
        return torch.cat([x.mean(1), deviation, (x[:, 1:] - x[:, :-1]).abs().mean(1), spectrum], dim=1)


def _draws(seed: int, cosines: int) -> tuple[list[list[float]], list[float]]:
    """Draw R (FEATURES, cosines) and b (cosines,) by Python's own generator, whose numbers no later version changes."""
    draw = random.Random(seed).random

    def normal() -> float:  # G. E. P. Box and M. E. Muller, 1958
        return math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())

    directions = [[normal() / math.sqrt(FEATURES) for _ in range(cosines)] for _ in range(FEATURES)]
    return directions, [2 * math.pi * draw() for _ in range(cosines)]


def _waves() -> list[list[list[float]]]:
    """Return cosines and sines (2, BINS, WINDOW) whose products with a window are its rfft over WINDOW."""
    return [
        [[wave(2 * math.pi * k * t / WINDOW) / WINDOW for t in range(WINDOW)] for k in range(1, BINS + 1)]
        for wave in (math.cos, math.sin)
    ]


def _length(x: Tensor) -> Tensor:
    return torch.sqrt((x**2).sum(-1) + _SMALL)


def _correlations(centred: Tensor) -> Tensor:
    """Return the 15 correlations (B, 15) of six channels (B, T, 6) less their means; of still ones near 0."""
    covariance = centred.transpose(1, 2) @ centred / centred.shape[1]
    deviation = torch.sqrt((centred**2).mean(1) + _SMALL) + 0.05
    scaled = covariance / (deviation[:, :, None] * deviation[:, None])
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    return torch.stack([scaled[:, i, j] for i, j in pairs], dim=1)
