"""The command line of the simulation: run, sweep, compare, report, presets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from federation.errors import FederationError
from har_pipeline import DATASETS, PipelineError, dataset_labels
from models.errors import ModelError
from sim.errors import SimError
from sim.presets import PRESETS, with_defaults
from sim.sweep.cli import sweep

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode="rich")
console = Console()

OPTION_GROUPS = ("Data", "Model and method", "Training", "Running")
Text = str | None
_DATA, _METHOD, _TRAINING, _RUNNING = OPTION_GROUPS


@app.command("run")
def run_command(
    out: Annotated[Path, typer.Option(help="Directory of the run; the same command goes on with it after a kill.")],
    data: Annotated[Text, typer.Option(help=f"One of {', '.join(DATASETS)}.", rich_help_panel=_DATA)] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the recordings.", rich_help_panel=_DATA)
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where processed windows are kept.", rich_help_panel=_DATA)] = Path(
        ".cache/windows"
    ),
    split: Annotated[
        Text, typer.Option(help="temporal (no leak), random80 or kfold7_3.", rich_help_panel=_DATA)
    ] = None,
    normalization: Annotated[
        Text, typer.Option(help="federated, client or pooled statistics.", rich_help_panel=_DATA)
    ] = None,
    model: Annotated[Text, typer.Option(help="hart, hart_alp, cnn or cnn_alp.", rich_help_panel=_METHOD)] = None,
    method: Annotated[Text, typer.Option(help="local, fedavg, fedprox, fedali.", rich_help_panel=_METHOD)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A method's hyper-parameter (mu=0.1), or model.KEY, data.KEY, pipeline.KEY, rounds.KEY; repeatable.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, rich_help_panel=_TRAINING)] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs a round.", rich_help_panel=_TRAINING)] = None,
    batch: Annotated[int | None, typer.Option(min=1, rich_help_panel=_TRAINING)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_TRAINING)] = None,
    optimizer: Annotated[Text, typer.Option(help="adam or sgd.", rich_help_panel=_TRAINING)] = None,
    momentum: Annotated[float | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    weight_decay: Annotated[float | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    clients_per_round: Annotated[
        int | None, typer.Option(min=1, help="Default: every client.", rich_help_panel=_TRAINING)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="One seed repeats a run.", rich_help_panel=_TRAINING)] = None,
    preset: Annotated[Text, typer.Option(help="Start from a preset; see `presets`.", rich_help_panel=_RUNNING)] = None,
    engine: Annotated[
        Text, typer.Option(help="serial (one client after the other) or stacked.", rich_help_panel=_RUNNING)
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="Clients stacked at a time.", rich_help_panel=_RUNNING)] = None,
    device: Annotated[Text, typer.Option(help="cpu or cuda.", rich_help_panel=_RUNNING)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Torch's threads.", rich_help_panel=_RUNNING)] = None,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Score the clients every so many rounds.", rich_help_panel=_RUNNING)
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=_RUNNING)
    ] = 60.0,
) -> None:
    """Replay a federation, and leave its scores, checkpoints, plots, models and report in a directory.

    For example: python -m sim run --data motionsense --data-root ../shared/data --model hart_alp --method fedali
    --rounds 20 --out runs/motionsense-fedali
    """
    given = {
        "data": data,
        "split": split,
        "normalization": normalization,
        "model": model,
        "method": method,
        "set": set_ or [],
        "rounds": rounds,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "clients_per_round": clients_per_round,
        "seed": seed,
        "engine": engine,
        "chunk": chunk,
        "device": device,
        "threads": threads,
        "eval_every": eval_every,
    }
    with _explained():
        _run(with_defaults(preset, given), preset, data_root, cache, out, checkpoint_every)


app.command()(sweep)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")],
    out: Annotated[Path, typer.Option(help="Where the comparison is written.")] = Path("comparison"),
) -> None:
    """Put runs into one table (mean ± std, best bold, second underlined), as HTML, Markdown and JSON."""
    from sim.compare import compare as compare_runs
    from sim.tables import print_comparison

    with _explained():
        print_comparison(compare_runs(runs, out))
        console.print(f"Written to [bold]{out}[/bold]")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Draw a run's plots and write its report.html again."""
    from sim.plots import draw_run
    from sim.report import write_report
    from sim.run_directory import RunDirectory

    with _explained():
        directory = RunDirectory(run)
        draw_run(directory)
        console.print(f"Report: [bold]{write_report(directory)}[/bold]")


@app.command()
def presets() -> None:
    """List the named starting points."""
    table = Table("preset", "what it is", "options", show_lines=True)
    for name, preset in PRESETS.items():
        table.add_row(name, preset.about, " ".join(f"{key}={value}" for key, value in preset.options.items()))
    console.print(table)


def _run(
    options: dict[str, Any], preset: str | None, root: Path | None, cache: Path, out: Path, checkpoint_s: float
) -> None:
    from sim.options import assignments, run_settings
    from sim.plots import draw_run
    from sim.report import write_report
    from sim.run import load_data, run
    from sim.run_directory import RunDirectory
    from sim.tables import print_summary

    labels = dataset_labels(options["data"], assignments(options["set"])["data"] or None)
    settings = run_settings(options, labels, preset)
    start = time.perf_counter()
    with _bar(f"windows of {settings.data}") as (bar, task):

        def windows(done: int, client: str) -> None:
            bar.update(task, completed=done, description=f"windows of {settings.data}, client {client}")

        data = load_data(settings, root, cache, windows)
    seconds = time.perf_counter() - start
    with _bar(f"{settings.method['name']} · {settings.model.name}", settings.rounds.rounds) as (bar, task):

        def progress(kind: str, what: dict[str, Any]) -> None:
            if kind == "round":
                bar.update(task, completed=what["round"], description=_line(what))

        run(settings, data, out, data_seconds=seconds, checkpoint_every_s=checkpoint_s, report=progress)
    directory = RunDirectory(out)
    draw_run(directory)
    path = write_report(directory)
    print_summary(directory)
    console.print(f"Report: [bold]{path}[/bold]")


def _line(record: dict[str, Any]) -> str:
    own = record["personalization"]
    score = f"personalization {100 * own['macro_f1']['mean']:.2f}" if own else ""
    return f"round {record['round']} loss {record['train_loss']:.3f} {score}"


@contextmanager
def _bar(title: str, total: int | None = None) -> Iterator[tuple[Progress, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        yield bar, bar.add_task(title, total=total)


@contextmanager
def _explained() -> Iterator[None]:
    """Print errors that the user can mend as one line and exit with 2."""
    try:
        yield
    except (SimError, FederationError, PipelineError, ModelError, OSError) as error:
        console.print(f"[bold red]error:[/bold red] {error}", soft_wrap=True)
        raise typer.Exit(2) from error
