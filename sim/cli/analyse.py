"""The command `analyse`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sim.cli.terminal import bar, cli_errors, console
from sim.errors import SettingsError


def analyse(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Directories of finished runs.")],
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder or archive of the recordings that the runs were made from; only generated data need none."
        ),
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where processed windows are kept.")] = Path(".cache/windows"),
    centralized: Annotated[
        Path | None,
        typer.Option(help="Also measure MMD to the features of this run of the method centralized on the same data."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Also compare that MMD with this run's: FFD(DIR, AGAINST). Needs --centralized.")
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Measure gradient dissimilarity at the server's model.")
    ] = False,
    sensitivity: Annotated[
        Path | None,
        typer.Option(help="Instead: draw the scores over the options that the runs differ in, into this folder."),
    ] = None,
) -> None:
    """Look behind the scores: t-SNE, prototypes, attention, margins, entropy maps, MMD, FFD, gradients; or sensitivity.

    For example: python -m sim analyse runs/motionsense-fedali --data-root ../shared/data
    --centralized runs/motionsense-centralized --against runs/motionsense-fedavg
    """
    with cli_errors():
        if sensitivity is not None:
            pages = [_sensitivity(runs, sensitivity)]
        else:
            pages = _each(runs, data_root, cache, centralized, against, gradients)
        for page in pages:
            console.print(f"Analysis: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


def _sensitivity(runs: Sequence[Path], folder: Path) -> Path:
    from sim.reports.analysis.analyse import write_page
    from sim.reports.analysis.sensitivity import sensitivity

    return write_page(folder, f"Sensitivity over {len(runs)} runs", sensitivity(runs), {})


def _each(
    runs: Sequence[Path],
    root: Path | None,
    cache: Path,
    centralized: Path | None,
    against: Path | None,
    gradients: bool,
) -> list[Path]:
    from sim.reports.analysis.analyse import analyse as analyse_run
    from sim.reports.analysis.finished import FinishedRun, open_run

    if against and not centralized:
        raise SettingsError(
            "--against compares distances to a centralized model's features; give --centralized DIR too"
        )
    with bar("opening the runs") as (shown, line):

        def progress(what: str, done: int, total: int) -> None:
            shown.update(line, description=escape(what), completed=done, total=total or None)

        def opened(path: Path | None) -> FinishedRun | None:
            return open_run(path, root, cache, progress) if path else None

        reference, baseline = opened(centralized), opened(against)
        return [
            analyse_run(
                open_run(path, root, cache, progress),
                centralized=reference,
                against=baseline,
                with_gradients=gradients,
            )
            for path in runs
        ]
