"""The command `run`."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Unpack, get_args, get_type_hints

import typer
from rich.text import Text

from federation.tasks import TASKS
from federation.tasks.task import Task
from gaitway.interrupts import resumable
from gaitway.window_cache import default_cache_dir
from models.registry import starting_from_published
from sim.cli.options import describe, described_by, options_of, read_plan
from sim.cli.terminal import CACHE_HELP, bar, cli_errors, console, round_line
from sim.data.federated_data import FederatedData
from sim.data.partitions import PARTITIONS
from sim.data.sources import source_names
from sim.experiment import DEFAULTS, Experiment, field_of
from sim.presets import with_defaults
from sim.results.tracking import TRACKERS, RunCallback, trackers
from sim.run_options import DATA, METHOD, OPTIONS, RUNNING, Option, RunOptions, option_words

TITLES = {"engine": "Engine", "client_store": "Models", "attack": "Hostile"}
"""How what a run reports once is called where it is printed."""
_TYPES = get_type_hints(RunOptions)
_LISTED = {
    "data": [f"One of {', '.join(source_names())}."],
    "partition": [f"One of {', '.join(PARTITIONS)}."],
    "task": [f"One of {', '.join(TASKS)}."],
    "init": [f"With torchvision's: {', '.join(starting_from_published())}."],
}
"""What is added to an option's help from the tables."""


