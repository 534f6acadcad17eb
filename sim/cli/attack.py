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
        Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or a plan (TOML or JSON) with --data.")
    ]
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the recordings; not needed for generated data.")
    ] = None
    data: Annotated[
        str | None, typer.Option(help="The data set of a plan's devices; not needed for a run's folder.")
    ] = None
    cache: CacheOption = None
    at: Annotated[
        Literal["start", "end"],
        typer.Option(
            help="Round to attack: the run's first, whose model has learnt nothing, or the one after its last, which "
            "starts from the server's state in RUN/checkpoint.bin; the files in RUN/models aren't read."
        ),
    ] = "start"
    noise: Annotated[
        float,
        typer.Option(
            help="Deviation of the noise in the sum, in units of one device's norm bound, if the plan has none "
            "(secure.noise_multiplier). 1 is ε = 4.7 at δ = 1e-5 for one release."
        ),
    ] = 1.0
    devices: Annotated[int, typer.Option(help="Number of random devices to attack.", min=4)] = 24
    steps: Annotated[int, typer.Option(help="Steps of the search for a window by its gradient.", min=1)] = 120
    only: Annotated[list[str] | None, typer.Option(help=f"Only this attack, of {_ATTACKS}; repeatable.")] = None
    out: Annotated[Path | None, typer.Option(help="Folder of the page (default: RUN/attack).")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print attack.json, and everything else to stderr.")] = False


@taking(AttackArguments)
def attack(args: AttackArguments) -> None:
    """Attack what a run's server sees of each device, and measure what it could learn.

    This repeats one round, and attacks what the server would see: updates in the clear, with noise, as a secure sum of
    the fewest devices that the plan allows, of all devices, and with both:

    labels: a device's share of each activity, from what it sends;
    batch_labels: the same from the gradient of one batch;
    inversion: windows reconstructed from a gradient;
    membership: whether the device has trained on a window;
    features: mean features of each activity, from analytic sums or prototypes.

    Each score is shown next to that of guessing; the difference, the attacker's advantage, has a 95% interval over the
    devices. Read attack.html first; attack.json has each device.

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
            raise SettingsError("--at end: a plan has no last round; give a run's folder")
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
    """Return the settings and the examples of a run's folder or a plan file."""
    if not run.is_file():
        from sim.reports.analysis.finished import open_run

        opened = open_run(run, root, cache, progress)
        return opened.settings, opened.data
    from sim.cli.options import describe, options_of, read_plan
    from sim.presets import with_defaults
    from sim.run import load_data, resolve

    if data is None:
        raise SettingsError(f"{run} is a plan: give its devices' data set with --data")
    plan = read_plan(run)
    settings = describe(with_defaults(None, {"data": data, "set": []}, options_of(plan)), None, plan)
    return settings, load_data(
        resolve(settings), root, cache, lambda done, name: progress(f"windows of {name}", done, 0)
    )
