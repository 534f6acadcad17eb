"""The command `analyse`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gaitway.window_cache import default_cache_dir
from sim.cli.terminal import CacheOption, bar, cli_errors, console
from sim.errors import SettingsError


def analyse(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Directories of finished runs.")],
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder or archive of the recordings that the runs were made from; only generated data need none."
        ),
    ] = None,
    cache: CacheOption = None,
    centralized: Annotated[
        Path | None,
        typer.Option(help="Also measure MMD to the features of this run of the method centralized on the same data."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Also compare that MMD with this run's: FFD(DIR, AGAINST). Needs --centralized.")
    ] = None,
    together: Annotated[
        Path | None,
        typer.Option(
            help="Instead: draw the runs together into this folder: by method what they measured in each round, and "
            "their scores over the options that they differ in."
        ),
    ] = None,
) -> None:
    """Look behind the scores: t-SNE, prototypes, attention, margins, entropy maps, loss, gradients, MMD and FFD.

    For example: python -m sim analyse runs/motionsense-fedali --data-root ../shared/data
    --centralized runs/motionsense-centralized --against runs/motionsense-fedavg
    """
    with cli_errors():
        for page in _pages(runs, data_root, cache or default_cache_dir(), centralized, against, together):
            console.print(f"Analysis: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


def _pages(
    runs: Sequence[Path],
    root: Path | None,
    cache: Path,
    centralized: Path | None,
    against: Path | None,
    together: Path | None,
) -> list[Path]:
    from sim.reports.analysis.analyse import analyse as analyse_run
    from sim.reports.analysis.analyse import analyse_together
    from sim.reports.analysis.finished import FinishedRun, open_run

    if against and not centralized:
        raise SettingsError(
            "--against compares distances to a centralized model's features; give --centralized DIR too"
        )
    with bar("opening the runs") as (shown, line):

        def progress(what: str, done: int, total: int) -> None:
            shown.update(line, description=escape(what), completed=done, total=total or None)

        def opened(path: Path) -> FinishedRun:
            return open_run(path, root, cache, progress)

        reference, baseline = (opened(path) if path else None for path in (centralized, against))
        if together is not None:
            return [analyse_together(runs, together, opened, reference)]
        return [analyse_run(opened(path), centralized=reference, against=baseline) for path in runs]
