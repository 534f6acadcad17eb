"""A run's directory is resumed only with the data and the code that it began with, and Ctrl-C loses no round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.methods import METHODS
from federation.records import Examples
from sim import simulate
from sim.data.federated_data import ClientData, FederatedData
from sim.errors import RunDirectoryError
from sim.results.description import code_digests
from sim.rounds import checkpoint
from sim.run import run
from tests.sim.small_runs import CNN, DATA, Reporter, first, settings_for

METHOD = '''
from dataclasses import dataclass
from federation.methods.fedavg import FedAvg

PULL = {pull}

def penalty(value):
    {comment}
    return value * {factor}

@dataclass(frozen=True)
class Edited(FedAvg):
    name = "edited"
    {attribute}

    def project(self, client, *arguments):
        """{documentation}"""
        return super().project(client, *arguments) if penalty(PULL) in {{"a", "b"}} else client
'''
TEXT = {"pull": "1", "comment": "# why", "factor": "2", "attribute": "mark = (1, 2)", "documentation": "Return it."}


def method(name: str = "cell", **edited: str) -> type:
    """Return the class as a notebook would define it, in a module that has no file."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # where dataclasses look for it
    try:
        exec(compile(METHOD.format(**{**TEXT, **edited}), "<cell>", "exec"), module.__dict__)
    finally:
        del sys.modules[name]
    return module.Edited


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def noise(data: FederatedData) -> FederatedData:
    """Return as many examples of each class, whose signals are noise."""
    parts = {
        name: ClientData(*(part and Examples(torch.randn_like(part.x), part.y) for part in own))
        for name, client in data.clients.items()
        for own in [(client.train, client.test, client.validation)]
    }
    return replace(data, clients=parts)


def test_other_recordings_are_refused(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), tmp_path, data=few)
    with pytest.raises(RunDirectoryError, match=r"a run on other data.*resume=False"):
        run(settings_for(rounds=1), tmp_path, data=noise(few))
    run(settings_for(rounds=1), tmp_path, data=few)


def test_another_machine_may_round_otherwise_but_has_the_same_examples(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), tmp_path, data=few)
    config = json.loads((tmp_path / "config.json").read_text())
    moved = config | {"data_sha256": "0" * 64, "hardware": "aarch64 DEFAULT, 1 torch threads, Linux"}
    (tmp_path / "config.json").write_text(json.dumps(moved))
    with pytest.raises(RunDirectoryError, match="a run on other data"):
        run(settings_for(rounds=1), tmp_path, data=first(few, {"ada": 20, "bob": 11}))
    run(settings_for(rounds=1), tmp_path, data=few)


@pytest.mark.parametrize(
    "edited",
    [{"factor": "3"}, {"pull": "2"}, {"attribute": "mark = (1, 3)"}],
    ids=["a function that it calls", "a constant", "an attribute"],
)
def test_an_edited_method_is_refused(
    edited: dict[str, str], few: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "edited", method())
    run(settings_for("edited", rounds=1), tmp_path, data=few)
    monkeypatch.setitem(METHODS, "edited", method(comment="# for a reason", documentation="Give it back."))
    run(settings_for("edited", rounds=1), tmp_path, data=few)
    monkeypatch.setitem(METHODS, "edited", method(**edited))
    with pytest.raises(RunDirectoryError, match=r"before the code of cell\.Edited was edited.*resume=False"):
        run(settings_for("edited", rounds=1), tmp_path, data=few)


def test_a_digest_is_the_same_in_every_process() -> None:
    """Where a set's order is another one."""
    program = "from tests.sim.test_stale_runs import *; print(code_digests([method()])['cell.Edited'])"
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == code_digests([method()])["cell.Edited"]


def test_bases_outside_of_gaitway_count() -> None:
    base, edited = (method(factor=factor) for factor in ("2", "3"))
    leaves = [type("Leaf", (kind,), {"__module__": "script"}) for kind in (base, edited)]
    before, after = (code_digests([leaf]) for leaf in leaves)
    assert before.keys() == {"script.Leaf", "cell.Edited"}
    assert before["script.Leaf"] == after["script.Leaf"]
    assert before["cell.Edited"] != after["cell.Edited"]


def test_a_run_begins_afresh_and_deletes_only_its_own_files(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": "synthetic", "method": "fedavg", "model": "har_cnn", "engine": "serial"}
    options |= {"rounds": 1, "set": [*DATA, *CNN]}
    out = tmp_path / "run"
    first_result = dict(simulate(out, resume=False, **options))
    (out / "notes.txt").write_text("mine")
    (out / "models" / "gone.safetensors").write_bytes(b"of an earlier client")
    changed = options | {"lr": 0.5}
    with pytest.raises(RunDirectoryError, match=r"holds a run with training\.lr = "):
        simulate(out, **changed)
    again = dict(simulate(out, resume=False, **changed))
    assert again["last"] != first_result["last"]
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "models" / "gone.safetensors").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_ctrl_c_saves_the_round_that_it_meets(
    engine: str, few: FederatedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, interrupted, rounds = settings_for(batch=8, rounds=3, engine=engine), [], []
    run(settings, tmp_path / "whole", data=few)

    def interrupt(kind: str, what: Any) -> None:
        if kind == "client" and not interrupted:
            interrupted.append(what)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "stopped", [Reporter(interrupt)], data=few)
    assert "press Ctrl-C again" in capsys.readouterr().err
    played = Reporter(lambda kind, what: rounds.append(what) if kind == "round" else None)
    run(settings, tmp_path / "stopped", [played], data=few)
    assert rounds == [2, 3]
    ours, theirs = (tmp_path / folder / "models" / "global.safetensors" for folder in ("stopped", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_stops_within_the_round(few: FederatedData, tmp_path: Path) -> None:
    trained = []

    def interrupt(kind: str, _what: Any) -> None:
        if kind == "client":
            trained.append(kind)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(settings_for(batch=8, rounds=3), tmp_path, [Reporter(interrupt)], data=few)
    assert len(trained) == 2
    assert checkpoint.load(tmp_path / "checkpoint.bin", "cpu") is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_round_that_a_callback_fails_on_is_kept(few: FederatedData, tmp_path: Path) -> None:
    def fail(kind: str, what: Any) -> None:
        if (kind, what) == ("round", 2):
            raise ConnectionError("nobody there")

    with pytest.raises(ConnectionError):
        run(settings_for(batch=8, rounds=3), tmp_path, [Reporter(fail)], data=few)
    saved = checkpoint.load(tmp_path / "checkpoint.bin", "cpu")
    assert saved is not None
    assert saved.round_number == 2
