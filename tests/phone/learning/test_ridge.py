"""A phone's sums are a native device's bit for bit, and the head that it solves of them is the same to 1e-6."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.aggregation.ridge_numpy import (
    FAR,
    MIN_VARIANCE,
    Damping,
    FixedSums,
    feature_moments,
    solve,
    solve_mean,
    sums_of,
    travelling,
)
from tests.phone.learning.conftest import ByNode

CLIP, RIDGE = 4.0, 1e-2


def packed(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def unpacked(text: str, dtype: str) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype)


def windows(random: np.random.Generator, count: int, width: int, classes: int) -> tuple[Any, Any]:
    y = random.integers(0, classes, count)
    features = random.normal(size=(count, width)) * 2 + y[:, None] * np.linspace(-1, 1, width)
    return features.astype(np.float32), y


def case(seed: int, width: int, classes: int, **options: Any) -> dict[str, Any]:
    """Windows of one phone, of which the last class may be its own, and the shared sums of three others."""
    random = np.random.default_rng(seed)
    personal = options.get("personal", 0)
    others = [travelling(sums_of(*windows(random, 120, width, classes), classes, CLIP)) for _ in range(3)]
    shared = FixedSums(*(sum(each.astype(np.int64) for each in parts) for parts in zip(*others, strict=True)))
    if options.pop("negative", False):  # as noise may make them
        shared = shared._replace(gram=-shared.gram)
    features, y = windows(random, options.get("count", 90), width, classes + personal)
    given = {"clients": 3, "columns": None, "share": None, "damping": Damping(RIDGE), "usable": None, **options}
    return {"features": features, "y": y, "classes": classes + personal, "shared": shared, "width": width, **given}


def request(each: dict[str, Any]) -> dict[str, Any]:
    shared = each["shared"]
    sums = {"gram": packed(shared.gram), "moment": packed(shared.moment), "classes": shared.moment.shape[1]}
    return {
        **each,
        "features": packed(each["features"]),
        "y": each["y"].tolist(),
        "shared": sums,
        "damping": each["damping"]._asdict(),
    }


def test_sums_and_heads_are_those_of_numpy(by_node: ByNode) -> None:
    cases = [
        case(0, 20, 6),
        case(1, 20, 6, personal=2),
        case(2, 33, 20, columns=[0, 3, 4, 30]),
        case(2, 33, 20, columns=[0, 3, 4, 30], share=0.25, personal=1),
        case(2, 33, 20, columns=[0, 3, 4, 30], share=0.25, clients=0, usable=[0, 2, 3, 4, 7, 20]),
        case(3, 20, 6, clients=0),
        case(4, 7, 2, count=0),
        case(6, 20, 6, clients=0, negative=True, damping=Damping(RIDGE, 5e4)),
        case(5, 783, 6, personal=1, count=200),  # as long as the plan's own network has them
    ]
    given = {"clip": CLIP, "variance": MIN_VARIANCE, "unlabelled": [], "method": {}}
    answers = by_node("ridge_of.mjs", {"cases": [request(each) for each in cases], **given})["found"]
    for each, found in zip(cases, answers, strict=True):
        own = travelling(sums_of(each["features"], each["y"], each["classes"], CLIP))
        assert np.array_equal(unpacked(found["gram"], "<i4"), own.gram)
        assert np.array_equal(unpacked(found["moment"], "<i4"), own.moment.reshape(-1))
        shared = each["shared"] if each["usable"] is None else each["shared"].restricted(each["usable"])
        solved_of = shared, own if each["clients"] else None, each["clients"], each["damping"], each["columns"]
        head = solve_mean(*solved_of, each["share"]) if each["share"] else solve(*solved_of)
        assert unpacked(found["weight"], "<f8") == pytest.approx(head.weight.reshape(-1), abs=1e-6)
        assert unpacked(found["bias"], "<f8") == pytest.approx(head.bias, abs=1e-6)
        assert found["predicted"] == head.classes(each["features"]).tolist()
        assert found["distance"] == pytest.approx(distance(shared), rel=1e-9)


def test_windows_without_labels_give_the_head_that_they_give_a_board(by_node: ByNode) -> None:
    """Also where either view of them, or their number, says that it is not to be used."""
    from tests.federation.aggregation.test_pseudo_labels import CLIENTS, COLUMNS, OPTIONS, head_of, world

    given = [world(0), world(1, count=130), world(2, count=99), world(3)]
    mixed = np.random.default_rng(1).permuted(given[3].features, axis=0)
    given[3] = given[3]._replace(features=mixed)
    far = [False, False, False, False, True]
    given.append(given[0])
    unlabelled = [
        {
            "features": packed(each.features),
            "shared": {"gram": packed(each.shared.gram), "moment": packed(each.shared.moment), "classes": 3},
            "clients": CLIENTS,
            "columns": COLUMNS,
            "far": is_far,
        }
        for each, is_far in zip(given, far, strict=True)
    ]
    method = OPTIONS._asdict()
    asked = {"cases": [], "unlabelled": unlabelled, "method": method, "clip": CLIP, "variance": 1}
    answers = by_node("ridge_of.mjs", asked)["adapted"]
    for each, is_far, found in zip(given, far, answers, strict=True):
        wanted = head_of(each, is_far=is_far)
        assert (found is None) == (wanted is None)
        if wanted is not None:
            assert unpacked(found["weight"], "<f8") == pytest.approx(wanted.weight.reshape(-1), abs=1e-6)
            assert unpacked(found["bias"], "<f8") == pytest.approx(wanted.bias, abs=1e-6)
    assert [found is None for found in answers] == [False, False, True, True, True]


def distance(shared: FixedSums) -> float:
    """Mahalanobis, of a mean that is the same in each case, over three features."""
    usual = feature_moments(shared, (0, 2, 4))
    if usual is None:
        return 0.0
    away = np.array([1, -1, 0.5]) - usual.mean
    return float(np.sqrt(away @ np.linalg.inv(usual.covariance + MIN_VARIANCE * np.eye(3)) @ away / 3))


def test_a_phone_and_a_board_call_the_same_direction_of_gravity_far() -> None:
    source = (Path(__file__).parents[3] / "phone/app/learning/heads.js").read_text()
    assert [float(found) for found in re.findall(r"const (?:FAR|MIN_VARIANCE) = ([\d.]+);", source)] == [
        FAR,
        MIN_VARIANCE,
    ]
