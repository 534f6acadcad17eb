"""The command line of the simulation: run, sweep, compare, analyse, report, presets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.analyse import analyse
from sim.cli.presets import presets
from sim.cli.pretrain import pretrain
from sim.cli.sweep import SelectOption, sweep
from sim.cli.terminal import bar, cli_errors, console, round_line
from sim.data.partitions import PARTITIONS
from sim.data.sources import DATA
from sim.experiment import RunSettings
from sim.presets import DEFAULTS, with_defaults

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode="rich")
for command in (sweep, presets, pretrain, analyse):
    app.command()(command)

OPTION_GROUPS = ("Data", "Model and method", "Training", "Running")
Text = str | None
_DATA, _METHOD, _TRAINING, _RUNNING = OPTION_GROUPS


@app.command("run")
def run_command(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory of the run; the same command resumes it after a crash.")],
    data: Annotated[Text, typer.Option(help=f"One of {', '.join(DATA)}.", rich_help_panel=_DATA)] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the data.", rich_help_panel=_DATA)
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where processed windows are kept.", rich_help_panel=_DATA)] = Path(
        ".cache/windows"
    ),
    partition: Annotated[
        Text,
        typer.Option(help=f"{', '.join(PARTITIONS)}; recordings also keep their clients.", rich_help_panel=_DATA),
    ] = None,
    clients_by: Annotated[
        Text, typer.Option(help="Make one client of each user, device, place or dataset.", rich_help_panel=_DATA)
    ] = None,
    holdout: Annotated[
        Text,
        typer.Option(
            help="leave-subjects-out:K, leave-devices-out:K or leave-clients-out:K (or names for K): new users, scored "
            "at the end without and with 5 and 10 labelled examples a class.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    split: Annotated[
        Text, typer.Option(help="temporal (no leak), random80 or kfold7_3 (leak).", rich_help_panel=_DATA)
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="Share of each client's training examples, the last of each class, that are not trained on: a round "
            "is chosen by them, so that nothing is chosen by a test set. Default 0.1; 0 in the papers' presets.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    normalization: Annotated[
        Text, typer.Option(help="federated, client or pooled statistics.", rich_help_panel=_DATA)
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            max=1,
            help="For a smoke test: that share of the clients (two at least), of each one's examples of each class, "
            "and of the rounds unless --rounds is given.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    model: Annotated[
        Text,
        typer.Option(
            help="A model of the table, or several that the clients take in turn: hart+cnn (local, fedproto).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Weights to start from, but for the head: of `pretrain` or `run`; for resnet18 also torchvision's.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    method: Annotated[Text, typer.Option(help="Name of the method, such as fedavg.", rich_help_panel=_METHOD)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A method's hyper-parameter (mu=0.1), or model.KEY (model.2.KEY for the second of several), "
            "data.KEY, partition.KEY, pipeline.KEY, rounds.KEY, holdout.epochs; repeatable. A server caps weights "
            "and leaves out updates that go too far, which is off here: rounds.max_weight_ratio=2 and "
            "rounds.norm_factor=10 switch it on.",
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
    sampling: Annotated[
        Text, typer.Option(help="uniform, or examples: in proportion to them.", rich_help_panel=_TRAINING)
    ] = None,
    stragglers: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of each cohort that does a random part of its steps; dropped, or used if the method's paper "
            "does (rounds.partial_work=drop|use overrides it).",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    precision: Annotated[
        Text,
        typer.Option(
            help="Of uploads on the wire: lossless, float16, int8 (with error feedback) or int8_without_feedback.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    autocast: Annotated[
        Text,
        typer.Option(
            help="float32, or bfloat16: mixed precision. Convolutions and matrix products are made in bfloat16 where "
            "the hardware is fast at it; parameters, losses, optimizer, ALP's plan and aggregation stay in float32.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="One seed repeats a run.", rich_help_panel=_TRAINING)] = None,
    preset: Annotated[Text, typer.Option(help="Start from a preset; see `presets`.", rich_help_panel=_RUNNING)] = None,
    engine: Annotated[
        Text,
        typer.Option(
            help="auto, serial (one client after the other), processes (one a core, on the CPU) or stacked (many "
            "clients as one program, for a GPU) or ray (on the cluster at RAY_ADDRESS). The numbers are the same.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.", rich_help_panel=_RUNNING)
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            help="Clients stacked at a time; by default as many as a GPU holds, on a CPU 8. Processes stack them "
            "by themselves under --engine auto, where the steps are small.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    compile_: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the training step of stacked clients: minutes at first for each network and size of chunk, "
            "then faster steps (a CUDA graph on CUDA). Where the compiler is missing or fails, the run goes on "
            "without it and says so.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    client_store: Annotated[
        Text,
        typer.Option(
            help="Where the clients' models lie: auto, memory, disk (an unlinked temporary file that the kernel pages; "
            "memory stays constant; the same numbers) or none: a client's model ends with its round, so there are the "
            "server's scores only. For methods whose clients get everything anew, as in cross-device learning.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    client_store_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for --client-store disk; by default the run's.", rich_help_panel=_RUNNING),
    ] = None,
    device: Annotated[Text, typer.Option(help="cpu or cuda.", rich_help_panel=_RUNNING)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Torch's threads.", rich_help_panel=_RUNNING)] = None,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Score the clients every so many rounds.", rich_help_panel=_RUNNING)
    ] = None,
    generalization_examples: Annotated[
        int | None,
        typer.Option(min=1, help="Measure generalization on so many examples.", rich_help_panel=_RUNNING),
    ] = None,
    gradient_dissimilarity: Annotated[
        bool | None,
        typer.Option(
            help="Before each round compare the gradients of its clients at the server's model, (1/K) Σ‖∇L_k − ∇L‖²; "
            "costs about one epoch of one process. For methods with a global model.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=_RUNNING)
    ] = 60.0,
) -> None:
    """Replay a federation, and leave its scores, checkpoints, plots, models and report in a directory.

    For example: python -m sim run --data motionsense --data-root ../shared/data --model hart_alp --method fedali
    --rounds 20 --out runs/motionsense-fedali
    """
    # an option of a run is named as its default is, but for two whose names Python has taken
    given = {name: value for name, value in context.params.items() if name in DEFAULTS}
    given |= {"set": set_ or [], "compile": compile_}
    with cli_errors():
        _run(with_defaults(preset, given), preset, data_root, cache, out, checkpoint_every, client_store_dir)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs, or of sweeps.")],
    out: Annotated[Path, typer.Option(help="Where the comparison is written.")] = Path("comparison"),
    baseline: Annotated[
        Text, typer.Option(help="Method or row that the others are tested against; by default fedavg.")
    ] = None,
    select: SelectOption = None,
) -> None:
    """Put runs into one table, test them against a baseline seed by seed, and write HTML, Markdown and JSON."""
    from sim.reports.comparison.compare import compare as compare_runs
    from sim.reports.comparison.printed import print_comparison

    with cli_errors():
        print_comparison(compare_runs(runs, out, baseline, select))
        console.print(f"Written to [bold]{out}[/bold]")


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


def _run(
    options: dict[str, Any],
    preset: str | None,
    root: Path | None,
    cache: Path,
    out: Path,
    checkpoint_s: float,
    client_store_dir: Path | None,
) -> None:
    from sim.cli.options import assignments, run_settings
    from sim.data.sources import source_named
    from sim.reports.figures.run_figures import draw_run
    from sim.reports.report import write_report
    from sim.results.run_directory import RunDirectory
    from sim.results.tables import print_summary
    from sim.run import load_data, run
    from sim.shown_clients import show_clients

    labels = source_named(options["data"]).labels(assignments(options["set"])["data"])
    settings = run_settings(options, labels, preset)
    _tell_own_optimizer(settings)
    start = time.perf_counter()
    with bar(f"reading {settings.data}") as (shown, task):

        def read(done: int, client: str) -> None:
            shown.update(task, completed=done, description=f"reading {settings.data}, client {client}")

        data = load_data(settings, root, cache, read)
    seconds = time.perf_counter() - start
    if not (out / "config.json").exists():  # of a run that goes on it is known, and another's picture stays its own
        show_clients(data, out)
    with bar(f"{settings.method['name']} · {settings.model.name}", settings.rounds.rounds) as (shown, task):

        def progress(kind: str, what: dict[str, Any]) -> None:
            if kind == "engine":
                console.print(f"Engine: {what['name']} ({what['reason']})")
            if kind == "client_store":
                console.print(f"Models: {what['name']} ({what['reason']})")
            if kind == "round":
                shown.update(task, completed=what["round"], description=round_line(what))

        run(
            settings, data, out,
            data_seconds=seconds, checkpoint_every_s=checkpoint_s, client_store_dir=client_store_dir, report=progress,
        )  # fmt: skip
    directory = RunDirectory(out)
    draw_run(directory)
    path = write_report(directory)
    print_summary(directory)
    console.print(f"Report: [bold]{path}[/bold]")


def _tell_own_optimizer(settings: RunSettings) -> None:
    """Say what a method starts with that nobody has asked for."""
    from federation.methods import METHODS

    method, task = METHODS[settings.method["name"]], settings.task
    if method.default_optimizer and (task.optimizer, task.lr) == (method.default_optimizer, method.default_lr):
        own = f"{method.name}'s own; --optimizer and --lr say otherwise"
        console.print(f"Optimizer: {task.optimizer}, learning rate {task.lr:g} ({own})")
