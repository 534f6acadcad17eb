"""The command line and the settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import load

RUNNER = CliRunner()


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_a_taken_port_is_said_before_anything_starts(command: str, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        folder = ["--data-dir", str(tmp_path / "data")] if command == "serve" else []
        result = RUNNER.invoke(app, [command, "--port", str(port), *folder])
    assert result.exit_code == 2
    assert f"port {port} on 127.0.0.1 is used by another program; choose another with --port" in result.stderr
    assert not (tmp_path / "data").exists()


def test_migrate_makes_the_database(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["migrate", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "gaitway.sqlite3").exists()


@pytest.mark.parametrize("command", ["serve", "broker", "migrate"])
def test_help_shows_an_example(command: str) -> None:
    result = RUNNER.invoke(app, [command, "--help"])
    assert f"python -m aggregator_api {command}" in result.stdout


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "server.toml"
    config.write_text('port = 1\nhost = "file"\nbroker_host = "file"\n')
    monkeypatch.setenv("GAITWAY_HOST", "environment")
    monkeypatch.setenv("GAITWAY_PORT", "2")
    settings = load(config, port=3, host=None)
    assert (settings.port, settings.host, settings.broker_host) == (3, "environment", "file")


@pytest.mark.parametrize(
    ("text", "words"),
    [("prot = 1", "did you mean 'port'"), ("port = 0", "port"), ("port =", "TOML"), ('port = "x"', "setting port")],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "server.toml")


@pytest.mark.ci
def test_the_application_loads_neither_trainer_nor_device_nor_simulation() -> None:
    code = "import sys, aggregator_api.http.app; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ.copy()
    ).stdout
    loaded = set(output.split())
    assert "fastapi" in loaded
    ours = {name for name in loaded if name.split(".")[0] in ("edge_agent", "sim", "har_pipeline", "models", "export")}
    trainer = loaded & {
        "federation.training.local_round",
        "federation.training.client_round",
        "federation.training.prediction",
    }
    assert not ours | trainer
