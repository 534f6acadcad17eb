"""Python is held to `phone.json`, to which a phone's JavaScript is held as well."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch

from federation import wire
from federation.aggregation import ridge
from federation.tasks.task import LabelledFeatures
from tests.vectors.phone import PATH, text, vectors

VECTORS: dict[str, Any] = json.loads(PATH.read_text())
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


@pytest.mark.parametrize("case", VECTORS["sums"], ids=lambda case: case["name"])
@pytest.mark.parametrize("batch", [3, 64, 4096])
def test_a_device_uploads_these_bytes_however_its_windows_are_cut_into_batches(
    case: dict[str, Any], batch: int
) -> None:
    embeddings = np.frombuffer(base64.b64decode(case["embeddings"]), "<f4").reshape(-1, case["dimensions"])
    features = torch.from_numpy(np.tile(embeddings, (case["repeats"], 1)))
    labels = torch.tensor(case["labels"]).repeat(case["repeats"])
    sums = ridge.empty_ridge_sums(case["classes"], case["dimensions"], torch.zeros(()))
    for x, y in zip(features.split(batch), labels.split(batch), strict=True):
        sums = ridge.added(sums, LabelledFeatures(x, y, torch.ones(len(y))), case["clip"])
    assert wire.encode(ridge.travelling(sums)) == base64.b64decode(case["upload"])
