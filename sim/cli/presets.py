"""The command `presets`, which also shows the shares of a preset's clients, without reading images."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gaitway.command_line import completion
from sim.cli.command import cli_errors, console
from sim.cli.options import assignments
from sim.data.images import voc
from sim.data.partitions import Pool, Share, class_counts, partition_from_json
from sim.errors import SettingsError
from sim.experiment.options import option_words
from sim.presets import PRESETS, Preset, preset_named
from sim.presets.exhibits import NONE, PAPERS, paper_named
from sim.presets.preset import Options


class PresetShares(NamedTuple):
    """The clients' shares of images with classes y (n,), named by `labels`."""

    shares: Mapping[str, Share]
    y: npt.NDArray[np.int64]
    labels: tuple[str, ...]

    def statistics(self) -> tuple[str, ...]:
        """Return all images, mean ± deviation, least and most over clients, classes a client, and clients with one."""
        train, test = (class_counts(self.shares, self.y, len(self.labels), part) for part in ("train", "test"))
        counts = train + test
        sizes, held = counts.sum(1), (counts > 0).sum(1)
        return (
            f"{sizes.sum():,}",
            f"{sizes.mean():.1f} ± {sizes.std():.1f}",
            str(sizes.min()),
            str(sizes.max()),
            f"{held.mean():.1f} ± {held.std():.1f}",
            str((held == 1).sum()),
        )


def deals_voc(preset: Preset) -> bool:
    """Whether a preset divides images of Pascal VOC."""
    found: bool = preset.options["data"] == voc.READER.name
    return found


def partition_preset(name: str, preset: Preset, objects: npt.NDArray[np.int64], seed: int) -> PresetShares:
    """Divide images with object classes (n,) 0 to 19 as a run of this preset would.

    Raises:
        SettingsError: if the preset is for other data.
    """
    if not deals_voc(preset):
        raise SettingsError(
            f"{name} divides {preset.options['data']}; --classes is of the images of {voc.READER.name}: "
            "name presets such as michieli2021-voc-0.1, or none for all of them"
        )
    sections = assignments(preset.own_options["set"])
    macro = sections["data"].get("classes") == "macro"
    y = voc.MACRO_OF[1 + objects] if macro else 1 + objects
    labels = voc.LABELS["macro" if macro else "objects"]
    partition = partition_from_json({"kind": preset.options["partition"], **sections["partition"]})
    return PresetShares(partition.divide(Pool(y, len(labels), np.ones(len(y), dtype=bool)), seed), y, labels)


def presets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]…",
            help="Explain these presets, or list a paper's tables and figures (ek2024, tan2022, michieli2021, "
            "qiao2023); default: list all.",
            autocompletion=completion(lambda: [*PRESETS, *PAPERS]),
        ),
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(
            help="Divide images of Pascal VOC by the presets' partitions, from facts about their masks alone: a CSV "
            "file, or CSV.gz, with the columns image, in_train_aug (1 or 0) and classes (numbers 1 to 20). By default "
            "nothing is dealt."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the partition, with --classes.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="With --classes, also draw each partition and its clients' classes into this folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the presets with all their settings as JSON.")] = False,
) -> None:
    """List the presets, and each paper's tables and figures with the commands that make them, or explain some.

    For example: python -m sim presets tan2022 michieli2021-voc-0.1
    """
    with cli_errors():
        papers = [name for name in names or () if name in PAPERS]
        chosen = {name: preset_named(name) for name in names or () if name not in PAPERS}
        if as_json:
            print(json.dumps({name: asdict(item) for name, item in (chosen or PRESETS).items()}, indent=1, default=str))
        elif classes is not None:
            _deal(chosen, classes, seed, out)
        elif names:
            for name in papers:
                _list_exhibits(name)
            for name, preset in chosen.items():
                console.print(_explained(name, preset))
        else:
            _list()
            for name in PAPERS:
                _list_exhibits(name)


