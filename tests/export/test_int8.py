"""How kernels are rounded to int8; what the file holds is tested beside the exporter, whose models take long."""

from __future__ import annotations

import numpy as np

from export.graph import narrowed


def test_narrowed_kernels_are_off_by_half_a_scale_at_most() -> None:
    kernel = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32) * np.float32(10.0) ** np.arange(
        -3, 2, dtype=np.float32
    ).reshape(5, 1, 1)
    kernel[2] = 0
    small, scale = narrowed(kernel)
    assert (small.dtype, small.shape, scale.shape) == (np.int8, (5, 3, 4), (5, 1, 1))
    assert (np.abs(small * scale - kernel) <= 0.501 * scale).all()
    assert np.abs(small).max(axis=(1, 2)).tolist() == [127, 127, 0, 127, 127]
