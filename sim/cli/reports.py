"""Commands for finished runs: analyse, compare, report."""

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
    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of finished runs.")],
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder or archive of the runs' recordings; not needed for generated data."),
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
            help="Instead, plot the runs together into this folder: their measurements per round by method, and their "
            "scores over the options in which they differ."
        ),
    ] = None,
) -> list[str]:
    """Analyse runs beyond their scores: t-SNE, prototypes, attention, margins, entropy maps, loss, gradients, MMD, FFD.

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
            "--against compares distances to a centralized model's features; also give --centralized DIR"
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
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs or sweeps.")],
    out: Annotated[Path, typer.Option(help="Folder for the comparison.")] = Path("comparison"),
    baseline: Annotated[
        str | None, typer.Option(help="Method or row to test the others against (default: fedavg).")
    ] = None,
    select: SelectOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print comparison.json, and everything else to stderr.")
    ] = False,
) -> None:
    """Compare runs in one table, test them against a baseline seed by seed, and write HTML, Markdown and JSON."""
    from sim.reports.comparison.compare import compare as compare_runs
    from sim.reports.comparison.tables import print_comparison

    console.stderr = as_json
    with cli_errors():
        print_comparison(compare_runs(runs, out, baseline, select), console)
        console.print(f"Written to [bold]{out}[/bold]")
        if as_json:
            print((out / "comparison.json").read_text("utf-8"), end="")


def report(run: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Redraw a run's plots and rewrite its report.html."""
    from sim.reports.figures.run_figures import draw_run
    from sim.reports.report import write_report
    from sim.results.run_directory import RunDirectory

    with cli_errors():
        directory = RunDirectory(run)
        draw_run(directory)
        console.print(f"Report: [bold]{write_report(directory)}[/bold]")
