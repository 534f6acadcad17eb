"""The commands `arena run`, `arena render`, `arena cell` and `arena replay`."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from gaitway.command_line import CommandLine
from gaitway.errors import ExitCode
from gaitway.files import write_file
from gaitway.terminal import ProgressDisplay
from gaitway.window_cache import default_cache_dir
from sim.cli.command import CacheOption, cli_errors, console, taking
from sim.cli.sweep import CellDisplay
from sim.errors import SettingsError
from sim.results.run_directory import RunDirectory
from sim.sweep.arena.cells import FOLDER as TABLES
from sim.sweep.arena.cells import ArenaCell, pretrained_key, read_declaration, with_pretrained
from sim.sweep.arena.measures import FOLDER as SUMMARIES
from sim.sweep.arena.measures import MEASURES_OF_NEW, CellSummary, read_summaries, summarize
from sim.sweep.arena.rendering import (
    FIGURES,
    render,
    render_figures,
    render_marks,
    render_measures,
)
from sim.sweep.arena.running import Places, commit_name, differences, draw_cell, run_table
from sim.sweep.grid import Cell
from sim.sweep.processes import CellPhase, run_cells

DOCS = Path("docs")
MARKED = (*(Path(f"docs/{name}.md") for name in ("methods", "privacy")), Path("README.md"))
"""Documents with rendered numbers between marks."""

app = CommandLine(help="Run and render the tables of results that experiments/ declares.")

Root = Annotated[Path | None, typer.Option(help="Folder or archive of the data; not needed for generated data.")]
Runs = Annotated[Path, typer.Option(help="Folder of the runs; the same command resumes them.")]
RUNS = Path("runs/arena")


@dataclass(frozen=True)
class TableArguments:
    """The options of `arena run`."""

    name: Annotated[str, typer.Argument(help="A table: experiments/NAME.toml.")]
    data_root: Root = None
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Concurrent runs, one thread each.")] = 1
    only_set: Annotated[list[str] | None, typer.Option("--set", help="Only this data set; repeatable.")] = None
    arm: Annotated[list[str] | None, typer.Option(help="Only this arm; repeatable.")] = None
    device: Annotated[str, typer.Option(help="cpu or cuda; several runs share a GPU, best under NVIDIA's MPS.")] = "cpu"
    runs: Runs = RUNS
    cache: CacheOption = None


@app.command("run")
@taking(TableArguments)
def run_command(args: TableArguments) -> None:
    """Run a table's cells that have no summary yet; the same command resumes after a crash.

    For example: python -m sim arena run analytic --data-root ../shared/data --jobs 2
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with cli_errors():
        declaration = read_declaration(TABLES / f"{args.name}.toml")
        _check_names("--set", args.only_set, list(declaration.sets))
        _check_names("--arm", args.arm, list(declaration.arms))

        def wanted(cell: ArenaCell) -> bool:
            return (not args.only_set or cell.group in args.only_set) and (not args.arm or cell.arm in args.arm)

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ProgressDisplay(*columns, console=console) as bars:
            display = CellDisplay(bars, None)
            failed = run_table(
                declaration,
                Places(args.runs, SUMMARIES, args.data_root, args.cache or default_cache_dir(), args.device),
                args.jobs,
                only=wanted,
                show=display.show,
            )
    for key, reason in failed.items():
        console.print(f"[bold red]{escape(key)} failed:[/bold red] {escape(reason)}", soft_wrap=True)
    if failed:
        raise typer.Exit(ExitCode.FAILED)
    console.print("All cells are done; `python -m sim arena render` writes the tables.")


def _check_names(option: str, given: list[str] | None, known: list[str]) -> None:
    if strange := sorted(set(given or []) - set(known)):
        raise SettingsError(f"{option} {strange[0]}: the table has {', '.join(map(repr, known))}")