class Paths(NamedTuple):
    """Where a run reads and writes, which its numbers do not depend on."""

    out: Path
    root: Path | None
    cache: Path
    client_store_dir: Path | None


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer what `**options: Unpack[RunOptions]` stands for: it reads signatures, but not this part of them."""
    written = inspect.signature(command, eval_str=True).parameters.values()
    fixed = [each.replace(kind=each.KEYWORD_ONLY) for each in written if each.kind is not each.VAR_KEYWORD]
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, option))
        for name, option in OPTIONS.items()
    ]
    vars(command)["__signature__"] = inspect.Signature([*fixed, *own])
    command.__annotations__ = {each.name: each.annotation for each in (*fixed, *own)}
    return command


def _annotation(name: str, option: Option) -> Any:
    typed = _TYPES[name]
    kind = next((each for each in (bool, int, float, Path) if each in (typed, *get_args(typed))), str)
    flags = [option_words(name, True)[0] + "/" + option_words(name, False)[0]] if kind is bool else []
    default = ("on" if DEFAULTS[name] else "off") if kind is bool else DEFAULTS[name]
    words = [option.help, *_LISTED.get(name, ()), *([] if default is None else [f"Default: {default}."])]
    least = next((each.ge for each in field_of(option).metadata if hasattr(each, "ge")), None)
    minimum = least if kind in (int, float) else None
    described = typer.Option(*flags, help=" ".join(words), rich_help_panel=option.panel, min=minimum)
    return Annotated[kind | None, described]


@with_run_options
def run(
    out: Annotated[Path, typer.Option(help="Directory of the run; the same command resumes it after a crash.")],
    plan: Annotated[
        Path | None,
        typer.Option(
            help="The description of a federation, TOML or JSON, as `POST /v1/federations` takes it and every run "
            "directory holds it (plan.json); without it the defaults below; options and --set win over it.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Start from a preset; see `presets`. Without it the defaults below.", rich_help_panel=METHOD),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A method's hyper-parameter (mu=0.1), or model.KEY (model.2.KEY for the second of several), "
            "data.KEY, partition.KEY, pipeline.KEY, training.KEY, rounds.KEY, rollout.KEY, holdout.epochs; repeatable. "
            "As on a server, weights are capped and updates that go too far are left out: rounds.max_weight_ratio=null "
            "and rounds.norm_factor=null switch it off, as every preset does.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder or archive of the data; only generated data need none.", rich_help_panel=DATA),
    ] = None,
    describe_: Annotated[
        Path | None,
        typer.Option(
            "--describe",
            help="Instead of --data any recordings under --data-root: a TOML file that describes them, as "
            "`python -m har_pipeline describe` writes; the run keeps what it says. It stands for --data described "
            "and --set data.KEY for each of its keys.",
            rich_help_panel=DATA,
        ),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help=CACHE_HELP, rich_help_panel=DATA)] = None,
    client_store_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for --client-store disk; by default the run's.", rich_help_panel=RUNNING),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUNNING)
    ] = 60.0,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Also write the scores to {' or '.join(TRACKERS)}, if it is installed; repeatable. MLflow's server "
            "is that of MLFLOW_TRACKING_URI; TensorBoard's files are in the run's directory.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option(
            help="Draw the figures, which takes some seconds; `python -m sim report DIR` draws them later.",
            rich_help_panel=RUNNING,
        ),
    ] = True,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the summary as JSON at the end, and all else to stderr.", rich_help_panel=RUNNING
        ),
    ] = False,
    **options: Unpack[RunOptions],
) -> None:
    """Simulate a federation, and leave its scores, checkpoints, plots, models and report in a directory.

    For example: python -m sim run --data motionsense --data-root ../shared/data --model hart_alp --method fedali
    --rounds 20 --out runs/motionsense-fedali
    """
    paths = Paths(out, data_root, cache or default_cache_dir(), client_store_dir)
    console.stderr = as_json
    with cli_errors(), resumable("The same command goes on where it was."):
        federation = read_plan(plan) if plan else None
        options["set"] = set_ or []
        if describe_:
            options = described_by(describe_, options)
        chosen = with_defaults(preset, options, options_of(federation) if federation else None)
        experiment = describe(chosen, preset, federation)
        followers = trackers(log or [], out, lambda words: console.print(Text(words, style="yellow"), soft_wrap=True))
        summary = simulate(experiment, paths, checkpoint_every, followers, figures=figures)
    if as_json:
        print(json.dumps(summary, indent=1))


def simulate(
    experiment: Experiment,
    paths: Paths,
    checkpoint_s: float,
    callbacks: Sequence[RunCallback] = (),
    *,
    figures: bool = True,
) -> dict[str, Any]:
    """Read the data, run the rounds under a progress bar, write the report, and return the summary."""
    from federation.tasks import task_from_json
    from sim.reports.report import write_report
    from sim.reports.run_tables import new_clients_table
    from sim.reports.table import printed_table
    from sim.results.run_directory import RunDirectory
    from sim.results.tables import print_summary
    from sim.results.writing import writing
    from sim.run import run as run_experiment

    _tell_own_optimizer(experiment)
    learnt = task_from_json(experiment.task)
    start = time.perf_counter()
    data = _read(experiment, paths)
    seconds = time.perf_counter() - start
    for words in data.findings:
        console.print(Text(words, style="yellow"), soft_wrap=True, highlight=False)
    if not (paths.out / "config.json").exists():  # a resumed run has its image, and another's image stays its own
        _show_clients(data, learnt, paths.out, figures=figures)
    with bar(f"{experiment.method['name']} · {experiment.model.name}", experiment.rounds.rounds) as (shown, task):

        def progress(kind: str, what: dict[str, Any]) -> None:
            if title := TITLES.get(kind):
                console.print(f"{title}: {what['name']} ({what['reason']})")
            if kind == "round":
                if "paused" in what:
                    words = f"The run ends after round {what['round']}: {what['paused']}, the last one because: "
                    console.print(Text(words + what["failed"], style="yellow"), soft_wrap=True, highlight=False)
                shown.update(
                    task, completed=min(what["round"], experiment.rounds.rounds), description=round_line(what, learnt)
                )

        summary = run_experiment(
            experiment, data, paths.out,
            data_seconds=seconds, checkpoint_every_s=checkpoint_s, client_store_dir=paths.client_store_dir,
            report=progress, callbacks=callbacks,
        )  # fmt: skip
    directory = RunDirectory(paths.out)
    with writing("the figures and the report (report.html)", paths.out):
        if figures:
            from sim.reports.figures.run_figures import draw_run

            draw_run(directory)
        path = write_report(directory, figures=figures)
    print_summary(directory, console)
    if new := new_clients_table(directory):
        console.print(printed_table(new._replace(title="New clients, who took no part; each on its own test set")))
    console.print(f"Report: [bold]{path}[/bold]")
    return summary


def _read(experiment: Experiment, paths: Paths) -> FederatedData:
    from sim.run import load_data

    with bar(f"reading {experiment.dataset}") as (shown, task):

        def read(done: int, client: str) -> None:
            shown.update(task, completed=done, description=f"reading {experiment.dataset}, {client}")

        return load_data(experiment, paths.root, paths.cache, read)


def _show_clients(data: FederatedData, task: Task, out: Path, *, figures: bool) -> None:
    """Print and, with figures, draw every client's training and test examples by class."""
    from sim.data.partitions.table import partition_table
    from sim.data.repartition import current_partition
    from sim.results.writing import writing

    shares, y = current_partition(data, task)
    console.print(partition_table(shares, y, data.partition_labels))
    if not figures:
        return
    from sim.reports.figures.partition import draw_partition

    with writing("an image of the partition (partition.png)", out):
        out.mkdir(parents=True, exist_ok=True)
        draw_partition(out / "partition.png", shares, y, data.partition_labels)


def _tell_own_optimizer(experiment: Experiment) -> None:
    """Say what a method starts with that nobody has asked for."""
    from federation.methods import METHODS

    method, training = METHODS[experiment.method["name"]], experiment.training
    own_optimizer, own_lr = method.traits.optimizer, method.traits.lr
    if own_optimizer and (training.optimizer, training.lr) == (own_optimizer, own_lr):
        own = f"{method.name}'s own; --optimizer and --lr say otherwise"
        console.print(f"Optimizer: {training.optimizer}, learning rate {training.lr:g} ({own})")
