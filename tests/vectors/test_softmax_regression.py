"""`softmax_regression.json` is what this scikit-learn computes; a phone's JavaScript is held to it as well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vectors.softmax_regression import PATH, text

FIGURES = ("weight", "bias", "probabilities")


def test_the_file_says_what_scikit_learn_computes() -> None:
    given, made = json.loads(PATH.read_text()), json.loads(text())
    for before, now in zip(given["cases"], made["cases"], strict=True):
        for name in FIGURES:
            assert flat(now.pop(name)) == pytest.approx(flat(before.pop(name)), rel=1e-4, abs=1e-5), name
        assert now == before


def flat(values: Any) -> list[float]:
    return [number for each in values for number in flat(each)] if isinstance(values, list) else [values]