def _list() -> None:
    for table in _tables():
        console.print(table)
    for name, preset in PRESETS.items():
        options = preset.options_for(preset.options["method"])
        if command := preset.pretraining_command(name, options["method"], options["model"]):
            console.print(f"{name}: first {command}, then --init FILE", soft_wrap=True)
    console.print("The method is yours: sim run --preset NAME --method METHOD --data-root FOLDER --out DIR")


def _list_exhibits(name: str) -> None:
    """Print a paper's tables and figures: what each shows, the paper's and our result, and our commands."""
    paper = paper_named(name)
    console.print(f"\n{paper.title}", style="bold", highlight=False)
    for item in paper.exhibit:
        console.print(f"{item.number}: {item.shows}", markup=False, highlight=False, soft_wrap=True)
        if item.ours != NONE:
            console.print(f"  ours: {item.ours}; theirs: {item.theirs}", markup=False, highlight=False, soft_wrap=True)
        for line in (*item.commands, *([item.reason] if item.reason else [])):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _explained(name: str, preset: Preset) -> Table:
    """Return a preset's settings for its method, its changes for others, and its departures from the paper."""
    table = Table(title=f"{name}: {preset.about}", box=box.SIMPLE, title_justify="left", title_style="bold")
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("paper", preset.paper)
    if preset.reported:
        examples, mean, std = preset.reported
        table.add_row("reported", f"{examples:,} examples, {mean} ± {std} a client")
    table.add_row("clients", f"{preset.clients}")
    table.add_row("needs", f"{preset.needs}. {preset.where}" if preset.where else preset.needs)
    for method, options in {"": preset.own_options, **preset.by_method}.items():
        table.add_row(f"with {method}" if method else "options", Text(shlex.join(_words(options))))
    for number, departure in enumerate(preset.departures):
        table.add_row("" if number else "departs", Text(departure))
    return table


def _words(options: Options) -> list[str]:
    """Write options as the command line takes them."""
    plain = [option_words(key, value) for key, value in options.items() if key != "set" and value is not None]
    return [word for words in [*plain, *(["--set", text] for text in options.get("set", ()))] for word in words]


def _deal(chosen: dict[str, Preset], facts: Path, seed: int, out: Path | None) -> None:
    """Print each preset's shares next to the paper's figures; by default for all presets that divide VOC."""
    from sim.data.images.voc import single_class_images
    from sim.data.partitions.table import partition_table
    from sim.reports.figures.partition import draw_classes, draw_partition

    chosen = chosen or {name: preset for name, preset in PRESETS.items() if deals_voc(preset)}
    y = single_class_images(facts)
    console.print(f"{len(y):,} images of train_aug show one class of objects.")
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)  # whose rows fit into 80 columns unbroken
    table.add_column("preset", no_wrap=True)
    for head in ("images", "a client", "least", "most", "classes", "with one"):
        table.add_column(head, justify="right", no_wrap=True)
    for reported in dict.fromkeys(preset.reported for preset in chosen.values() if preset.reported):
        table.add_row("the paper", f"{reported.examples:,}", f"{reported.mean} ± {reported.std}", *["–"] * 4)
    for name, preset in chosen.items():
        dealt = partition_preset(name, preset, y, seed)
        if len(chosen) == 1:
            console.print(partition_table(dealt.shares, dealt.y, dealt.labels))
        table.add_row(name, *dealt.statistics())
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for draw, ending in ((draw_partition, ""), (draw_classes, "-classes")):
                path = draw(out / f"{name}{ending}.png", dealt.shares, dealt.y, dealt.labels)
                console.print(f"Drawn: [bold]{escape(str(path))}[/bold]")
    console.print(table)
    console.print("a client: mean ± deviation; classes: of objects, a client; with one: clients of one class alone")


def _tables() -> Iterator[Table]:
    for paper, entries in groupby(PRESETS.items(), key=lambda entry: entry[1].paper):
        table = Table(title=paper, box=box.SIMPLE, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
        table.add_column("preset", no_wrap=True)
        table.add_column("what it is")
        for column in ("clients", "rounds"):
            table.add_column(column, justify="right")
        table.add_column("needs")
        for name, preset in entries:
            table.add_row(name, preset.about, f"{preset.clients}", f"{preset.rounds}", preset.needs)
        yield table
