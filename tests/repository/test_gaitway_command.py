"""`gaitway`: one command for all programs, which loads none of them before it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from gaitway.__main__ import PROGRAMS, help_text, main
from gaitway.own_packages import install_command
from tests.repository.imports import PACKAGES, REPOSITORY


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gaitway", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return found


def test_the_script_is_installed_and_starts_here() -> None:
    assert project()["scripts"] == {"gaitway": "gaitway.__main__:main"}


def test_the_version_is_that_of_the_distribution() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"gaitway {project()['version']}\n")


def test_help_describes_every_program_and_loads_none() -> None:
    program = "import sys; from gaitway.__main__ import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    shown, _, modules = done.stdout.rstrip().rpartition("\n")
    assert all(f"  {name} " in shown and one.purpose in shown for name, one in PROGRAMS.items())
    assert "gaitway server serve" in shown
    loaded = {name.partition(".")[0] for name in modules.split()}
    assert not loaded & ({"torch", "numpy", "typer", "pydantic"} | set(PACKAGES) - {"gaitway"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_app_as_its_module(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(import_module(PROGRAMS[name].module).app, typer.Typer)
    assert PROGRAMS[name].extra in project()["optional-dependencies"]
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"gaitway {name} " in capsys.readouterr().out


@pytest.mark.parametrize("words", [["sim", "run"], ["server", "keys", "create"], ["agent", "enrol"]])
def test_the_help_of_a_command_has_examples_by_this_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{' '.join(['gaitway', *words])} --" in shown
    assert "python -m" not in shown


@pytest.mark.ci
def test_words_of_a_program_reach_it() -> None:
    done = run("server", "gc", "--no-such-option")
    assert done.returncode == 2
    assert "gaitway server gc" in done.stderr


def test_nothing_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert capsys.readouterr().out == help_text()


def test_a_misspelt_program_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["servr"])
    assert ended.value.code == 2
    assert "there is no program 'servr'; did you mean `gaitway server`?" in capsys.readouterr().err


HIDING = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    ("words", "module", "reason"),
    [
        ("sim run", "torch", f"`gaitway sim` needs torch, which is not installed: {install_command('sim')}"),
        (
            "server keys list",
            "sqlalchemy",
            f"needs sqlalchemy, which is not installed: {install_command('aggregator')}",
        ),
        ("agent run", "paho", f"`gaitway agent` needs paho, which is not installed: {install_command('edge')}"),
        ("pipeline info", "numpy", "`gaitway pipeline` needs numpy, which is not installed"),
        ("agent run", "fcntl", "`gaitway agent` runs on Linux, and this system has no Python module fcntl"),
    ],
)
def test_a_missing_module_is_a_sentence(words: str, module: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDING.format(module=module))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    program = [sys.executable, "-m", "gaitway", *words.split(), "-h"]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("line", "expected"), [("gaitway se", "server"), ("gaitway pipeline prep", "prepare")])
def test_bash_completes_programs_and_their_commands(line: str, expected: str, tmp_path: Path) -> None:
    """As bash does it: it reads the script, sets the words of the line, and calls the function."""
    script = run("completion", "bash").stdout
    program = tmp_path / "gaitway"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gaitway "$@"\n')
    program.chmod(0o755)
    words = line.split()
    lines = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _gaitway_completion "$1"; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(
        ["bash", "-c", script + lines, "bash", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]


def test_a_shell_that_is_unknown_is_told_which_there_are() -> None:
    done = run("completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bash" in done.stderr
    assert "fish" in done.stderr
