"""A form that is filled in from a checkpoint asks for windows as the model's."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from aggregator_api.federations.checkpoints import UploadedCheckpoint
from aggregator_api.http.web.forms import checkpoint_fields
from har_pipeline import PipelineSettings
from models import build
from models.checkpoint import CheckpointInfo

MEAN, STD = (0.1,) * 6, (2.0,) * 6


def fields_of(normalization: str, **options: Any) -> dict[str, str]:
    taken = PipelineSettings(**options).input_spec(MEAN, STD)
    model = build("har_cnn", classes=2)
    info = CheckpointInfo("har_cnn", model.options, ("sit", "walk"), taken, "fedavg", normalization=normalization)
    return checkpoint_fields(UploadedCheckpoint("ab" * 32, 1, info, model.state_dict()))


@pytest.mark.parametrize(("said", "asked"), [("client", "client"), ("federated", "federated"), ("", "federated")])
def test_windows_are_normalized_as_the_model_was_trained(said: str, asked: str) -> None:
    """A server's model has a mean and a deviation of all clients, even where each of them used its own."""
    fields = fields_of(said)
    assert fields["normalization"] == asked
    assert ("statistics" in fields["further"]) == (asked == "federated")


def test_sensors_are_low_passed_where_the_model_says_so() -> None:
    further = tomllib.loads(fields_of("client", anti_alias="downsampling")["further"])
    assert further["data"]["pipeline"] == {"anti_alias": "downsampling"}
    assert "data" not in tomllib.loads(fields_of("client")["further"])
