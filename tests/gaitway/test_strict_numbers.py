"""Numbers from outside are numbers: no truth value, no text, nothing that is not finite."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from gaitway.strict_numbers import StrictNumbers, TypedNumbers


class Inner(StrictNumbers, BaseModel):
    share: float = Field(default=0.5, ge=0, le=1)


class Strict(StrictNumbers, BaseModel):
    count: int = Field(default=1, ge=0, le=10)
    flag: bool = False
    pair: tuple[float, int] = (0.5, 1)
    many: list[int] = []
    named: dict[str, float] = {}
    numbered: dict[int, str] = {}
    either: Annotated[float, Field(gt=0)] | Inner = 1.0
    measured: Annotated[float, Field(allow_inf_nan=True)] = 0.0


class Typed(TypedNumbers, BaseModel):
    count: int = 1
    share: float | None = None
    inner: Inner = Inner()


GOOD: list[dict[str, Any]] = [
    {"count": 3}, {"count": 3.0}, {"flag": True}, {"pair": [1, 2]}, {"many": [1, 2]}, {"named": {"a": 1}},
    {"numbered": {"5": "a"}}, {"either": 2}, {"either": {"share": 1}}, {"measured": math.inf},
]  # fmt: skip
BAD: list[dict[str, Any]] = [
    {"count": True}, {"count": "3"}, {"count": 3.5}, {"count": 11}, {"flag": 1}, {"flag": "yes"}, {"pair": [True, 1]},
    {"pair": [0.5, False]}, {"many": [True]}, {"named": {"a": False}}, {"named": {"a": "1"}}, {"either": True},
    {"named": {"a": math.inf}}, {"either": {"share": False}}, {"either": "1"},
]  # fmt: skip


@pytest.mark.parametrize("given", GOOD, ids=str)
def test_numbers_are_taken(given: dict[str, Any]) -> None:
    assert Strict.model_validate(given) == Strict.model_validate_json(json.dumps(given))


@pytest.mark.parametrize("given", BAD, ids=str)
def test_everything_else_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Strict.model_validate(given)
    with pytest.raises(ValidationError):
        Strict.model_validate_json(json.dumps(given))


def test_settings_may_be_text_and_no_truth_value() -> None:
    found = Typed.model_validate({"count": "3", "share": "0.5"})
    assert (found.count, found.share) == (3, 0.5)
    for given in ({"count": True}, {"share": False}, {"inner": {"share": "0.5"}}):
        with pytest.raises(ValidationError):
            Typed.model_validate(given)
    adapter: TypeAdapter[float] = TypeAdapter(Annotated[float, TypedNumbers])
    assert adapter.validate_python("0.5") == 0.5
    with pytest.raises(ValidationError):
        adapter.validate_python(True)


def test_the_schema_of_json_is_what_it_was() -> None:
    class Plain(BaseModel):
        count: int = Field(default=1, ge=0, le=10)
        share: float = Field(default=0.5, gt=0)

    class Checked(StrictNumbers, Plain):
        pass

    assert Checked.model_json_schema()["properties"] == Plain.model_json_schema()["properties"]
