"""`--help` of every command says what each option is when it is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from aggregator_api.core.settings import Settings
from gaitway.__main__ import PROGRAMS
from sim.experiment.settings import OPTIONS, default_of

LEFT_OUT = re.compile(r"default|without|only|none|instead|also|repeat|if not|not needed|needed except", re.I)
"""Words one of which says what it means to leave an option out."""
OF_ANOTHER = {"agent enrol --federation", "agent enrol --device", "agent enrol --token-file", "agent label --from"}
"""Options whose help says that they go with another one, or stand for another."""


class Shown(NamedTuple):
    """An option or argument of a command: `line` is its help as it is printed, with the default."""

    name: str
    parameter: Any
    line: str


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield name, command


def parameters() -> Iterator[Shown]:
    for program, found in PROGRAMS.items():
        for name, command in commands(get_command(import_module(found.module).app), program):
            context = command.make_context(name, [], resilient_parsing=True)
            for parameter in command.params:
                record = parameter.get_help_record(context)
                yield Shown(f"{name} {parameter.opts[0]}", parameter, record[1] if record else "")


@pytest.fixture(scope="module")
def optional() -> list[Shown]:
    found = [each for each in parameters() if not each.parameter.required and each.parameter.name != "help"]
    assert len(found) > 200
    return found


def test_an_option_with_a_default_shows_it(optional: list[Shown]) -> None:
    hidden = [
        each.name
        for each in optional
        if each.parameter.default not in (None, "", False) and "default" not in each.line.lower()
    ]
    assert hidden == []


def test_an_option_without_one_says_what_leaving_it_out_means(optional: list[Shown]) -> None:
    silent = [
        each.name
        for each in optional
        if each.parameter.default is None and each.name not in OF_ANOTHER and not LEFT_OUT.search(each.line)
    ]
    assert silent == []


def test_the_servers_help_has_the_defaults_of_its_settings(optional: list[Shown]) -> None:
    of_serve = [each for each in optional if each.name.startswith("server serve ") and each.parameter.name != "config"]
    assert len(of_serve) >= 6
    for each in of_serve:
        default = Settings.model_fields[each.parameter.name].default
        shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
        assert f"(default {shown})" in " ".join(each.line.split()), each.name


def test_the_simulations_help_has_the_defaults_of_an_experiment(optional: list[Shown]) -> None:
    lines = {each.parameter.name: " ".join(each.line.split()) for each in optional if each.name.startswith("sim run ")}
    for name, option in OPTIONS.items():
        default = default_of(option)
        if default is not None:
            shown = ("on" if default else "off") if isinstance(default, bool) else default
            assert f"Default: {shown}." in lines[name], name


def test_no_help_loses_what_stands_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes [agent] for a style and prints nothing, unless the program's help is Markdown."""
    monkeypatch.setenv("COLUMNS", "200")
    lost = []
    for program, found in PROGRAMS.items():
        app = import_module(found.module).app
        for name, command in commands(get_command(app), program):
            parts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
            bracketed = {word for part in parts for word in re.findall(r"\[[a-z_]+\]", part)}
            shown = CliRunner().invoke(app, [*name.split()[1:], "--help"]).output if bracketed else ""
            lost += [f"{name}: {word}" for word in bracketed if word not in shown]
    assert lost == []
