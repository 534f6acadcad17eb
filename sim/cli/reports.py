"""Commands that look at finished runs: analyse, compare, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gaitway.window_cache import default_cache_dir
from sim.cli.command import CacheOption, bar, cli_errors, console
from sim.cli.sweep import SelectOption
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
) -> list[str]:
    """Look behind the scores: t-SNE, prototypes, attention, margins, entropy maps, loss, gradients, MMD and FFD.

    For example: python -m sim analyse runs/motionsense-fedali --data-root ../shared/data
    --centralized runs/motionsense-centralized --against runs/motionsense-fedavg
    """
    with cli_errors():
        pages = _pages(runs, data_root, cache or default_cache_dir(), centralized, against, together)
    for page in pages:
        console.print(f"Analysis: [bold]{escape(str(page))}[/bold]", soft_wrap=True)
    return [*map(str, pages)]


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


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs, or of sweeps.")],
    out: Annotated[Path, typer.Option(help="Where the comparison is written.")] = Path("comparison"),
    baseline: Annotated[
        str | None, typer.Option(help="Method or row that the others are tested against; by default fedavg.")
    ] = None,
    select: SelectOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json, and all else to stderr.")] = False,
) -> None:
    """Put runs into one table, test them against a baseline seed by seed, and write HTML, Markdown and JSON."""
    from sim.reports.comparison.compare import compare as compare_runs
    from sim.reports.comparison.tables import print_comparison

    console.stderr = as_json
    with cli_errors():
        print_comparison(compare_runs(runs, out, baseline, select), console)
        console.print(f"Written to [bold]{out}[/bold]")
        if as_json:
            print((out / "comparison.json").read_text("utf-8"), end="")


def report(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Draw a run's plots and write its report.html again."""
    from sim.reports.figures.run_figures import draw_run
    from sim.reports.report import write_report
    from sim.results.run_directory import RunDirectory

    with cli_errors():
        directory = RunDirectory(run)
        draw_run(directory)
        console.print(f"Report: [bold]{write_report(directory)}[/bold]")
