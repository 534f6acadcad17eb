"""`-h`, `--quiet` and `--json` of every program, and errors behind one prefix on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from gaitway.__main__ import PROGRAMS
from gaitway.command_line import CommandLine, completion
from gaitway.terminal import Console, print_error

ENDLESS = {"server serve", "server broker", "agent run"}


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield name, command


@pytest.fixture
def app() -> CommandLine:
    made = CommandLine()

    @made.command()
    def show(as_json: bool = False) -> None:
        Console(stderr=as_json).print("at work")
        print(json.dumps(["result"]))

    @made.command()
    def count() -> dict[str, int]:
        print("three were found")
        return {"found": 3}

    @made.command()
    def delete(yes: bool = False) -> None:
        typer.confirm("Delete?")

    @made.command()
    def listing(delete_them: bool = False, yes: bool = False) -> None:
        if delete_them and not yes:
            typer.confirm("Delete?")

    @made.command()
    def fail() -> None:
        print_error("no such [file]")
        raise typer.Exit(2)

    return made


def test_every_command_answers_h_and_can_be_quiet() -> None:
    for program, found in PROGRAMS.items():
        if program in ("server", "sim") and sys.version_info < (3, 11):
            continue  # only a device may have 3.10
        for name, command in commands(get_command(import_module(found.module).app), program):
            names = {option for parameter in command.params for option in parameter.opts}
            assert ({"--quiet", "-q"} <= names) == (name not in ENDLESS), name
            assert "-h" not in names


@pytest.mark.parametrize(
    ("words", "out"), [("-q", ""), ("-q --as-json", '["result"]\n'), ("", 'at work\n["result"]\n')]
)
def test_a_quiet_command_prints_its_json_or_nothing(app: CommandLine, words: str, out: str) -> None:
    done = CliRunner().invoke(app, ["show", *words.split()])
    assert (done.exit_code, done.stdout, done.stderr) == (0, out, "")
    assert not Console.is_silenced


@pytest.mark.parametrize(
    ("words", "out"),
    [("", "three were found\n"), ("--json", '{\n  "found": 3\n}\n'), ("-q --json", '{\n  "found": 3\n}\n')],
)
def test_a_command_that_returns_its_result_prints_it_as_json(app: CommandLine, words: str, out: str) -> None:
    done = CliRunner().invoke(app, ["count", *words.split()])
    assert (done.exit_code, done.stdout, done.stderr) == (0, out, "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("show --wrong", "No such option: --wrong. See `main show -h`"),
        ("sho", "No such command 'sho'. Did you mean 'show'? See `main -h`"),
        ("--wrong", "No such option: --wrong. See `main -h`"),
    ],
)
def test_a_wrong_word_is_an_error_like_all_others(app: CommandLine, words: str, reason: str) -> None:
    done = CliRunner().invoke(app, words.split(), prog_name="main")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {reason}\n")


def test_a_quiet_command_does_not_ask(app: CommandLine) -> None:
    done = CliRunner().invoke(app, ["delete", "--quiet"], input="y\n")
    assert done.exit_code == 2
    assert "add --yes" in done.stderr


def test_a_quiet_command_that_deletes_nothing_needs_no_yes(app: CommandLine) -> None:
    assert CliRunner().invoke(app, ["listing", "--quiet"]).exit_code == 0
    assert CliRunner().invoke(app, ["listing", "--quiet", "--delete-them"], input="y\n").exit_code == 2
    assert CliRunner().invoke(app, ["listing", "--quiet", "--delete-them", "--yes"]).exit_code == 0


def test_an_error_is_on_standard_error_even_of_a_quiet_command(app: CommandLine) -> None:
    for words in (["fail"], ["fail", "-q"]):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", "error: no such [file]\n")


def test_h_is_help(app: CommandLine) -> None:
    assert CliRunner().invoke(app, ["show", "-h"]).stdout.strip().startswith("Usage:")


def test_names_of_a_table_are_completed() -> None:
    complete = completion(lambda: ["hart", "har_cnn", "dense"])
    assert complete("har") == ["hart", "har_cnn"]
    assert complete("dense+hart") == ["dense+hart"]


def test_windows_and_data_sets_as_json(tmp_path: Path) -> None:
    app = import_module("har_pipeline.cli").app
    listed = CliRunner().invoke(app, ["info", "--json"])
    assert {"motionsense", "ucihar"} <= {reader["name"] for reader in json.loads(listed.stdout)}
    words = ["prepare", "synthetic", "--json", "--options", '{"subjects": 1}', "--cache", str(tmp_path)]
    counted = json.loads(CliRunner().invoke(app, words).stdout)
    assert all(sum(found.values()) > 0 for found in counted["windows"].values())


LATER = ("agent",) if sys.version_info < (3, 11) else ("server", "agent", "sim")  # only a device may have 3.10


@pytest.mark.parametrize("program", LATER)
def test_a_list_of_commands_says_of_each_what_its_help_begins_with(program: str) -> None:
    found = import_module(PROGRAMS[program].module)
    helps = {name: (command.help or "").splitlines()[0] for name, command in get_command(found.app).commands.items()}
    listed = {name: words for name, (_, words) in found.COMMANDS.items()}
    assert {name: helps[name] for name in listed} == listed


@pytest.mark.parametrize("program", LATER)
def test_the_help_of_a_program_imports_no_command(program: str) -> None:
    module = PROGRAMS[program].module
    asked = f"""
import subprocess
import sys
from importlib import import_module
from typer.testing import CliRunner
done = CliRunner().invoke(import_module({module!r}).app, ["--help"])
assert "Commands" in done.stdout, done
print(sorted({{"numpy", "torch", "pydantic", "sqlalchemy"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
