"""Entries of other packages: found without an import, used by name, refused in words, and bounded on devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.config.settings import example, load
from edge_agent.errors import ConfigError
from edge_agent.machine.state import incompatibility
from federation.errors import SettingsError
from federation.methods import METHODS, method_from_json
from federation.plan import live_incompatibility, with_packages
from gaitway import plugins
from gaitway.plugins import GROUPS, PluginError
from gaitway.plugins import main as list_plugins
from har_pipeline.errors import SettingsError as PipelineSettingsError
from har_pipeline.preparation import reader_of
from models import build
from models.errors import UnknownModelError
from sim.data.partitions import partition_from_json
from sim.errors import SettingsError as SimSettingsError
from tests.edge_agent.factories import make_plan
from tests.gaitway.conftest import Install
from tests.repository.imports import REPOSITORY

EXAMPLE = REPOSITORY / "docs" / "examples" / "gaitway-feddyn"


def feddyn(install: Install) -> None:
    install("gaitway-feddyn", {"methods:feddyn": "gaitway_feddyn:FedDyn"}, gaitway_feddyn=_example())


def _example() -> str:
    return (EXAMPLE / "gaitway_feddyn.py").read_text()


def test_a_method_of_another_package_is_one_of_the_table(install: Install) -> None:
    before = list(METHODS)
    with pytest.raises(SettingsError, match="unknown method 'feddyn'"):
        method_from_json({"name": "feddyn"})
    feddyn(install)
    assert list(METHODS) == [*before, "feddyn"]
    assert "feddyn" in METHODS
    assert "gaitway_feddyn" not in sys.modules  # names are known before anything is imported
    method = method_from_json({"name": "feddyn", "alpha": "0.1"})
    assert (method.name, type(method).__module__) == ("feddyn", "gaitway_feddyn")
    assert dict(METHODS.items())["feddyn"] is type(method)


def test_a_device_imports_only_what_its_configuration_allows(install: Install, tmp_path: Path) -> None:
    feddyn(install)
    config = tmp_path / "agent.toml"
    config.write_text(example())
    load(config, {})
    assert "feddyn" not in METHODS
    with pytest.raises(SettingsError, match=r"add 'gaitway-feddyn' to \[agent\] plugins"):
        method_from_json({"name": "feddyn"})
    assert "gaitway_feddyn" not in sys.modules
    config.write_text(example().replace("# plugins = []", 'plugins = ["Gaitway_FedDyn"]'))
    assert load(config, {}).agent.plugins == ("Gaitway_FedDyn",)
    assert "feddyn" in METHODS
    config.write_text(example().replace("# plugins = []", "plugins = 7"))
    with pytest.raises(ConfigError, match="plugins"):
        load(config, {})
    assert "feddyn" not in METHODS


def test_a_plan_says_which_package_its_entries_come_from(install: Install) -> None:
    plan = make_plan().model_copy(update={"method": {"name": "feddyn"}})
    assert with_packages(plan).packages == {}
    assert "packages" not in plan.model_dump()
    feddyn(install)
    said = with_packages(plan)
    assert said.packages == {"methods:feddyn": "gaitway-feddyn 1.2"}
    assert incompatibility(said, None) == ""
    plugins.allow([])
    assert "add 'gaitway-feddyn' to [agent] plugins" in incompatibility(said, None)


def test_who_lacks_the_package_is_told_which_one_it_is() -> None:
    plan = make_plan().model_copy(update={"packages": {"methods:feddyn": "gaitway-feddyn 1.2"}})
    words = (
        "'feddyn' of methods is in the package gaitway-feddyn 1.2, which is not installed here: "
        "pip install 'gaitway-feddyn'"
    )
    assert incompatibility(plan, None) == words
    assert live_incompatibility(plan) == words


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gaitway_missing:Method", "can't be imported: ModuleNotFoundError"),
        ("gaitway_broken:Method", "can't be imported: ZeroDivisionError"),
        ("gaitway_other:Nothing", "can't be imported: AttributeError"),
        ("gaitway_other:number", "expected a subclass of federation.method.Method, got 7"),
        ("gaitway_other:Method", "expected name = 'mine', the entry point's name"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_in_words_and_hurts_no_other(
    install: Install, target: str, words: str
) -> None:
    other = "number = 7\nfrom federation.method import Method\n"
    install("gaitway-mine", {"methods:mine": target}, gaitway_broken="1 / 0", gaitway_other=other)
    with pytest.raises(PluginError, match=r"methods:mine of the package gaitway-mine 1\.2") as refused:
        METHODS["mine"]
    assert words in str(refused.value)
    with pytest.raises(SettingsError, match="gaitway-mine"):
        method_from_json({"name": "mine"})
    assert "mine" not in dict(METHODS.items())
    assert method_from_json({"name": "fedavg"}).name == "fedavg"


def test_every_table_refuses_what_it_does_not_hold(install: Install) -> None:
    target = "gaitway_wrong:thing"
    install(
        "gaitway-wrong",
        {"models:mine": target, "readers:mine": target, "partitions:mine": target},
        gaitway_wrong="thing = 7",
    )
    with pytest.raises(UnknownModelError, match=r"expected a subclass of models\.Model, got 7"):
        build("mine", classes=2)
    with pytest.raises(PipelineSettingsError, match="RecordingReader, got 7"):
        reader_of("mine")
    with pytest.raises(SimSettingsError, match="Partition, got 7"):
        partition_from_json({"kind": "mine"})


def test_ours_win(install: Install) -> None:
    install("gaitway-bad", {"methods:fedavg": "gaitway_bad:Method"}, gaitway_bad="1 / 0")
    assert METHODS["fedavg"].__module__ == "federation.methods.fedavg"
    assert METHODS.plugin("fedavg") is None


def test_entries_of_unknown_groups_and_other_programs_are_none_of_ours(install: Install) -> None:
    install("gaitway-odd", {"nonsense:mine": "x:y"})
    assert not [each for each in plugins.installed() if each.package == "gaitway-odd"]


def test_the_list_names_table_package_and_version(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    feddyn(install)
    assert list_plugins([]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["table", "name", "package", "version", "object"]
    assert row.split() == ["methods", "feddyn", "gaitway-feddyn", "1.2", "gaitway_feddyn:FedDyn"]
    assert list_plugins(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["package"] == "gaitway-feddyn"
    assert list_plugins(["--nonsense"]) == 2


def test_every_group_is_a_table() -> None:
    from edge_agent.config.sensors import SOURCES
    from gaitway.tasks import TASKS
    from har_pipeline.readers import READERS
    from models import MODELS
    from sim.data.partitions import PARTITIONS

    tables = (METHODS, MODELS, READERS, TASKS, SOURCES, PARTITIONS)
    assert all(isinstance(table, plugins.EntryTable) for table in tables)
    assert len(tables) == len(GROUPS)


@pytest.mark.ci
def test_the_example_package_is_installed_listed_and_learns(tmp_path: Path) -> None:
    """pip installs it from its folder; a simulation finds the method by its name, and its plan.json says where from."""
    source, target = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(REPOSITORY)])}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "gaitway-feddyn" in run("gaitway", "plugins")
    run("sim", "run", "--preset", "synthetic-smoke", "--method", "feddyn", "--rounds", "3", "--out", "run")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["packages"] == {"methods:feddyn": "gaitway-feddyn 0.1"}
    score = json.loads((tmp_path / "run" / "summary.json").read_text())["personalization"]["macro_f1"]["mean"]
    assert score > 0.5  # guessing has 0.2
