"""The command `sweep`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn

from gaitway.errors import ExitCode
from gaitway.interrupts import resumable
from gaitway.terminal import Console, ProgressDisplay
from sim.cli.command import taking
from sim.errors import SettingsError, SimError
from sim.scores.records import Selection
from sim.sweep.grid import Cell, SweepAxis, axis, cells, condition
from sim.sweep.on_ray import run_anywhere
from sim.sweep.processes import CellPhase, CellStatus, SweepRecord, command, is_finished, log_path, open_sweep

console = Console()

SelectOption = Annotated[
    Selection | None,
    typer.Option(
        help="Which round's scores are compared: chosen by validation, the last, or the best by test as in the "
        "papers. Default: by validation if all runs have it, else the last."
    ),
]


@dataclass(frozen=True)
class SweepArguments:
    """The options of `sweep`."""

    context: typer.Context
    out: Annotated[Path, typer.Option(help="Folder of the sweep, with one folder per cell.")]
    over: Annotated[
        list[str],
        typer.Option(help="KEY=V1,V2…: an option of `run`, or method.KEY, model.KEY, … of its --set; repeatable."),
    ]
    when: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,…:KEY=V1,…",
            help="If the first holds, sweep over the second too: method=fedali:model=har_cnn_alp; repeatable.",
        ),
    ] = None
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Concurrent runs, one thread each.")] = 1
    baseline: Annotated[
        str | None,
        typer.Option(help="Method that the final comparison tests the others against (default: no tests)."),
    ] = None
    select: SelectOption = None
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON at the end, and everything else to stderr.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print each cell's command.")] = False
    run_options: Annotated[
        list[str] | None, typer.Argument(help="After `--`: options of every `run` (default: none).")
    ] = None


@taking(SweepArguments)
def sweep(args: SweepArguments) -> None:
    """Run every combination of some options, and compare the results; the same command resumes after a crash.

    For example: python -m sim sweep --out runs/motionsense --over method=fedavg,fedprox,fedali --over seed=0,1,2
    --when method=fedali:model=har_cnn_alp --when method=fedprox:method.mu=0.01,0.1 --jobs 2
    -- --data motionsense --data-root ../shared/data --rounds 20
    """
    console.stderr = args.as_json
    run = _RunOptions(args.context)
    try:
        made = cells(_axes(args.over), [condition(text) for text in args.when or []], args.run_options or [], run.flags)
        run.check(made, args.run_options or [])
        record = open_sweep(args.out, made, run.parse)
        if args.dry_run:
            _print_commands(record)
            return
        with resumable("Run the same command again to resume."):
            _play(record, args.jobs)
        _compare(record, args.baseline, args.select, args.as_json)
    except (SimError, OSError) as error:
        console.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(ExitCode.REFUSED) from error
    if _print_failures(record):
        raise typer.Exit(ExitCode.FAILED)


class _RunOptions:
    """The options of the command `run`, from its own parser."""

    def __init__(self, context: typer.Context) -> None:
        group: Any = context.find_root().command
        self._command = group.commands["run"]
        long = {name: flag for parameter in self._command.params for name, flag in _long_flags(parameter.opts)}
        self.flags = {name: flag for name, flag in long.items() if name not in ("out", "set")}

    def parse(self, arguments: Sequence[str]) -> Mapping[str, Any]:
        """Read the arguments of a run as `run` does; raises typer's UsageError."""
        parsed = self._command.make_context("run", [*arguments, "--out", "DIR"])
        return dict(parsed.params)

    def check(self, made: Sequence[Cell], base: Sequence[str]) -> None:
        """Check every cell's arguments before the first run starts; raise SettingsError or UsageError."""
        common = self._command.make_context("run", [*base, "--out", "DIR"])
        given = {name for name in common.params if common.get_parameter_source(name).name == "COMMANDLINE"}
        for key in sorted(given - {"out"}):
            if all(key in cell.options for cell in made):
                raise SettingsError(f"{key} is both swept over and given after `--`; give it only once")
        for cell in made:
            self.parse(cell.arguments)


def _long_flags(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name.removeprefix("--").replace("-", "_"), name) for name in names if name.startswith("--")]


def _axes(texts: Sequence[str]) -> list[SweepAxis]:
    return [_every_method() if text == "method=all" else axis(text) for text in texts]


def _every_method() -> SweepAxis:
    from federation.methods import METHODS

    return SweepAxis("method", tuple(METHODS))


def _print_commands(record: SweepRecord) -> None:
    for cell in record.cells:
        done = "  # finished" if is_finished(record.folder / cell.name) else ""
        typer.echo(shlex.join(["python", *command(cell, record.folder)]) + done)


def _play(record: SweepRecord, jobs: int) -> None:
    """Run the cells under a live display; an interrupt ends the runs too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    record.write()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProgressDisplay(*columns, console=console) as bars,
        closing(run_anywhere(record.cells, record.folder, jobs)) as changes,
    ):
        display = CellDisplay(bars, len(record.cells))
        try:
            for cell, status in changes:
                record.note(cell, status)
                display.show(cell, status)
        except KeyboardInterrupt:
            console.print("Each run saves its current round; press Ctrl-C again to stop them now.")
            raise


class CellDisplay:
    """One bar for the sweep and one for each running cell."""

    def __init__(self, bars: ProgressDisplay, total: int | None) -> None:
        self._bars = bars
        self._all = bars.add_task("cells", total=total)
        self._tasks: dict[str, TaskID] = {}

    def show(self, cell: Cell, status: CellStatus) -> None:
        if cell.name not in self._tasks:
            self._tasks[cell.name] = self._bars.add_task(escape(cell.name), total=None)
        task = self._tasks[cell.name]
        self._bars.update(task, completed=status.rounds, total=status.of)
        if status.phase is not CellPhase.RUNNING:
            self._bars.remove_task(task)
            self._bars.advance(self._all)
            colour = "red" if status.phase is CellPhase.FAILED else "green"
            took = "" if status.phase is CellPhase.SKIPPED else f" in {status.seconds:.0f} s"
            console.print(f"[{colour}]{status.phase}[/{colour}] {escape(cell.name)}{took}")


def _compare(record: SweepRecord, baseline: str | None, select: Selection | None, as_json: bool) -> None:
    finished = record.in_phase(CellPhase.FINISHED, CellPhase.SKIPPED)
    if not finished:
        return
    from sim.reports.comparison.compare import compare
    from sim.reports.comparison.tables import print_comparison

    out = record.folder / "comparison"
    found = compare([record.folder / cell.name for cell in finished], out, baseline, select)
    print_comparison(found, console)
    console.print(f"Comparison: [bold]{out / 'comparison.html'}[/bold]")
    if as_json:
        print((out / "comparison.json").read_text("utf-8"), end="")


def _print_failures(record: SweepRecord) -> bool:
    """List the failed cells, each with its reason and its log; return whether there are any."""
    failed = record.in_phase(CellPhase.FAILED)
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(record.cells)} cells failed[/bold red]; the others are done:")
    for cell in failed:
        console.print(f"  {escape(cell.name)}: {escape(record.statuses[cell.name].reason)}", soft_wrap=True)
        console.print(f"    [dim]{escape(str(log_path(cell, record.folder)))}[/dim]", soft_wrap=True)
    return bool(failed)
