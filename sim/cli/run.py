"""The command `run`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import TaskID

from federation.methods import METHODS
from federation.tasks import TASKS, task_from_json
from federation.tasks.task import Task
from gaitway.command_line import completion
from gaitway.interrupts import resumable
from gaitway.terminal import ProgressDisplay, print_warning
from gaitway.window_cache import default_cache_dir
from models import MODELS
from models.registry import starting_from_published
from sim.cli.command import CACHE_HELP, bar, cli_errors, console, round_line, taking
from sim.cli.options import describe, described_by, options_of, read_plan
from sim.data.federated_data import FederatedData
from sim.data.partitions import PARTITIONS
from sim.data.sources import source_names
from sim.experiment.options import DATA, METHOD, RUNNING, Option, option_words
from sim.experiment.settings import DEFAULTS, OPTIONS, Experiment, field_of
from sim.presets import PRESETS, with_defaults
from sim.results.tracking import TRACKERS, RunCallback, trackers
from sim.scores.records import RoundRecord

if TYPE_CHECKING:
    from sim.run import Places

TITLES = {"engine": "Engine", "client_store": "Models", "attack": "Hostile"}
"""Printed names of what a run reports once."""
_LISTED = {
    "data": [f"One of {', '.join(source_names())}."],
    "partition": [f"One of {', '.join(PARTITIONS)}."],
    "task": [f"One of {', '.join(TASKS)}."],
    "init": [f"With torchvision's: {', '.join(starting_from_published())}."],
}
"""Additions to options' help from the tables."""
COMPLETED: dict[str, Callable[[], Iterable[str]]] = {
    "data": source_names,
    "method": lambda: METHODS,
    "model": lambda: MODELS,
    "partition": lambda: PARTITIONS,
    "task": lambda: TASKS,
}
"""Options whose values a shell completes."""


def _annotation(name: str, option: Option) -> Any:
    field = field_of(option)
    typed = option.given_as or field.annotation
    kind = next((candidate for candidate in (bool, int, float, Path) if candidate in (typed, *get_args(typed))), str)
    flags = [option_words(name, True)[0] + "/" + option_words(name, False)[0]] if kind is bool else []
    default = ("on" if DEFAULTS[name] else "off") if kind is bool else DEFAULTS[name]
    words = [option.help, *_LISTED.get(name, ()), *([] if default is None else [f"Default: {default}."])]
    least = next((constraint.ge for constraint in field.metadata if hasattr(constraint, "ge")), None)
    minimum = least if kind in (int, float) else None
    completed = completion(COMPLETED[name]) if name in COMPLETED else None
    described = typer.Option(
        *flags, help=" ".join(words), rich_help_panel=option.panel, min=minimum, autocompletion=completed
    )
    return Annotated[kind | None, described]


@dataclass(frozen=True)
class RunArguments:
    """The options of `run`."""

    out: Annotated[Path, typer.Option(help="Folder of the run; the same command resumes after a crash.")]
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A federation's plan, TOML or JSON, as for `POST /v1/federations` and in every run's folder "
            "(plan.json); options and --set override it (default: the defaults below).",
            rich_help_panel=METHOD,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help="Start from a preset; see `presets` (default: the defaults below).",
            rich_help_panel=METHOD,
            autocompletion=completion(lambda: PRESETS),
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A method's hyper-parameter (mu=0.1), or model.KEY (model.2.KEY for the second of several), "
            "data.KEY, partition.KEY, pipeline.KEY, training.KEY, rounds.KEY, rollout.KEY, holdout.epochs; repeatable. "
            "As on a server, weights are capped and updates with too large norms are left out; "
            "rounds.max_weight_ratio=null and rounds.norm_factor=null switch this off, as every preset does.",
            rich_help_panel=METHOD,
        ),
    ] = None
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder or archive of the data; not needed for generated data.", rich_help_panel=DATA),
    ] = None
    describe_: Annotated[
        Path | None,
        typer.Option(
            "--describe",
            help="Instead of --data, a TOML description of any recordings under --data-root, as written by `python -m "
            "har_pipeline describe`; the run stores its content. Equals --data described with --set data.KEY for "
            "each of its keys.",
            rich_help_panel=DATA,
        ),
    ] = None
    cache: Annotated[Path | None, typer.Option(help=CACHE_HELP, rich_help_panel=DATA)] = None
    client_store_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for --client-store disk (default: the run's).", rich_help_panel=RUNNING),
    ] = None
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUNNING)] = (
        60.0
    )
    log: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Also write the scores to {' or '.join(TRACKERS)}, if installed; repeatable. MLflow's server is "
            f"MLFLOW_TRACKING_URI; TensorBoard's files are in the run's folder.",
            rich_help_panel=RUNNING,
        ),
    ] = None
    figures: Annotated[
        bool,
        typer.Option(
            help="Draw the figures, which takes some seconds; `python -m sim report DIR` draws them later.",
            rich_help_panel=RUNNING,
        ),
    ] = True
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the summary as JSON at the end, and everything else to stderr.",
            rich_help_panel=RUNNING,
        ),
    ] = False


