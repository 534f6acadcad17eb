"""Generated examples, for a parity gate where no real ones are at hand; not training data."""

import numpy as np
from numpy.typing import NDArray

from gaitway.input_spec import InputSpec

GRAVITY = 9.81


def generated_examples(spec: InputSpec, count: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return (count, *spec.shape), raw: motion, pixels between 0 and 1, or numbers with the spec's mean and std."""
    if spec.kind == "window" and spec.rate_hz is not None:
        return generated_windows(count, window=spec.shape[0], rate_hz=spec.rate_hz, seed=seed)
    random = np.random.default_rng(seed)
    if spec.kind == "image":
        return random.uniform(size=(count, *spec.shape)).astype(np.float32)
    return random.normal(spec.mean, spec.std, size=(count, *spec.shape)).astype(np.float32)


def generated_windows(count: int, *, window: int = 128, rate_hz: float = 50.0, seed: int = 0) -> NDArray[np.float32]:
    """Return (count, window, 6) in m/s² and rad/s: gravity in any direction, rest to running, sensor noise."""
    random = np.random.default_rng(seed)
    time = np.arange(window) / rate_hz
    down = random.normal(size=(count, 1, 3))
    down *= GRAVITY / np.linalg.norm(down, axis=-1, keepdims=True)
    cadence_hz = random.uniform(0.5, 3.0, size=(count, 1, 1))
    vigour = random.exponential(1.0, size=(count, 1, 1))
    wave = np.zeros((count, window, 6))
    for harmonic in (1, 2, 3):
        phase = random.uniform(0, 2 * np.pi, size=(count, 1, 6))
        amplitude = random.uniform(0, 1, size=(count, 1, 6)) / harmonic
        wave += amplitude * np.sin(2 * np.pi * harmonic * cadence_hz * time[None, :, None] + phase)
    wave *= vigour * np.array([3.0, 3.0, 3.0, 1.0, 1.0, 1.0])
    wave += random.normal(size=wave.shape) * np.array([0.05, 0.05, 0.05, 0.01, 0.01, 0.01])
    wave[..., :3] += down
    return wave.astype(np.float32)
