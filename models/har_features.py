"""Hand-made features of raw windows, and MiniRocket's, under a linear head: nothing below the head trains.

183 numbers of a window in m/s² and rad/s. The first 90 are the same however the phone is turned: of |a|, |ω| and of the
vertical and horizontal parts of both about the window's mean acceleration mean, standard deviation, mean |Δ| and |rfft|
of bins 1 to 8, without the means of |a| and of the vertical acceleration, which tell one sensor's error from another's
(64); minimum and maximum of |ω| (2); of the four parts the means of quarters of the window (16) and the extremes (8),
less the mean of the part. The other 93 depend on the axes: the same eleven numbers of each axis (66), minima and maxima
(12), 15 correlations. All but the correlations as sign · log(1 + |·|), then (h − μ) / σ, clipped to ±4, by constants
that ship (`models.har_feature_scale`): federated ones would take a round more.

Behind them are `features` of MiniRocket (`models.minirocket`), or, in plans written before them, `cosines`: the
lift 2 cos(z R + b) is random Fourier features of a Gaussian kernel (A. Rahimi, B. Recht: Random Features for
Large-Scale Kernel Machines, NIPS 2007), R ∈ N(0, 1/F), b ∈ U(0, 2π), of a seed: every client has the same. Half of
either kind don't depend on the axes. A head on those columns serves a phone that lies in any direction; it's solved of
a sub-block of the same sums as the head on all of them. So is the head of a device without a gyroscope.

Where gravity lies on a device, as features say it: a warning sign that a phone is carried otherwise.
The mean acceleration of a window is the direction of gravity and the bias of the sensor. How its three numbers are
spread over everybody's windows is in the sums that devices exchange (`feature_moments` of
`federation.aggregation.ridge_numpy`): what is usual is not the same in pockets and on belts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.har_feature_scale import MEAN, STD
from models.minirocket import MAX_FEATURES, OF_ACCELERATION, MiniRocket
from models.model import Model, ModelOutput

WINDOW, BINS, AXES = 128, 8, 3
CLIP = 4.0
ORIENTATION_FREE = 90
"""The first so many numbers are the same however the phone is turned."""
FEATURES = 183
QUARTERS = 4
_SMALL = 1e-12
"""Under a root: a length of 0 stays 0 up to a millionth."""


class HarFeatures(Model):
    """Features of raw windows (B, 128, 6) under a linear head: 183 numbers, and `features` of MiniRocket or `cosines`.

    It takes windows as they were measured: a plan with it has `data.normalization = "none"`. A plan that names no
    option is an old one, with 600 cosines; a new one has `new_plan_options` written into it.
    """

    input_shape = (WINDOW, 6)
    input_kinds = ("window",)
    takes_raw_input = True
    new_plan_options: ClassVar[Mapping[str, Any]] = {"features": 600}
    small: ClassVar[Mapping[str, Any]] = {"cosines": 17}

    feature_mean: Tensor
    feature_std: Tensor
    orientation_free: Tensor
    projection: Tensor
    phase: Tensor
    waves: Tensor

    def __init__(self, classes: int, *, features: int = 0, cosines: int | None = None, seed: int = 0) -> None:
        cosines = (0 if features else 600) if cosines is None else cosines
        super().__init__(classes, features=features, cosines=cosines, seed=seed)
        _check_options(features, cosines, seed)
        self.feature_dim = FEATURES + features + cosines
        lifted = features or cosines
        self.orientation_free_columns = (*range(ORIENTATION_FREE), *range(FEATURES, FEATURES + lifted // 2))
        """Of the features (D,), those that are the same however the phone is turned."""
        self.gravity_columns = tuple(range(ORIENTATION_FREE, ORIENTATION_FREE + 3))
        """Of the features (D,), the means of the three axes of the acceleration."""
        self.rocket = MiniRocket(features) if features else None
        self.acceleration_columns = self._acceleration_columns()
        """Of the features (D,), those that a device without a gyroscope has; none where an old plan doesn't say."""
        constants: dict[str, Any] = {
            "feature_mean": MEAN, "feature_std": STD, "waves": _waves(),
            "orientation_free": self._flags(self.orientation_free_columns),
        }  # fmt: skip
        if features:
            constants["acceleration"] = self._flags(self.acceleration_columns)
        else:
            constants["projection"], constants["phase"] = _draws(seed, cosines // 2, cosines - cosines // 2)
        for name, value in constants.items():  # of the options alone: every client has the same
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.head = nn.Linear(self.feature_dim, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map raw x (B, 128, 6) in m/s² and rad/s to features (B, D) and logits (B, classes)."""
        standard = ((self.raw_features(x) - self.feature_mean) / self.feature_std).clamp(-CLIP, CLIP)
        lifted = self.rocket(x) if self.rocket else 2 * torch.cos(standard @ self.projection + self.phase)
        features = torch.cat([standard, lifted], dim=1)
        return ModelOutput(features, self.head(features))

    def _flags(self, columns: Collection[int]) -> list[float]:
        return [float(column in set(columns)) for column in range(self.feature_dim)]

    def _acceleration_columns(self) -> tuple[int, ...]:
        if self.rocket is None:
            return ()
        lifted = [FEATURES + place for place, channel in enumerate(self.rocket.channels) if channel in OF_ACCELERATION]
        return (*_of_acceleration(), *lifted)

    def raw_features(self, x: Tensor) -> Tensor:
        """Return the 183 features (B, 183) of raw windows (B, 128, 6), before they are standardized."""
        parts = [*self._orientation_free(x), self._moments(x), x.amin(1), x.amax(1)]
        squashed = [torch.sign(part) * torch.log1p(part.abs()) for part in parts]
        return torch.cat([*squashed, _correlations(x - x.mean(1, keepdim=True))], dim=1)

    def _orientation_free(self, x: Tensor) -> list[Tensor]:
        acceleration, rotation = x[..., :3], x[..., 3:]
        mean = acceleration.mean(1, keepdim=True)
        down = mean / (_length(mean)[..., None] + 1e-6)  # the direction of gravity
        vertical = [(signal * down).sum(2) for signal in (acceleration, rotation)]
        horizontal = [
            _length(signal - along[..., None] * down)
            for signal, along in zip((acceleration, rotation), vertical, strict=True)
        ]
        sizes = torch.stack([_length(acceleration), _length(rotation)], dim=2)
        levels = torch.stack([vertical[0], horizontal[0], vertical[1], horizontal[1]], dim=2)
        centred = levels - levels.mean(1, keepdim=True)
        quarters = torch.unflatten(centred, 1, (QUARTERS, WINDOW // QUARTERS)).mean(2).flatten(1)
        return [
            self._moments(sizes)[:, 1:], self._moments(levels)[:, 1:], sizes.amin(1)[:, 1:], sizes.amax(1)[:, 1:],
            quarters, centred.amin(1), centred.amax(1),
        ]  # fmt: skip

    def _moments(self, x: Tensor) -> Tensor:
        """Mean, deviation, mean |Δ| and |rfft| of BINS bins of x (B, 128, k): (B, 11 k), bin after bin."""
        centred = x - x.mean(1, keepdim=True)
        deviation = torch.sqrt((centred**2).mean(1) + _SMALL)
        cosine, sine = torch.einsum("kbt,ntc->knbc", self.waves, centred)
        spectrum = torch.sqrt(cosine**2 + sine**2 + _SMALL).flatten(1)
        return torch.cat([x.mean(1), deviation, (x[:, 1:] - x[:, :-1]).abs().mean(1), spectrum], dim=1)


def _check_options(features: int, cosines: int, seed: int) -> None:
    if not 0 <= features <= MAX_FEATURES or features % 2:
        raise OptionError(f"features={features}: expected an even number of MiniRocket features, 0 to {MAX_FEATURES}")
    if not 0 <= cosines <= 16_384:
        raise OptionError(f"cosines={cosines}: expected 0 to 16384 random cosines of the features")
    if features and cosines:
        raise OptionError(f"features={features}, cosines={cosines}: expected one of the two, the other 0")
    if not 0 <= seed < 2**63:
        raise OptionError(f"seed={seed}: expected a number from 0 to 2**63 - 1")


def _of_acceleration() -> list[int]:
    """Return which of the 183 numbers need no gyroscope, in the order of `HarFeatures.raw_features`."""
    moments, pairs = 3 + BINS, [(i, j) for i in range(2 * AXES) for j in range(i + 1, 2 * AXES)]
    signals = [
        ("aw" * moments)[1:], ("aaww" * moments)[1:], "ww", "aaww" * (QUARTERS + 2), "aaawww" * (moments + 2),
        *("a" if last < AXES else "w" for _, last in pairs),
    ]  # fmt: skip
    return [number for number, signal in enumerate("".join(signals)) if signal == "a"]


@lru_cache(maxsize=4)  # of numbers and not of tensors, which belong to the mode and the device they are made under
def _draws(seed: int, free: int, rest: int) -> tuple[list[list[float]], list[float]]:
    """Draw R (FEATURES, free + rest) and b (free + rest,); the first `free` columns weigh no number of the axes.

    By Python's own generator, whose numbers no later version changes.
    """
    draw = random.Random(seed).random

    def normal(features: int) -> float:  # G. E. P. Box and M. E. Muller, 1958
        return math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw()) / math.sqrt(features)

    of_free = [[normal(ORIENTATION_FREE) for _ in range(free)] for _ in range(ORIENTATION_FREE)]
    of_free += [[0.0] * free for _ in range(FEATURES - ORIENTATION_FREE)]
    of_all = [[normal(FEATURES) for _ in range(rest)] for _ in range(FEATURES)]
    directions = [left + right for left, right in zip(of_free, of_all, strict=True)]
    return directions, [2 * math.pi * draw() for _ in range(free + rest)]


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


def gravity_columns(module: nn.Module) -> tuple[int, ...]:
    """Return which features of a network are the means of the acceleration's three axes; none where it says none."""
    return tuple(getattr(module, "gravity_columns", ()))


def mean_gravity(module: nn.Module, x: Tensor) -> Tensor:
    """Return the mean (3,), in float64, of these features of raw windows x (n, window, 6), n > 0."""
    level, columns = x[..., :AXES].double().mean(1), torch.tensor(gravity_columns(module))
    squashed = torch.sign(level) * torch.log1p(level.abs())
    usual, deviation = module.get_buffer("feature_mean")[columns], module.get_buffer("feature_std")[columns]
    return ((squashed - usual) / deviation).clamp(-CLIP, CLIP).mean(0)