@taking(RunArguments, {name: _annotation(name, option) for name, option in OPTIONS.items()})
def run(args: RunArguments, options: dict[str, Any]) -> None:
    """Simulate a federation, and write its scores, checkpoints, plots, models and report to a folder.

    For example: python -m sim run --data motionsense --data-root ../shared/data --model hart_alp --method fedali
    --rounds 20 --out runs/motionsense-fedali
    """
    from sim.run import Places

    places = Places(args.data_root, args.cache or default_cache_dir(), args.client_store_dir, args.checkpoint_every)
    console.stderr = args.as_json
    with cli_errors(), resumable("Run the same command again to resume."):
        federation = read_plan(args.plan) if args.plan else None
        options["set"] = args.set_ or []
        if args.describe_:
            options = described_by(args.describe_, options)
        chosen = with_defaults(args.preset, options, options_of(federation) if federation else None)
        experiment = describe(chosen, args.preset, federation)
        followers = trackers(args.log or [], args.out, print_warning)
        summary = simulate(experiment, args.out, places, followers, figures=args.figures)
    if args.as_json:
        print(json.dumps(summary, indent=1))


def simulate(
    experiment: Experiment,
    out: Path,
    places: Places,
    callbacks: Sequence[RunCallback] = (),
    *,
    figures: bool = True,
) -> dict[str, Any]:
    """Run the experiment under a progress bar, write the report, and return the summary."""
    from sim.reports.report import new_clients_table, write_report
    from sim.reports.table import printed_table
    from sim.results.run_directory import RunDirectory, writing
    from sim.results.summary import print_summary
    from sim.run import run as run_experiment

    _tell_own_optimizer(experiment)
    with bar(f"reading {experiment.dataset}") as (shown, line):
        screen = _Screen(experiment, out, shown, line, figures=figures)
        summary = run_experiment(experiment, out, [screen, *callbacks], places=places)
    directory = RunDirectory(out)
    with writing("the figures and the report (report.html)", out):
        if figures:
            from sim.reports.figures.run_figures import draw_run

            draw_run(directory)
        path = write_report(directory, figures=figures)
    print_summary(directory, console)
    if new := new_clients_table(directory):
        console.print(printed_table(new._replace(title="New clients, which took no part; each on its own test set")))
    console.print(f"Report: [bold]{path}[/bold]")
    return summary


class _Screen(RunCallback):
    """Prints a run's choices, findings and progress."""

    def __init__(
        self, experiment: Experiment, out: Path, shown: ProgressDisplay, line: TaskID, *, figures: bool
    ) -> None:
        self._experiment, self._out, self._figures = experiment, out, figures
        self._shown, self._line, self._task = shown, line, task_from_json(experiment.task)

    def on_reading(self, done: int, client: str) -> None:
        self._shown.update(self._line, completed=done, description=f"reading {self._experiment.dataset}, {client}")

    def on_data(self, data: FederatedData) -> None:
        for words in data.findings:
            print_warning(words)
        if not (self._out / "config.json").exists():  # a resumed run already has its image
            _show_clients(data, self._task, self._out, figures=self._figures)
        self._shown.remove_task(self._line)
        title = f"{self._experiment.method['name']} · {self._experiment.model.name}"
        self._line = self._shown.add_task(title, total=self._experiment.rounds.rounds)

    def on_choice(self, what: str, name: str, reason: str) -> None:
        console.print(f"{TITLES[what]}: {name} ({reason})")

    def on_round(self, record: RoundRecord) -> None:
        if record.paused:
            words = f"The run ends after round {record.round}: {record.paused}, the last one because: {record.failed}"
            print_warning(words)
        done = min(record.round, self._experiment.rounds.rounds)
        self._shown.update(self._line, completed=done, description=round_line(record, self._task))


def _show_clients(data: FederatedData, task: Task, out: Path, *, figures: bool) -> None:
    """Print and, with figures, draw every client's training and test examples by class."""
    from sim.data.partitions.table import partition_table
    from sim.data.repartition import current_partition
    from sim.results.run_directory import writing

    shares, y = current_partition(data, task)
    console.print(partition_table(shares, y, data.partition_labels))
    if not figures:
        return
    from sim.reports.figures.partition import draw_partition

    with writing("an image of the partition (partition.png)", out):
        out.mkdir(parents=True, exist_ok=True)
        draw_partition(out / "partition.png", shares, y, data.partition_labels)


def _tell_own_optimizer(experiment: Experiment) -> None:
    """Report the optimizer that a method sets by default."""
    from federation.methods import METHODS

    method, training = METHODS[experiment.method["name"]], experiment.training
    own_optimizer, own_lr = method.traits.optimizer, method.traits.lr
    if own_optimizer and (training.optimizer, training.lr) == (own_optimizer, own_lr):
        own = f"{method.name}'s default; change it with --optimizer and --lr"
        console.print(f"Optimizer: {training.optimizer}, learning rate {training.lr:g} ({own})")
