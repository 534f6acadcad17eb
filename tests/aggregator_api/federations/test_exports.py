"""What a downloaded checkpoint says that its model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aggregator_api.federations.exports import checkpoint
from aggregator_api.federations.initial_state import initial_client_of
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan
from har_pipeline import ChannelStatistics
from models import build
from models.checkpoint import load_checkpoint

IMAGES = {
    "data": {"input": {"shape": (3, 16, 16), "fit": "pad"}},
    "model": {"name": "mnist_cnn", "options": {"input_shape": [3, 16, 16]}},
}
SUMS = {"count": 4, "total": [4.0] * 3 + [0.0] * 3, "square": [8.0] * 3 + [0.0] * 3}
"""Of phones without a gyroscope."""
WINDOWS = {
    "data": {"normalization": "federated", "statistics": SUMS, "pipeline": {"stride": 32}},
    "model": {"name": "har_cnn"},
}


@pytest.mark.parametrize("given", [IMAGES, WINDOWS], ids=["images", "windows"])
def test_it_is_what_the_plan_gives_devices(given: dict[str, Any], tmp_path: Path) -> None:
    width = build(given["model"]["name"], classes=2, **given["model"].get("options", {})).feature_dim
    plan = Plan.model_validate(
        {"labels": ("a", "b"), "method": {"name": "fedavg"}, "training": {"classes": 2, "feature_dim": width}, **given}
    )
    method, initial = method_from_json(plan.method), initial_client_of(plan, plan.model, 1 << 30)
    state = method.server_init(initial.params, initial.buffers, plan.training)
    (tmp_path / "a.safetensors").write_bytes(checkpoint(plan, "walks", 3, wire.encode(method.broadcast(state, "")), {}))
    _, info = load_checkpoint(tmp_path / "a.safetensors")
    if given is IMAGES:
        assert (info.input.kind, info.input.shape, info.input.fit) == ("image", (3, 16, 16), "pad")
    else:
        devices = ChannelStatistics.from_json(SUMS)
        assert (info.input.kind, info.input.stride) == ("window", 32)
        assert (info.input.mean, info.input.std) == (tuple(devices.mean), tuple(devices.std))
        assert info.input.masked == ("gyro_x", "gyro_y", "gyro_z")
