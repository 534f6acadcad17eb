"""The deployment's files against the programs: settings that exist, folders that fit, nobody is root."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.settings import Settings, load
from edge_agent.config.settings import Config
from tests.repository.imports import PACKAGES, REPOSITORY

DEPLOY = REPOSITORY / "deploy"
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def known_variables() -> set[str]:
    """Every environment variable that one of the two programs reads."""
    server = {f"GAITWAY_{name.upper()}" for name in Settings.model_fields}
    edge = {
        f"GAITWAY_EDGE_{section}_{name}".upper()
        for section, field in Config.model_fields.items()
        for name in field.annotation.model_fields
    }
    return server | edge | {"GAITWAY_SERVERS", "GAITWAY_ENROL_TOKEN"}


@pytest.mark.parametrize(
    "file",
    [
        *DOCKERFILES,
        DEPLOY / "compose.yaml",
        DEPLOY / "gaitway-server.service",
        REPOSITORY / "docs" / "operations.md",
    ],
    ids=lambda file: file.name,
)
def test_every_variable_is_one_that_is_read(file: Path) -> None:
    used = set(re.findall(r"GAITWAY_[A-Z_]+[A-Z]", file.read_text()))
    assert used - known_variables() == set()


def test_images_are_pinned_and_nobody_is_root() -> None:
    for name, service in services().items():
        image = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", service["image"])
        _, _, tag = image.partition(":")
        assert re.match(r"\d+\.\d+", tag) or "build" in service, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name
    assert services()["mosquitto"]["user"] == "1883:1883"
    for file in DOCKERFILES:
        text = file.read_text()
        assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim-\w+$", text, re.M)
        final = text.rpartition("\nFROM ")[2]
        assert re.search(r"^USER 10001:10001$", final, re.M)
        assert "HEALTHCHECK" in final


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_the_build_gets_every_package_and_its_locks(file: Path) -> None:
    kept = {line[1:] for line in file.with_name(f"{file.name}.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert set(PACKAGES) <= kept
    assert {"pyproject.toml", "README.md", "LICENSE"} <= kept
    locks = re.findall(r"-r (deploy/locks/\S+?\.txt)", file.read_text())
    assert "deploy/locks" in kept
    assert locks == ["deploy/locks/torch.txt", f"deploy/locks/{file.name.partition('.')[0]}.txt"]
    assert all((REPOSITORY / lock).is_file() for lock in locks)


def test_what_the_guide_has_broker_config_write_fits_the_containers(tmp_path: Path) -> None:
    command = re.search(
        r"python -m aggregator_api (broker-config --out deploy/broker(?:[^\n]*\\\n)*[^\n]*)", OPERATIONS
    )
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    words[words.index("--out") + 1] = str(tmp_path / "broker")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    mosquitto, server = services()["mosquitto"], services()["server"]
    mounts = dict(volume.split(":")[:2] for volume in (*mosquitto["volumes"], *server["volumes"]))
    conf = (tmp_path / "broker" / "broker" / "mosquitto.conf").read_text()
    for place in re.findall(r"(?:cafile|certfile|keyfile|plugin_opt_config_file|persistence_location) (\S+)", conf):
        assert place.startswith(mounts["./broker/broker"] + "/")
    assert mosquitto["command"][-1] == mounts["./broker/broker"] + "/mosquitto.conf"
    settings = load(tmp_path / "broker" / "server" / "server.toml")
    assert str(settings.mqtt_ca_file).startswith(mounts["./broker/server"] + "/")
    assert server["command"][-1] == mounts["./broker/server"] + "/server.toml"
    assert server["environment"]["GAITWAY_BROKER_HOST"] in words  # the certificate names it
    assert re.search(r"^listener 8883$", conf, re.M)


def test_the_guide_names_only_metrics_that_exist() -> None:
    files = [*(REPOSITORY / "aggregator_api").rglob("*.py"), REPOSITORY / "edge_agent/supervisor/metrics.py"]
    sources = "".join(file.read_text() for file in files)
    names = set(re.findall(r"`(gaitway_[a-z_]+)", OPERATIONS))
    assert len(names) >= 5
    for name in names:
        assert re.sub(r"_(total|bucket|count|sum)$", "", name) in sources, name
