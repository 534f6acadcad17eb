"""`sweep.json`: what a sweep is made of and where each cell stands; a sweep is resumed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gaitway.errors import first_problem
from gaitway.files import write_file
from sim.errors import RunDirectoryError
from sim.experiment.settings import ENVIRONMENT
from sim.sweep.grid import Cell
from sim.sweep.processes import CellPhase, CellStatus

FILE = "sweep.json"
# Where and how fast a cell runs may change from one sweep to the next; what it computes may not.
ENVIRONMENT_OPTIONS = ENVIRONMENT | {"cache", "checkpoint_every", "client_store_dir", "data_root", "out"}

Parse = Callable[[Sequence[str]], Mapping[str, Any]]


class SavedCell(BaseModel):
    """One cell of the file."""

    name: str
    options: dict[str, str]
    arguments: tuple[str, ...]
    phase: CellPhase = CellPhase.WAITING
    seconds: float = 0.0
    reason: str = ""


class SavedSweep(BaseModel):
    """The file."""

    version: int = 1
    cells: tuple[SavedCell, ...]


@dataclass
class SweepRecord:
    """The cells of a sweep in its folder, and where each one stands."""

    folder: Path
    cells: Sequence[Cell]
    earlier: Sequence[SavedCell] = ()  # cells that an earlier sweep made here and this one has not
    statuses: dict[str, CellStatus] = field(default_factory=dict)

    def note(self, cell: Cell, status: CellStatus) -> None:
        """Take down where a cell stands, on the disk too."""
        before = self.statuses.get(cell.name)
        self.statuses[cell.name] = status
        if before is None or before.phase != status.phase:
            self.write()

    def write(self) -> None:
        """Write the file whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        saved = SavedSweep(cells=(*self.earlier, *map(self._saved, self.cells)))
        write_file(self.folder / FILE, (saved.model_dump_json(indent=1) + "\n").encode())

    def _saved(self, cell: Cell) -> SavedCell:
        status = self.statuses.get(cell.name, CellStatus(CellPhase.WAITING))
        return SavedCell(
            name=cell.name,
            options=dict(cell.options),
            arguments=cell.arguments,
            phase=status.phase,
            seconds=status.seconds,
            reason=status.reason,
        )

    def in_phase(self, *phases: CellPhase) -> list[Cell]:
        """Return the cells that stand so."""
        return [
            cell for cell in self.cells if self.statuses.get(cell.name, CellStatus(CellPhase.WAITING)).phase in phases
        ]


def open_sweep(folder: Path, cells: Sequence[Cell], parse: Parse) -> SweepRecord:
    """Begin a sweep's record, or take up the one in `folder`, to which cells may be added.

    Raises:
        RunDirectoryError: if the folder has a cell of the same name that computes something else.
    """
    known = {cell.name: cell for cell in saved_cells(folder)}
    for cell in cells:
        if cell.name in known and (why := _difference(known.pop(cell.name).arguments, cell.arguments, parse)):
            raise RunDirectoryError(f"{folder} holds a sweep whose cell {cell.name} has {why}; choose another --out")
    return SweepRecord(folder, cells, tuple(known.values()))


def saved_cells(folder: Path) -> tuple[SavedCell, ...]:
    """Read the cells of a sweep; none where there is no sweep yet.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    try:
        return SavedSweep.model_validate_json(path.read_bytes()).cells
    except ValidationError as error:
        raise RunDirectoryError(f"{path} is damaged: {first_problem(error)}; delete it to begin again") from error


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of a sweep's cells that have begun."""
    return [folder / cell.name for cell in saved_cells(folder) if (folder / cell.name / "config.json").is_file()]


def _difference(old: Sequence[str], new: Sequence[str], parse: Parse) -> str:
    """Name the first option that differs between two runs' arguments, apart from where and how fast they run."""
    return next(_differences(parse(old), parse(new)), "") if tuple(old) != tuple(new) else ""


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after} - ENVIRONMENT_OPTIONS):
        if before.get(name) != after.get(name):
            yield f"{name.rstrip('_')} = {before.get(name)!r}, this one {after.get(name)!r}"