@app.command("render")
def render_command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if a page is out of date.")
    ] = False,
) -> None:
    """Write the page of results, its figures, and the numbers between marks in other pages, from the summaries
    alone."""
    with cli_errors():
        known = read_summaries(SUMMARIES)
        pages = {DOCS / "results.md": render(TABLES, known), DOCS / "measures.csv": render_measures(TABLES, known)}
        pages |= {FIGURES / name: text for name, text in render_figures(TABLES, known).items()}
        for path in filter(Path.is_file, MARKED):
            pages[path] = render_marks(path.read_text("utf-8"), TABLES, known)
        stale = [path for path, text in pages.items() if not path.is_file() or path.read_text("utf-8") != text]
        if check and stale:
            words = f"{stale[0]} doesn't match the summaries; run `python -m sim arena render`"
            console.print(f"[bold red]failed:[/bold red] {escape(words)}", soft_wrap=True)
            raise typer.Exit(ExitCode.FAILED)
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, pages[path].encode())
            console.print(f"Written: [bold]{path}[/bold]")


@app.command("cell")
def cell_command(key: Annotated[str, typer.Argument(help="A summary's name in docs/results.")]) -> None:
    """Print the command that reproduces a cell, after that of its pretraining if it has one, and its result."""
    with cli_errors():
        summary = _summary(key)
        first = pretrained_key(summary.arguments)
        for name in filter(None, (first, key)):
            words = with_pretrained(_summary(name).arguments, Path("RUNS"))
            out = f"RUNS/{name}" if first else "DIR"
            typer.echo(shlex.join(["python", "-m", "sim", "run", *words, "--data-root", "DATA", "--out", out]))
        for name, value in summary.measures.items():
            typer.echo(f"{name}: {'none' if value is None else f'{value:.4f}'}")
        typer.echo(f"made on {summary.date} from commit {summary.commit}: {summary.hardware}")


@app.command("replay")
def replay_command(
    key: Annotated[str | None, typer.Argument(help="A summary's name (default: a random one).")] = None,
    data_root: Root = None,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Only draw among runs that took at most this long.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    cache: CacheOption = None,
) -> None:
    """Rerun a cell, and fail if its scores differ from the summary."""
    with cli_errors(), tempfile.TemporaryDirectory() as folder:
        known = read_summaries(SUMMARIES)
        chosen = key or draw_cell(known, max_seconds, seed)
        before = _summary(chosen)
        now = _made_again(chosen, before, Path(folder), data_root, cache or default_cache_dir())
    found = differences(before, now)
    for score in found:
        console.print(f"[red]{score.measure}: the summary has {score.before}, this run {score.now}[/red]")
    if before.data_sha256 != now.data_sha256:
        console.print("The data differ from the summary's: the files or the pipeline have another version.")
    if found:
        raise typer.Exit(ExitCode.FAILED)
    console.print(f"{chosen}: the same scores.")


def _summary(key: str) -> CellSummary:
    known = read_summaries(SUMMARIES)
    if key not in known:
        raise SettingsError(f"no summary in {SUMMARIES} is named {key!r}; there are {len(known)}")
    return known[key]


def _made_again(key: str, before: CellSummary, folder: Path, data_root: Path | None, cache: Path) -> CellSummary:
    if first := pretrained_key(before.arguments):
        _made_again(first, _summary(first), folder, data_root, cache)
    where = ["--cache", str(cache), *(["--data-root", str(data_root)] if data_root else [])]
    scores_new_users = any(before.measures.get(name) is not None for name in MEASURES_OF_NEW)
    less = ["--no-figures", *([] if scores_new_users else ["--no-new-users"])]
    arguments = (*with_pretrained(before.arguments, folder), *where, *less)
    for cell, status in run_cells([Cell(key, {}, arguments)], folder, 1):
        if status.phase is CellPhase.FAILED:
            raise SettingsError(f"{cell.name} failed: {status.reason}")
    return summarize(RunDirectory(folder / key), before.arguments, commit_name())
