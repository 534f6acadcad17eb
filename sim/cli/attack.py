"""The command `attack`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from gaitway.window_cache import default_cache_dir
from sim.cli.command import CacheOption, bar, cli_errors, console, taking
from sim.errors import SettingsError

if TYPE_CHECKING:
    from sim.data.federated_data import FederatedData
    from sim.experiment.settings import Experiment

_ATTACKS = "labels, batch_labels, inversion, membership, features"


@dataclass(frozen=True)
class AttackArguments:
    """The options of `attack`."""

    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a finished run, or a plan (TOML or JSON) with --data.")
    ]
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the recordings; only generated data need none.")
    ] = None
    data: Annotated[
        str | None, typer.Option(help="The data set of a plan's devices; a run's directory is read without.")
    ] = None
    cache: CacheOption = None
    at: Annotated[
        Literal["start", "end"],
        typer.Option(
            help="The run's first round, whose model has learnt nothing, or the one after its last, which begins with "
            "the server's state in RUN/checkpoint.bin; the files in RUN/models are not read."
        ),
    ] = "start"
    noise: Annotated[
        float,
        typer.Option(
            help="Deviation of the noise in the sum, in bounds of one device's norm, where the plan has none "
            "(secure.noise_multiplier). 1 is ε = 4.7 at δ = 1e-5 for one release."
        ),
    ] = 1.0
    devices: Annotated[int, typer.Option(help="Attack so many devices, drawn at random.", min=4)] = 24
    steps: Annotated[int, typer.Option(help="Steps of the search for a window by its gradient.", min=1)] = 120
    only: Annotated[list[str] | None, typer.Option(help=f"Only this attack, of {_ATTACKS}; repeatable.")] = None
    out: Annotated[Path | None, typer.Option(help="Folder of the page; by default RUN/attack.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print attack.json, and all else to stderr.")] = False


@taking(AttackArguments)
def attack(args: AttackArguments) -> None:
    """Attack what the server of a run sees of each device, and say in numbers what it could learn.

    One round is made again, and attacked as the server could that had it in clear, with noise, as a secure sum of the
    fewest devices that the plan allows, of all, and with both:

    labels: how much of each activity a device has, out of what it sends;
    batch_labels: the same out of the gradient of one batch;
    inversion: windows reconstructed from a gradient;
    membership: whether a window is one that the device has learnt from;
    features: mean features of each activity, out of analytic sums or prototypes.

    Each score stands beside that of guessing, and the difference, the attacker's advantage, has a 95 % interval over
    the devices. Read attack.html first; attack.json has each device.

    For example: python -m sim attack runs/motionsense-fedavg --data-root ../shared/data
    """
    from sim.privacy_attacks import AttackOptions
    from sim.privacy_attacks import attack as attack_round
    from sim.reports.privacy import brief_table, write_attack_page
    from sim.reports.table import printed_table
    from sim.results.run_directory import writing

    console.stderr = args.as_json
    with cli_errors():
        options = AttackOptions(args.at, tuple(args.only or ()), args.noise, args.devices, args.steps)
        is_plan = args.run.is_file()
        if is_plan and args.at == "end":
            raise SettingsError("--at end: a plan has no last round; give the directory of a run")
        folder = args.out or (args.run.with_suffix("") if is_plan else args.run) / "attack"
        with bar("opening the run") as (shown, line):

            def progress(what: str, done: int, total: int) -> None:
                shown.update(line, description=escape(what), completed=done, total=total or None)

            settings, examples = _opened(
                args.run, args.data, args.data_root, args.cache or default_cache_dir(), progress
            )
            results = attack_round(settings, examples, None if is_plan else args.run, options, progress)
        with writing("the attacks' page", folder):
            page = write_attack_page(results, folder)
        console.print(printed_table(brief_table(results)))
        console.print("Bold: better than guessing; the interval of the advantage lies above 0.")
        for name, reason in results.missing.items():
            console.print(f"Not tried, {name}: {escape(reason)}", soft_wrap=True)
        console.print(f"Attacks: [bold]{escape(str(page))}[/bold]", soft_wrap=True)
        if args.as_json:
            print((folder / "attack.json").read_text("utf-8"), end="")


def _opened(
    run: Path, data: str | None, root: Path | None, cache: Path, progress: Callable[[str, int, int], None]
) -> tuple[Experiment, FederatedData]:
    """Return the settings and the examples of a run's directory, or of a plan's file."""
    if not run.is_file():
        from sim.reports.analysis.finished import open_run

        opened = open_run(run, root, cache, progress)
        return opened.settings, opened.data
    from sim.cli.options import describe, options_of, read_plan
    from sim.presets import with_defaults
    from sim.run import load_data, resolve

    if data is None:
        raise SettingsError(f"{run} is a plan: say by --data whose examples its devices have")
    plan = read_plan(run)
    settings = describe(with_defaults(None, {"data": data, "set": []}, options_of(plan)), None, plan)
    return settings, load_data(
        resolve(settings), root, cache, lambda done, name: progress(f"windows of {name}", done, 0)
    )
