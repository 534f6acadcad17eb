"""What an error says to install is the Gaitway that runs, and no other package of that name."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from gaitway import own_packages
from gaitway.own_packages import OWN_PACKAGES, hidden_packages
from tests.repository.imports import PACKAGES


class Noted:
    """A distribution of which pip has noted where it came from."""

    def __init__(self, said: dict[str, Any] | str | None) -> None:
        self.said = said if isinstance(said, str) or said is None else json.dumps(said)

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.said


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ({"url": "file:///srv/gaitway-0.3.0-py3-none-any.whl", "archive_info": {}},
         "pip install 'gaitway[sim] @ file:///srv/gaitway-0.3.0-py3-none-any.whl'"),
        ({"url": "file:///srv/a%20checkout", "dir_info": {"editable": True}}, "pip install -e '/srv/a checkout[sim]'"),
        ({"url": "file:///srv/checkout", "dir_info": {}}, "pip install 'gaitway[sim] @ file:///srv/checkout'"),
        (None, "pip install 'gaitway[sim]'"),
        ("no JSON", "pip install 'gaitway[sim]'"),
    ],
)  # fmt: skip
def test_the_command_names_where_gaitway_came_from(
    said: dict[str, Any] | str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_packages, "distribution", lambda _: Noted(said))
    assert own_packages.install_command("sim") == command


def test_a_checkout_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(own_packages, "distribution", missing)
    assert own_packages.install_command("edge") == "pip install 'gaitway[edge]'"


newer_python = pytest.mark.skipif(sys.version_info < (3, 11), reason="server and simulation need Python 3.11")


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as a user does whose script or shell is in that folder, which comes first on the path."""
    path = f"{cwd}:{Path.cwd()}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, env=environment, check=False
    )


def test_the_names_are_those_of_the_repository() -> None:
    assert set(PACKAGES) <= set(OWN_PACKAGES)
    assert hidden_packages() == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("models", ["-m", "gaitway", "sim", "presets"]),
        ("sim", ["-m", "gaitway", "sim", "presets"]),
        ("export", ["-m", "gaitway", "export", "--help"]),
        ("models", ["-m", "edge_agent", "--help"]),
        pytest.param("federation", ["-m", "aggregator_api", "--help"], marks=newer_python),
        ("models", ["-m", "export", "--help"]),
    ],
)
def test_a_program_names_the_file_that_hides_a_package(name: str, words: list[str], tmp_path: Path) -> None:
    own = tmp_path / f"{name}.py"
    own.write_text("ANSWER = 42\n")
    ended = run(*words, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert f"{own} hides Gaitway's package `{name}`: rename it" in ended.stderr
    assert "Traceback" not in ended.stderr


@newer_python
def test_the_simulation_refuses_in_a_script(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("ANSWER = 42\n")
    (tmp_path / "script.py").write_text("import models\nfrom sim import simulate\n")
    ended = run("script.py", cwd=tmp_path)
    assert ended.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'models.py'} hides Gaitway's package")


def test_what_needs_no_hidden_package_works(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("ANSWER = 42\n")
    ended = run("-c", "import models, har_pipeline; print(models.ANSWER)", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr
