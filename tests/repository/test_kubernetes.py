"""The Kubernetes manifests: valid by the schemas, hardened, and about settings, paths and commands that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.settings import Settings, load
from tests.repository.imports import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()


def every() -> Iterator[dict[str, Any]]:
    for file in FILES:
        yield from yaml.safe_load_all(file.read_text())


def deployment(name: str) -> dict[str, Any]:
    return next(one for one in every() if one["kind"] == "Deployment" and one["metadata"]["name"] == name)


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every container with its pod."""
    for one in every():
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            yield from ((pod, container) for container in (*pod.get("initContainers", ()), *pod["containers"]))


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "kustomization"], ids=lambda file: file.name)
def test_the_schemas_accept_them(file: Path, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, which brings the schemas")
    for one in yaml.safe_load_all(file.read_text()):
        validate.validate(one, version, strict=True)


def test_every_file_is_a_resource_of_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {*listed["resources"], "kustomization.yaml"} == {file.name for file in FILES}
    assert {image["name"] for image in listed["images"]} == {container["image"] for _, container in containers()}
    (ours,) = (image for image in listed["images"] if image["name"] == "gaitway-server")
    assert ours["newTag"] == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


def test_nobody_is_root_and_nothing_is_writable_but_volumes() -> None:
    found = list(containers())
    assert len(found) == 3
    for pod, container in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        own = container["securityContext"]
        assert own == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
    assert {one["metadata"]["name"] for one in every() if one["kind"] == "NetworkPolicy"} == {
        "nothing-else",
        "gaitway-server",
        "mosquitto",
    }


def test_the_settings_and_probes_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = next(one for one in every() if one["kind"] == "ConfigMap")["data"]
    assert {name.removeprefix("GAITWAY_").lower() for name in given} <= Settings.model_fields.keys()
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert load().host == "0.0.0.0"
    paths = set(re.findall(r'"(/(?:healthz|readyz))"', (REPOSITORY / "docs/openapi.json").read_text()))
    server = deployment("gaitway-server")["spec"]["template"]["spec"]["containers"][0]
    assert {server[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe", "startupProbe")} <= paths
    assert CliRunner().invoke(app, [server["args"][0], "--help"]).exit_code == 0


def test_what_the_guide_has_broker_config_write_fits_the_secrets(tmp_path: Path) -> None:
    chapter = OPERATIONS.partition("## On Kubernetes\n")[2]
    command = re.search(r"python -m aggregator_api (broker-config (?:[^\n]*\\\n)*[^\n]*)", chapter)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    words[words.index("--out") + 1] = str(tmp_path / "broker")
    assert CliRunner().invoke(app, words).exit_code == 0
    made = {
        "gaitway-broker": {file.name for file in (tmp_path / "broker" / "broker").rglob("*") if file.is_file()},
        "gaitway-server": {file.name for file in (tmp_path / "broker" / "server").iterdir()},
    }
    seed = deployment("mosquitto")["spec"]["template"]["spec"]["initContainers"][0]["command"][-1]
    (listed,) = re.findall(r"for file in ([^;]+);", seed)
    copied = {*listed.split(), "dynamic-security.json"}
    assert copied == made["gaitway-broker"]
    for secret in made:
        assert f"create secret generic {secret}" in chapter
    conf = (tmp_path / "broker" / "broker" / "mosquitto.conf").read_text()
    places = re.findall(r"(?:cafile|certfile|keyfile|plugin_opt_config_file|persistence_location) (\S+)", conf)
    assert places
    assert all(place.startswith("/mosquitto/gaitway/") for place in places)
    assert "/etc/gaitway/ca.pem" in (tmp_path / "broker" / "server" / "server.toml").read_text()
    assert "mosquitto" in words  # the certificate names the service that the server connects to
