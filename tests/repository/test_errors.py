"""The sentences that the errors of all packages share."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from gaitway.errors import (
    MAX_SHOWN_INPUT,
    SettingsError,
    closest,
    closest_class,
    did_you_mean,
    first_problem,
    unknown_class,
)
from tests.repository.imports import PACKAGES, REPOSITORY, tracked


class Login(BaseModel):
    name: str
    port: int = 1

    @model_validator(mode="after")
    def _complete(self) -> Login:
        if not self.name:
            raise ValueError("a login without a name")
        return self


class Server(BaseModel):
    login: Login


def problem(given: dict[str, Any], *, input_shown: bool = True) -> str:
    with pytest.raises(ValidationError) as caught:
        Server.model_validate(given)
    return first_problem(caught.value, input_shown=input_shown)


def test_the_field_the_reason_and_what_came_are_said() -> None:
    words = problem({"login": {"name": "ada", "port": "x"}})
    assert words.startswith("login.port: Input should be a valid integer")
    assert words.endswith(" (got 'x')")


def test_what_came_is_kept_back_unless_asked_for_and_never_long() -> None:
    assert "secret" not in problem({"login": {"name": "ada", "port": "secret"}}, input_shown=False)
    assert len(problem({"login": {"name": "ada", "port": "9" * 5000}})) < 2 * MAX_SHOWN_INPUT


def test_a_whole_section_is_not_repeated() -> None:
    assert problem({"login": {"name": "", "port": 4242}}) == "login: a login without a name"
    assert problem({}) == "login: Field required"


class Shop(BaseModel, extra="forbid"):
    servers: tuple[Server, ...] = ()
    minimum_clients: int = Field(default=2, ge=1, alias="minimum")
    share: float = 0.5
    mode: Literal["off", "on"] = "off"
    login: Login | None = None
    is_open: bool = False


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"minimums": 1},
            "minimums: there is no such key; did you mean 'minimum'? Known: servers, minimum, share, mode, ",
        ),
        ({"minimum": 0}, "minimum: expected at least 1 (got 0)"),
        ({"minimum": "x"}, "minimum: expected a whole number (got 'x')"),
        ({"minimum": 1.5}, "minimum: expected a whole number (got 1.5)"),
        ({"share": "much"}, "share: expected a number (got 'much')"),
        ({"mode": "of"}, "mode: expected 'off' or 'on' (got 'of')"),
        ({"is_open": "maybe"}, "is_open: expected true or false"),
        ({"servers": [{}]}, "servers.0.login: it is missing"),
        ({"login": 3}, "login: expected a section with keys (got 3)"),
        ({"login": {"name": ["a"]}}, "login.name: expected text (got ['a'])"),
    ],
)
def test_who_wrote_it_reads_plain_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Shop.model_validate(given)
    assert first_problem(caught.value, input_shown=True, model=Shop).startswith(words)


def test_the_known_keys_are_those_of_the_section() -> None:
    class Strict(BaseModel, extra="forbid"):
        port: int = 1

    class Place(BaseModel):
        doors: list[Strict] | None = None

    with pytest.raises(ValidationError) as caught:
        Place.model_validate({"doors": [{"prot": 2}]})
    words = "doors.0.prot: there is no such key; did you mean 'port'? Known: port"
    assert first_problem(caught.value, model=Place) == words


def test_the_closest_name_and_all_known_ones_are_said() -> None:
    assert closest("fedavgg", ("fedprox", "fedavg")) == "fedavg"
    assert closest("x" * 1_000_000, ("fedavg",)) is None
    assert did_you_mean("alhpa", ("beta", "alpha")) == "did you mean 'alpha'? Known: beta, alpha"
    assert did_you_mean("zzz", ("beta", "alpha")) == "Known: beta, alpha"
    assert did_you_mean("zzz", ()) == "There are none"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wlaking", "walking"), ("Walking", "walking"), ("walk", "walking"), ("sittting", "sitting"),
        ("walking-upstair", "walking_upstairs"), ("lying", None), ("running", None), ("cycling", None),
        ("downstairs", None), ("walking_downstairs", None), ("swim", None), ("x" * 1_000_000, None), ("", None),
    ],
)  # fmt: skip
def test_a_class_is_suggested_only_where_it_is_misspelt(name: str, meant: str | None) -> None:
    known = ("walking", "sitting", "standing", "upstairs", "walking_upstairs", "jumping")
    assert closest_class(name, known) == meant
    listed = f"Known: {', '.join(known)}"
    assert unknown_class(name, known) == (listed if meant is None else f"did you mean {meant!r}? {listed}")


@pytest.mark.parametrize("words", ["difflib", ".errors()[0]", "errors(include_url"])
def test_nothing_words_them_a_second_time(words: str) -> None:
    sources = tracked(*(f"{package}/*.py" for package in PACKAGES))
    assert [path for path in sources if words in path.read_text()] == (
        [] if words == ".errors()[0]" else [Path(REPOSITORY / "gaitway/errors.py")]
    )


@pytest.mark.parametrize("package", ["har_pipeline", "federation", "sim"])
def test_one_name_catches_every_settings_error(package: str) -> None:
    assert issubclass(import_module(f"{package}.errors").SettingsError, SettingsError)
