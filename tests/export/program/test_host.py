"""A round without torch: resumed after any step, refused with what is not the program's, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, RoundOutcome, train
from export.program.parity import as_arrays, generated_examples
from export.program.runtime import Arrays, TrainingProgram
from export.runtime import ProgramError
from tests.export.program.small_federations import loaded, small_program
from tests.repository.imports import REPOSITORY


class Parts:
    """A program with a broadcast and examples, and a round of it."""

    def __init__(self, method: str) -> None:
        federation, self.program = loaded(method)
        examples = generated_examples(federation, 11)
        self.broadcast = as_arrays({"broadcast": federation.broadcast})
        self.examples = DeviceExamples(examples.x.numpy(), examples.y.numpy())

    def begin(self, saved: Arrays | None = None) -> ProgramRound:
        return ProgramRound(self.program, {}, self.broadcast, self.examples, RoundIdentity("ada", 1), saved=saved)


def same(one: RoundOutcome, other: RoundOutcome) -> bool:
    arrays = all(np.array_equal(a[name], b[name]) for a, b in zip(one[:2], other[:2], strict=True) for name in a)
    return arrays and one[2:] == other[2:]


@pytest.mark.parametrize(
    ("method", "steps"), [*(("fedpac", steps) for steps in (0, 1, 2, 3, 5, 12)), ("scaffold", 4), ("fedali", 4)]
)
def test_a_round_that_was_cut_off_after_any_step_goes_on_to_the_same_end(method: str, steps: int) -> None:
    """Between batches, at the end of an epoch, and where a phase with a fresh optimizer begins."""
    parts = Parts(method)
    whole, begun = train(parts.begin()), parts.begin()
    for _ in range(steps):
        begun.step()
    kept = {name: value.copy() for name, value in begun.saved.items()}
    assert same(train(parts.begin(kept)), whole)


def test_a_round_can_be_ended_before_its_last_step() -> None:
    parts = Parts("fedavg")
    outcome = train(parts.begin(), lambda device_round: device_round.steps == 4)
    assert outcome.steps == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"progress/steps": np.array(7)}, "isn't a step"),
        ({"progress/epoch": np.array(99)}, "epoch 99"),
        ({"progress/batch": np.array(50)}, "isn't a step"),
        ({"client/params/head.0.bias": np.full(8, np.nan, np.float32)}, "NaN"),
        ({"client/params/head.0.bias": np.zeros(7, np.float32)}, "expected float32"),
        ({"anything": np.zeros(1)}, "does not know"),
    ],
)
def test_a_saved_round_that_does_not_fit_is_refused(change: Arrays, message: str) -> None:
    parts = Parts("fedavg")
    begun = parts.begin()
    begun.step()
    with pytest.raises(ProgramError, match=message):
        parts.begin(begun.saved | change)


def test_what_is_not_the_programs_is_refused() -> None:
    parts = Parts("fedavg")
    name = next(iter(parts.broadcast))
    x, y, _ = parts.examples
    whole = parts.broadcast, parts.examples
    for broadcast, examples, message in (
        ({}, whole[1], "lacks"),
        ({**parts.broadcast, name: parts.broadcast[name].astype(np.float64)}, whole[1], "float64"),
        ({**parts.broadcast, name: np.full_like(parts.broadcast[name], np.inf)}, whole[1], "infinity"),
        (whole[0], DeviceExamples(x[:, :3], y), "examples"),
        (whole[0], DeviceExamples(x, y + 2), "classes from"),
        (whole[0], DeviceExamples(x[:0], y[:0]), "there are none"),
    ):
        with pytest.raises(ProgramError, match=message):
            ProgramRound(parts.program, {}, broadcast, examples, RoundIdentity("ada", 1))


WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "safetensors"):
            raise ImportError(name + " is not there")
sys.meta_path.insert(0, Blocked())
import numpy as np
from pathlib import Path
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, measure, train
from export.program.runtime import TrainingProgram
program = TrainingProgram.load(Path(sys.argv[1]))
with np.load(sys.argv[2]) as file:
    given = dict(file)
examples = DeviceExamples(given.pop("x"), given.pop("y"))
outcome = train(ProgramRound(program, {}, given, examples, RoundIdentity("ada", 1)))
counted = measure(program, outcome.client, examples)
np.savez(sys.argv[3], **outcome.client, **outcome.upload, counted=counted["confusion"].sum())
assert not {"torch", "onnx", "safetensors"} & set(sys.modules)
"""


def test_a_process_without_torch_trains_to_the_same_bits(tmp_path: Path) -> None:
    parts = Parts("fedpac")
    (tmp_path / "program.zip").write_bytes(small_program("fedpac")[1])
    np.savez(tmp_path / "given.npz", x=parts.examples.x, y=parts.examples.y, **parts.broadcast)
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *(str(tmp_path / n) for n in ("program.zip", "given.npz", "out.npz"))],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    whole = train(parts.begin())
    with np.load(tmp_path / "out.npz") as file:
        assert int(file["counted"]) == 11
        for name, value in {**whole.client, **whole.upload}.items():
            assert np.array_equal(file[name], value), name


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="expected a program"):
        TrainingProgram.load(tmp_path / "nowhere.zip")
