"""`python -m export program`: a plan becomes a program, if it passes its gate."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from export.program.errors import ProgramError
from export.program.exporter import Federation, export_program, federation_of
from export.program.parity import RoundParity, check_round, generated_examples
from export.program.runtime import TrainingProgram
from federation.plan.plan import read_plan
from federation.records import Examples
from gaitway.files import write_file


def write_program_file(plan: Path, out: Path, examples: Path | None) -> Table:
    """Export a plan's program, hold a round of it against torch's, and write it.

    Raises:
        GaitwayError: if the plan is not one that a program can be made of, or the gate is not passed.
    """
    federation = federation_of(read_plan(plan))
    begun = time.monotonic()
    data = export_program(federation)
    seconds = time.monotonic() - begun
    program = TrainingProgram.load(data)
    batch = federation.setup.training.batch_size
    given = generated_examples(federation, batch + batch // 2 + 1) if examples is None else _read(examples, federation)
    parity = check_round(federation, program, given)
    write_file(out, data)
    return _table(out, program, parity, seconds)


def _read(path: Path, federation: Federation) -> Examples:
    expected = f"an .npz with x (n, {', '.join(map(str, federation.x))}) and y (n,)"
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = np.asarray(file["x"], np.float32), np.asarray(file["y"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ProgramError(f"{path}: {error}; expected {expected}") from None
    if x.shape[1:] != federation.x or y.shape != x.shape[:1]:
        raise ProgramError(f"{path}: x {x.shape}, y {y.shape}; expected {expected}")
    return Examples(torch.from_numpy(x), torch.from_numpy(y))


def _table(out: Path, program: TrainingProgram, parity: RoundParity, seconds: float) -> Table:
    table = Table(title=f"{out}: {out.stat().st_size / 1e3:.0f} kB, exported in {seconds:.1f} s", show_header=False)
    for name, entry in program.manifest.graphs.items():
        table.add_row(name, f"{entry.nodes:,} nodes" if entry.file else "computes nothing")
    table.add_row(
        f"after {parity.steps} steps",
        f"|Δ| {parity.difference:.1e} from torch; of rounding alone {parity.rounding:.1e}; "
        f"of any tensor at most {parity.ratio:.1f} times",
    )
    for name, score in parity.scores.items():
        table.add_row(name, f"{score:.4f}; torch {parity.torch_scores[name]:.4f}")
    return table
