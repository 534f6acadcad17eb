"""Python is held to `light_client.json`, to which a phone's JavaScript is held as well."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch

from federation import wire
from federation.aggregation.class_statistics import class_stats
from federation.aggregation.prototypes import uploaded
from federation.tasks.task import LabelledFeatures
from tests.vectors.light_client import PATH, class_sums, text, vectors

VECTORS: dict[str, Any] = json.loads(PATH.read_text())
ORDERED = {"wide range, where only rounding is left of the sum", "another order gives other bits"}
NUMBERS = 1e-9
"""Of means, scores and probabilities, which other versions of numpy may round otherwise in the last place."""


def test_the_file_says_what_python_computes() -> None:
    made = json.loads(text(vectors()))
    assert made.keys() == VECTORS.keys()
    for name, cases in made.items():
        _require_equal(cases, VECTORS[name], name)


def _require_equal(made: Any, given: Any, where: str) -> None:
    if isinstance(made, float):
        assert made == pytest.approx(given, rel=NUMBERS, abs=NUMBERS), where
    elif isinstance(made, dict):
        assert made.keys() == given.keys(), where
        for key, value in made.items():
            _require_equal(value, given[key], f"{where}/{made.get('name', '')}/{key}")
    elif isinstance(made, list):
        assert len(made) == len(given), where
        for number, value in enumerate(made):
            _require_equal(value, given[number], f"{where}[{number}]")
    else:
        assert made == given, where


def _arrays(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    embeddings = np.frombuffer(base64.b64decode(case["embeddings"]), "<f4").reshape(-1, case["dimensions"])
    return embeddings, np.array(case["labels"])


@pytest.mark.parametrize("case", VECTORS["class_means"], ids=lambda case: case["name"])
@pytest.mark.parametrize("batch", [1, 3, 64, 4096])
def test_a_device_uploads_these_bytes_however_its_windows_are_cut_into_batches(
    case: dict[str, Any], batch: int
) -> None:
    embeddings, labels = (torch.from_numpy(part.copy()) for part in _arrays(case))
    stats = None
    for x, y in zip(embeddings.split(batch), labels.split(batch), strict=True):
        stats = class_stats(LabelledFeatures(x, y, torch.ones(len(y))), case["classes"], stats)
    assert wire.encode(uploaded(stats)) == base64.b64decode(case["upload"])


def test_cases_tell_the_precision_and_the_order_of_the_sums() -> None:
    def prototypes(embeddings: np.ndarray, labels: np.ndarray, classes: int, dtype: Any) -> bytes:
        sums, counts = np.zeros((classes, embeddings.shape[1]), dtype), np.zeros(classes, dtype)
        np.add.at(sums, labels, embeddings.astype(dtype))
        np.add.at(counts, labels, 1)
        return bytes((sums / np.maximum(counts, 1)[:, None]).astype("<f4").tobytes())

    narrow, reverse = set(), set()
    with np.errstate(over="ignore", invalid="ignore"):
        for case in VECTORS["class_means"]:
            embeddings, labels = _arrays(case)
            expected = base64.b64decode(case["prototypes"])
            if prototypes(embeddings, labels, case["classes"], np.float32) != expected:
                narrow.add(case["name"])
            sums, counts = class_sums(embeddings[::-1], labels[::-1], case["classes"])
            if (sums / np.maximum(counts, 1)[:, None]).astype("<f4").tobytes() != expected:
                reverse.add(case["name"])
    assert narrow >= {"sums in float32 would drift", *ORDERED}
    assert reverse >= ORDERED
