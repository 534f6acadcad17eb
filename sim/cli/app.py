"""The command line of the simulation: run, sweep, arena, compare, analyse, attack, report, presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gaitway.command_line import CommandLine
from sim.cli.analyse import analyse
from sim.cli.arena import app as arena
from sim.cli.attack import attack
from sim.cli.presets import presets
from sim.cli.pretrain import pretrain
from sim.cli.run import run
from sim.cli.sweep import SelectOption, sweep
from sim.cli.terminal import cli_errors, console

app = CommandLine(help=__doc__, rich_markup_mode="rich")
for command in (run, sweep, presets, pretrain, analyse, attack):
    app.command()(command)
app.add_typer(arena, name="arena")


@app.command()
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
    from sim.reports.comparison.printed import print_comparison

    console.stderr = as_json
    with cli_errors():
        print_comparison(compare_runs(runs, out, baseline, select), console)
        console.print(f"Written to [bold]{out}[/bold]")
        if as_json:
            print((out / "comparison.json").read_text("utf-8"), end="")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Draw a run's plots and write its report.html again."""
    from sim.reports.figures.run_figures import draw_run
    from sim.reports.report import write_report
    from sim.results.run_directory import RunDirectory

    with cli_errors():
        directory = RunDirectory(run)
        draw_run(directory)
        console.print(f"Report: [bold]{write_report(directory)}[/bold]")
