"""Plans that cannot work live, and what the networks of a mixed federation must have in common."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations.initial_state import InitialState, build_initial_state, with_model_options
from federation.plan import Plan
from models import build
from tests.aggregator_api.generated_devices import SMALL, tiny_plan

HART = {"name": "hart", "options": {"feature_dim": 16, "blocks": 1, "heads": 2, "mlp": 16, "head_width": 16}}
CNN = {"name": "har_cnn", "options": {**SMALL, "feature_dim": 16}}


def initial_state_of(method: str, *alternatives: dict[str, Any], feature_dim: int = 16) -> InitialState:
    """Found a federation of a tiny CNN and others."""
    plan = tiny_plan().model_dump()
    changes = {"model": CNN, "method": {"name": method}, "alternatives": alternatives}
    training = {**plan["training"], "feature_dim": feature_dim}
    return build_initial_state(Plan.model_validate({**plan, **changes, "training": training}), max_model_bytes=1 << 20)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fedproto", "local"])
def test_what_travels_does_not_depend_on_the_network(method: str) -> None:
    mixed, uniform = initial_state_of(method, HART), initial_state_of(method)
    assert mixed == uniform
    assert sorted(mixed.upload_schema) == (["counts", "prototypes"] if method == "fedproto" else [])


def hart(**options: Any) -> dict[str, Any]:
    """Return a small HART, with other options."""
    return {"name": "hart", "options": {**HART["options"], **options}}


@pytest.mark.parametrize(
    ("method", "alternatives", "words"),
    [
        ("centralized", [], "only a simulation can"),
        ("fedavg", [HART], r"plan.alternatives: fedavg shares parameters.*mixes architectures \(local, fedproto"),
        ("fedproto", [hart(feature_dim=32)], "plan.alternatives: the features of 'hart' have 32 dim.* is 16"),
        ("fedproto", [CNN], "not all different: har_cnn, har_cnn"),
        ("fedproto", [{"name": "hurt"}], "plan.alternatives: model 'hurt' is not known; did you mean 'hart'"),
        ("fedproto", [hart(mlp=1 << 20)], "plan.alternatives: .* bytes of weights"),
        (
            "fedproto",
            [{"name": "segmenter_small", "options": {"channels": [8, 8, 8, 8], "feature_dim": 16}}],
            "plan.alternatives: 'segmenter_small' learns segmentation, and plan.task is classification; .*: hart, ",
        ),
    ],
)
def test_a_plan_that_cannot_work_live_is_refused(method: str, alternatives: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UnprocessableError, match=words):
        initial_state_of(method, *alternatives)


def test_the_features_of_the_first_network_must_fit_too() -> None:
    with pytest.raises(
        UnprocessableError, match=r"plan.model: the features of 'har_cnn' have 16 dim.*feature_dim is 8"
    ):
        initial_state_of("fedproto", HART, feature_dim=8)


def test_heads_are_not_made_of_other_features() -> None:
    plan = tiny_plan().model_dump()
    network = {"name": "dense", "options": {"features_at": "last_layer"}}
    changes = {"model": network, "training": {**plan["training"], "feature_dim": 256}, "method": {"name": "pfedfda"}}
    with pytest.raises(UnprocessableError, match=r"plan\.model: the method pfedfda solves heads from features"):
        build_initial_state(Plan.model_validate({**plan, **changes}), max_model_bytes=1 << 20)


def test_windows_are_changed_as_windows_are_and_not_as_images() -> None:
    plan = tiny_plan().model_dump()
    augmented = {**plan, "training": {**plan["training"], "augmentation": "flip=0.5"}}
    with pytest.raises(
        UnprocessableError, match=r"plan.training.augmentation: flip=0.5 is for images, and 'har_cnn' takes"
    ):
        build_initial_state(Plan.model_validate(augmented), max_model_bytes=1 << 20)
    turned = {**plan, "training": {**plan["training"], "augmentation": "rotation=0.5,sensor_loss=0.3"}}
    assert build_initial_state(Plan.model_validate(turned), max_model_bytes=1 << 20)


def test_images_are_not_changed_as_windows_are() -> None:
    module = build("mnist_cnn", classes=2)
    plan = Plan.model_validate(
        {
            "labels": ["a", "b"],
            "method": {"name": "fedavg"},
            "model": {"name": "mnist_cnn"},
            "training": {"classes": 2, "feature_dim": module.feature_dim, "augmentation": "sensor_loss=0.3"},
            "data": {"normalization": "none"},
        }
    )
    with pytest.raises(UnprocessableError, match=r"sensor_loss=0.3 is for windows, and 'mnist_cnn' takes image"):
        build_initial_state(plan, max_model_bytes=1 << 24)


def test_a_new_plan_writes_down_the_options_that_its_network_has_today() -> None:
    """So that a federation keeps its network where another version has another default."""
    plan = tiny_plan()
    for options, written in (({}, {"features": 600}), ({"cosines": 17}, {"cosines": 17})):
        spec = plan.model.model_copy(update={"name": "har_features", "options": options})
        assert with_model_options(plan.model_copy(update={"model": spec})).model.options == written
    assert with_model_options(plan) == plan
