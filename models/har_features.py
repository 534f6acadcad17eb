"""Mean and standard deviation of the 183 raw features of `models.har_features`.

Of all windows of motionsense, ucihar, spsw, each set alike; benchmarks/har_feature_scale.py writes this file.

Hand-made features of raw windows, and random cosines of them, under a linear head: nothing below the head trains.
183 numbers of a window in m/s² and rad/s. The first 90 are the same however the phone is turned: of |a|, |ω| and of the
vertical and horizontal parts of both about the window's mean acceleration mean, standard deviation, mean |Δ| and |rfft|
of bins 1 to 8, without the means of |a| and of the vertical acceleration, which tell one sensor's error from another's
(64); minimum and maximum of |ω| (2); of the four parts the means of quarters of the window (16) and the extremes (8),
less the mean of the part. The other 93 depend on the axes: the same eleven numbers of each axis (66), minima and maxima
(12), 15 correlations. All but the correlations as sign · log(1 + |·|), then (h − μ) / σ, clipped to ±4, by constants
that ship (`models.har_features`): federated ones would take a round more.

The lift 2 cos(z R + b) is random Fourier features of a Gaussian kernel (A. Rahimi, B. Recht: Random Features for
Large-Scale Kernel Machines, NIPS 2007), R ∈ N(0, 1/F), b ∈ U(0, 2π), of a seed: every client has the same. Half of the
cosines are of the first 90 numbers alone, so that a head on those columns, which serves a phone that lies in any
direction, is solved of a sub-block of the same sums as the head on all of them.

Where gravity lies on a device, as features say it: a warning sign that a phone is carried otherwise.
The mean acceleration of a window is the direction of gravity and the bias of the sensor. How its three numbers are
spread over everybody's windows is in the sums that devices exchange (`feature_moments` of
`federation.aggregation.ridge_numpy`): what is usual is not the same in pockets and on belts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.model import Model, ModelOutput

MEAN = (
    0.74557, 1.0888, 0.47129, 0.64215, 0.21824, 0.14046, 0.12617, 0.1886,
    0.12065, 0.22451, 0.097915, 0.38725, 0.11258, 0.4341, 0.11823, 0.26905,
    0.080065, 0.31926, 0.090237, 0.24205, 0.069942, 1.0437, 0.0036254, 0.58131,
    1.0966, 0.7933, 0.57753, 0.39367, 0.64528, 0.49664, 0.24616, 0.18704,
    0.14202, 0.18482, 0.18885, 0.075931, 0.22007, 0.23298, 0.19558, 0.092533,
    0.23632, 0.20162, 0.14399, 0.072876, 0.37661, 0.21707, 0.11822, 0.091919,
    0.41786, 0.22694, 0.10856, 0.10628, 0.26437, 0.15562, 0.091223, 0.069263,
    0.32449, 0.1742, 0.11467, 0.084629, 0.24731, 0.13622, 0.086718, 0.060309,
    0.17079, 1.2361, -0.032892, 0.047652, 0.0029074, 0.0039701, 0.020368, -0.045431,
    0.005193, 0.0052293, 0.035022, -0.043528, -0.0026549, 0.0010925, -0.0079777, 0.017177,
    -0.00795, -0.011403, -1.5363, -0.99052, -0.97172, -0.54798, 1.8246, 1.5268,
    0.9716, 0.80421, 0.15033, -0.99487, 0.19521, -0.0050758, 0.0054636, 0.014685,
    0.9794, 1.0415, 0.95687, 0.57658, 0.52771, 0.43129, 0.55612, 0.59367,
    0.52821, 0.20831, 0.24329, 0.15137, 0.17637, 0.2031, 0.24389, 0.15849,
    0.13867, 0.082972, 0.20972, 0.27027, 0.33814, 0.2289, 0.17758, 0.16652,
    0.20631, 0.23909, 0.23523, 0.17708, 0.13089, 0.1297, 0.30427, 0.30325,
    0.23968, 0.14296, 0.10903, 0.1068, 0.30359, 0.34878, 0.25797, 0.13318,
    0.094465, 0.090395, 0.19649, 0.23105, 0.17347, 0.10005, 0.075599, 0.067316,
    0.22913, 0.29745, 0.22404, 0.12219, 0.097671, 0.07969, 0.20357, 0.22155,
    0.1697, 0.084818, 0.070587, 0.056473, -0.84315, -1.7147, -1.2883, -0.9359,
    -0.89482, -0.74422, 1.2684, 0.47916, 1.6307, 0.92741, 0.91713, 0.7524,
    -0.01464, -0.042645, 0.0032444, 0.0019379, -0.0042962, -0.01733, -0.022441, -0.058003,
    -0.0094472, -0.0067714, 0.021893, 0.04093, -0.0089468, 0.061966, 0.047738,
)  # fmt: skip

STD = (
    0.47308, 0.70541, 0.32027, 0.5143, 0.19543, 0.13677, 0.13681, 0.16518,
    0.11388, 0.19624, 0.093056, 0.30503, 0.10927, 0.39005, 0.11958, 0.26216,
    0.083942, 0.36551, 0.10385, 0.25113, 0.075749, 0.61594, 0.3569, 0.39495,
    0.71918, 0.51488, 0.39486, 0.27869, 0.52603, 0.40478, 0.24057, 0.16734,
    0.14447, 0.17896, 0.19378, 0.085473, 0.19534, 0.2135, 0.1666, 0.08874,
    0.21159, 0.19412, 0.13805, 0.07135, 0.29856, 0.19156, 0.12094, 0.091115,
    0.36808, 0.21308, 0.11254, 0.10899, 0.26866, 0.14733, 0.096172, 0.072161,
    0.40095, 0.18059, 0.12201, 0.095954, 0.27038, 0.13591, 0.093682, 0.065933,
    0.14663, 0.7272, 0.40335, 0.42224, 0.40466, 0.20103, 0.39128, 0.38713,
    0.3572, 0.17369, 0.38819, 0.38364, 0.35051, 0.17358, 0.39003, 0.40265,
    0.42057, 0.19647, 0.91305, 0.59204, 0.63764, 0.37786, 1.0981, 0.90834,
    0.63427, 0.51776, 1.7936, 1.5559, 1.0103, 0.27697, 0.2666, 0.12325,
    0.58681, 0.70085, 0.59806, 0.3954, 0.37345, 0.3254, 0.41947, 0.52859,
    0.45859, 0.18155, 0.24873, 0.1395, 0.20962, 0.23183, 0.26396, 0.15917,
    0.15346, 0.089758, 0.18182, 0.22302, 0.26057, 0.20315, 0.16059, 0.17772,
    0.18279, 0.21151, 0.20514, 0.17887, 0.13444, 0.15365, 0.26834, 0.25002,
    0.20178, 0.15324, 0.11107, 0.12427, 0.27117, 0.33909, 0.25266, 0.1335,
    0.095893, 0.094897, 0.17607, 0.2559, 0.16585, 0.10262, 0.077181, 0.069078,
    0.2247, 0.39269, 0.24209, 0.13731, 0.10765, 0.084709, 0.19152, 0.25573,
    0.16849, 0.093247, 0.079327, 0.061425, 2.0278, 1.7172, 1.3936, 0.61602,
    0.60719, 0.50913, 1.7152, 1.4866, 1.0607, 0.61522, 0.62597, 0.52913,
    0.27176, 0.28485, 0.17748, 0.18325, 0.18754, 0.28569, 0.20345, 0.1927,
    0.2007, 0.2023, 0.24807, 0.19831, 0.29972, 0.37699, 0.29916,
)  # fmt: skip


WINDOW, BINS = 128, 8
CLIP = 4.0
ORIENTATION_FREE = 90
"""The first so many numbers are the same however the phone is turned."""
FEATURES = 183
QUARTERS = 4
_SMALL = 1e-12
"""Under a root: a length of 0 stays 0 up to a millionth."""


class HarFeatures(Model):
    """Features of raw windows (B, 128, 6), `cosines` random cosines of them, and a linear head. D = 183 + cosines.

    It takes windows as they were measured: a plan with it has `data.normalization = "none"`.
    """

    input_shape = (WINDOW, 6)
    input_kinds = ("window",)
    takes_raw_input = True
    small: ClassVar[Mapping[str, Any]] = {"cosines": 17}

    feature_mean: Tensor
    feature_std: Tensor
    orientation_free: Tensor
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
        free_cosines = cosines // 2
        self.orientation_free_columns = (*range(ORIENTATION_FREE), *range(FEATURES, FEATURES + free_cosines))
        """Of the features (D,), those that are the same however the phone is turned."""
        directions, phases = _draws(seed, free_cosines, cosines - free_cosines)
        self.gravity_columns = tuple(range(ORIENTATION_FREE, ORIENTATION_FREE + 3))
        """Of the features (D,), the means of the three axes of the acceleration."""
        free = set(self.orientation_free_columns)
        constants = {
            "feature_mean": MEAN, "feature_std": STD, "projection": directions, "phase": phases, "waves": _waves(),
            "orientation_free": [float(column in free) for column in range(self.feature_dim)],
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


AXES = 3


def gravity_columns(module: nn.Module) -> tuple[int, ...]:
    """Return which features of a network are the means of the acceleration's three axes; none where it says none."""
    return tuple(getattr(module, "gravity_columns", ()))


def mean_gravity(module: nn.Module, x: Tensor) -> Tensor:
    """Return the mean (3,), in float64, of these features of raw windows x (n, window, 6), n > 0."""
    level, columns = x[..., :AXES].double().mean(1), torch.tensor(gravity_columns(module))
    squashed = torch.sign(level) * torch.log1p(level.abs())
    usual, deviation = module.get_buffer("feature_mean")[columns], module.get_buffer("feature_std")[columns]
    return ((squashed - usual) / deviation).clamp(-CLIP, CLIP).mean(0)
