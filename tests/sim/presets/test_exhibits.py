"""Each paper's tables and figures: every command is one that the program takes, of presets and tables that exist."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sim.cli.app import app
from sim.presets import PRESETS
from sim.presets.exhibits import PAPERS, Exhibit, all_papers, markdown, paper_named

WORDS = {"VARIANT": "full", "PERCENT": "10", "BETA": "0.1", "COUNT": "1024", "SPREAD": "3"}
"""What stands for capital letters in a command, where the name that they are part of must exist."""


def commands() -> Iterator[str]:
    """Every command of every paper."""
    return (command for _, paper in all_papers() for one in paper.exhibit for command in one.commands)


def parsed(words: list[str]) -> dict[str, object]:
    """Let the program read a command line, and return its parameters; nothing is run."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="sim")
    while hasattr(group, "get_command"):
        name, *words = words
        found = group.get_command(context, name)
        assert found is not None, name
        group, context = found, typer.Context(found, info_name=name, parent=context)
    return found.make_context(name, list(words), parent=context.parent).params


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_the_program_takes_the_command_and_knows_its_preset_and_table(command: str) -> None:
    for word, name in WORDS.items():
        command = command.replace(word, name)
    python, dash, sim, *words = shlex.split(command)
    assert (python, dash, sim) == ("python", "-m", "sim")
    assert parsed(words) is not None
    if "--preset" in words:
        assert words[words.index("--preset") + 1] in PRESETS
    if "--for" in words:
        assert words[words.index("--for") + 1] in PRESETS
    if words[:2] == ["arena", "run"]:
        assert (Path("experiments") / f"{words[2]}.toml").is_file()


def test_an_exhibit_is_made_or_explained() -> None:
    with pytest.raises(ValueError, match="give the commands that make it, or the reason"):
        Exhibit(number="Table 1", shows="scores")


def test_presets_prints_every_table_and_figure_with_its_commands() -> None:
    printed = CliRunner().invoke(app, ["presets"], env={"COLUMNS": "200"}).output
    for name in PAPERS:
        paper = paper_named(name)
        assert paper.title in printed
        for one in paper.exhibit:
            assert f"{one.number}: {one.shows}" in printed
            assert all(command in printed for command in one.commands)
    alone = CliRunner().invoke(app, ["presets", "qiao2023"]).output
    assert "Qiao" in alone
    assert "Tan" not in alone


def test_each_table_that_was_made_again_is_in_the_document() -> None:
    document = Path("docs/results.md").read_text()
    for _, paper in all_papers():
        assert "\n".join(markdown(paper)) in document
