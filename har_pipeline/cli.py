"""`python -m har_pipeline info|describe|prepare`: lists data sets, describes recordings, and prepares windows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from gaitway.command_line import CommandLine, JsonOption, completion
from gaitway.errors import ExitCode
from gaitway.own_packages import install_command
from gaitway.terminal import Console, ProgressDisplay, print_error
from gaitway.window_cache import default_cache_dir
from har_pipeline.apps.cli import show_exports, show_found
from har_pipeline.apps.reader import AppReader, AppSource
from har_pipeline.combination import COMBINATIONS, Combination, combination_of
from har_pipeline.description.cli import description_record, show_description, write_draft
from har_pipeline.description.model import read_description
from har_pipeline.errors import PipelineError, SettingsError
from har_pipeline.preparation import (
    dataset_labels,
    dataset_names,
    dataset_settings,
    prepare,
    reader_of,
)
from har_pipeline.readers import APPS, READERS
from har_pipeline.readers.described import DESCRIBED
from har_pipeline.readers.reader import RecordingReader
from har_pipeline.signals.checks import grouped
from har_pipeline.splits import split_client
from har_pipeline.streaming.windows import WindowedDataset
from har_pipeline.units import MEANINGS

app = CommandLine(
    help="From the recordings of motion sensors to windows of 128 samples × 6 channels at 50 Hz.",
    rich_markup_mode="markdown",
)
console = Console()
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder or archive (zip, tar.*) with the data set at any depth; not needed for `synthetic`.",
    ),
]
OptionsOption = Annotated[
    str,
    typer.Option("--options", help="As JSON, '{\"subjects\": 8}'; for a combination by member, '{\"hhar\": {…}}'."),
]
DescribeOption = Annotated[
    Path | None,
    typer.Option(
        "--describe",
        help="TOML description of any recordings, instead of a data set; see docs/data.md.",
    ),
]


@app.command()
def info(
    dataset: Annotated[
        str | None,
        typer.Argument(help="A data set (default: list all).", autocompletion=completion(dataset_names)),
    ] = None,
    root: RootOption = None,
    describe: DescribeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe data sets: clients, labels, expected files, settings; with --data-root also the files found there.

    With --describe and --data-root, reads every file: which match, which can't be read and why, rates, labels.

    Examples:

    `python -m har_pipeline info motionsense --data-root DATA`

    `python -m har_pipeline info --describe data.toml --data-root DATA`
    """
    if describe is not None:
        with _cli_errors():
            _refuse_other(dataset)
            described = read_description(describe)
            if as_json:
                _print(description_record(described, root))
            else:
                show_description(described, root, console)
        return
    if dataset is None and as_json:
        _print([_record(reader) for reader in READERS.values()])
        return
    if dataset is None:
        table = Table("name", "what", "acceleration", "expected under --data-root")
        for reader in READERS.values():
            table.add_row(reader.name, reader.summary, _acceleration(reader), reader.expected(reader.defaults))
        for name, known in COMBINATIONS.items():
            summary = f"{' + '.join(known.members)}, same activities merged"
            table.add_row(name, summary, "that of its members", "the files of its members")
        console.print(table)
        return
    with _cli_errors():
        combination = combination_of(dataset)
        if as_json:
            members = [_details(member, root) for member in (combination.members if combination else (dataset,))]
            _print({"name": dataset, "labels": list(dataset_labels(dataset)), "members": members})
            return
        for member in combination.members if combination else (dataset,):
            _describe(member, root)
        if combination:
            console.print(_merging(dataset, combination))


@app.command("describe")
def describe_command(
    path: Annotated[
        Path, typer.Argument(help="A folder with everything below it, an archive (zip, tar.*), or a file.")
    ],
    out: Annotated[Path | None, typer.Option(help="The TOML file to write (default: only show the guesses).")] = None,
) -> None:
    """Guess a description of unknown recordings, with a comment on how sure each guess is.

    Exports of known phone apps need no description if their reader can read them. Otherwise this guesses the separator,
    header, columns, units (from gravity at rest and how fast bodies turn), rate and time unit, and the meaning of file
    and folder names. Check the lines marked "check", then apply it with `info`. Example:

    `python -m har_pipeline describe DATA --out data.toml`
    """
    with _cli_errors():
        if show_exports(APPS, path, console):
            return
        write_draft(path, out, console)


@app.command("prepare")
def prepare_command(
    dataset: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(dataset_names())}; not needed with --describe.",
            autocompletion=completion(dataset_names),
        ),
    ] = None,
    root: RootOption = None,
    describe: DescribeOption = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache", help="Folder for prepared windows (default: the user's cache folder).")
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="Only this client; repeatable.")] = None,
    stride: Annotated[
        int | None, typer.Option(help="Samples between windows (default: the data set's preset).")
    ] = None,
    label_share: Annotated[
        float | None,
        typer.Option(help="Minimum share of a window that its label covers (default: the data set's preset)."),
    ] = None,
    options: OptionsOption = "{}",
    as_json: JsonOption = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at unreadable files (default: leave them out and list them).")
    ] = False,
) -> None:
    """Read, filter, resample and cut a data set, cache its windows, and count them.

    Suspicious data (units, time, rate, lost or repeated samples, dead channels) is listed below the counts.

    A second run with the same files and settings reads the cache. Examples:

    `python -m har_pipeline prepare synthetic`

    `python -m har_pipeline prepare spsw --data-root DATA --label-share 0.7`

    `python -m har_pipeline prepare --describe data.toml --data-root DATA`
    """
    with _cli_errors():
        chosen = _json(options)
        if describe is not None:
            _refuse_other(dataset)
            dataset, chosen = DESCRIBED, {**read_description(describe).to_json(), **chosen}
        if dataset is None:
            raise SettingsError(
                f"no data set given; name one of {', '.join(dataset_names())}, or give --describe data.toml"
            )
        if strict and (dataset == DESCRIBED or dataset in {app.name for app in APPS}):
            chosen["strict"] = True  # published sets must match their publication
        changes: dict[str, Any] = {"stride": stride, "label_share": label_share}
        settings = replace(
            dataset_settings(dataset), **{key: value for key, value in changes.items() if value is not None}
        )
        began = time.perf_counter()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console.stderr = as_json
        with ProgressDisplay(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"{dataset}: looking for files")

            def report(done: int, name: str) -> None:
                bar.update(task, description=f"{dataset}: {done} recordings, client {escape(name)}")

            windows = prepare(
                dataset,
                root,
                settings,
                cache_dir=cache_dir or default_cache_dir(),
                progress=report,
                clients=client,
                options=chosen,
            )
        if as_json:
            _print_json(windows)
        else:
            _count(windows, time.perf_counter() - began)


@contextmanager
def _cli_errors() -> Iterator[None]:
    """Turn this package's errors into one red line and exit code 2."""
    try:
        yield
    except PipelineError as error:
        print_error(str(error))
        raise typer.Exit(ExitCode.REFUSED) from error
    except ModuleNotFoundError as error:
        if error.name not in ("pandas", "PIL"):
            raise
        print_error(f"this needs {error.name}, which is not installed: {install_command('runtime')}")
        raise typer.Exit(ExitCode.REFUSED) from error


def _refuse_other(dataset: str | None) -> None:
    if dataset not in (None, DESCRIBED):
        raise SettingsError(f"--describe replaces the data set; leave out {dataset!r}")


def _json(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
        raise typer.BadParameter(f"--options isn't valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise typer.BadParameter("--options must be a JSON object")
    return record


def _record(reader: RecordingReader) -> dict[str, Any]:
    about = {"name": reader.name, "summary": reader.summary, "acceleration": reader.acceleration}
    return {**about, "expected": reader.expected(reader.defaults)}


def _details(dataset: str, root: Path | None) -> dict[str, Any]:
    """Return what `info` says of one data set."""
    reader = reader_of(dataset)
    source = None if root is None else reader.open(root, reader.options(None))
    found = None if source is None else {"root": f"{source.root}/{source.base}", "files": source.count}
    about = {"settings": reader.settings.to_json(), "options": dict(reader.defaults), "found": found}
    return {**_record(reader), "labels": list(reader.labels(reader.defaults)), **about}


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _print_json(dataset: WindowedDataset) -> None:
    """Print the number of windows per client and activity, and suspicious data."""
    counts = {
        client: dict(zip(dataset.labels, map(int, found), strict=True))
        for client, found in dataset.class_counts().items()
    }
    findings = [
        {"severity": severity, "clients": whose, "message": words}
        for severity, whose, words in grouped(dataset.findings, len(dataset.clients))
    ]
    print(json.dumps({"name": dataset.name, "windows": counts, "findings": findings}, indent=2, ensure_ascii=False))


def _describe(dataset: str, root: Path | None) -> None:
    reader = reader_of(dataset)
    console.print(f"[bold]{reader.name}[/]: {reader.summary}")
    if isinstance(reader, AppReader):
        labels = "those of option labels"
    else:
        labels = ", ".join(reader.labels(reader.defaults)) or "as described"
    console.print(f"labels    {labels}")
    meaning = "" if reader.name == DESCRIBED else f": {MEANINGS[reader.acceleration]}"
    console.print(f"acceleration  {_acceleration(reader)}{meaning}", markup=False, soft_wrap=True)
    console.print(f"expected  {reader.expected(reader.defaults)}", markup=False)
    console.print(f"settings  {json.dumps(reader.settings.to_json())}")
    if reader.defaults:
        console.print(f"options   {json.dumps(dict(reader.defaults))}", markup=False)
    if root is not None:
        source = reader.open(root, reader.options(None))
        where = f"{source.count} files in {source.root}/{source.base}" if source else "needs no files"
        console.print(f"found     {where}", markup=False)
        if isinstance(reader, AppReader) and isinstance(source, AppSource):
            show_found(reader, source, console)


def _acceleration(reader: RecordingReader) -> str:
    return "as described" if reader.name == DESCRIBED else reader.acceleration


def _merging(dataset: str, combination: Combination) -> Table:
    """Return a table of the members' activities and their common names."""
    table = Table("activity", *combination.members, title=dataset)
    for common in dataset_labels(dataset):
        published = (
            [label for label in dataset_labels(member) if combination.common(label) == common]
            for member in combination.members
        )
        table.add_row(common, *(", ".join(names) for names in published))
    return table


def _count(dataset: WindowedDataset, seconds: float) -> None:
    splits = {name: split_client(windows, settings=dataset.settings) for name, windows in dataset.clients.items()}
    clients = Table("client", "windows", "training", "test", "classes", "Hz", "holds to")
    for name, counts in dataset.class_counts().items():
        sizes = (len(dataset.clients[name]), len(splits[name].train), len(splits[name].test))
        rates, held = (
            sorted({f"{rate:.3g}" for rate in dataset.rates_hz.get(name, {}).values()}),
            dataset.bandwidth_hz(name),
        )
        shown = (" and ".join(rates), "" if held is None else f"{held:.3g} Hz")
        clients.add_row(escape(name), *(str(size) for size in sizes), f"{(counts > 0).sum()} of {len(counts)}", *shown)
    console.print(clients)
    classes = Table("activity", "windows", "test windows", "clients")
    for index, label in enumerate(dataset.labels):
        labelled = [windows.y == index for windows in dataset.clients.values()]
        tested = [chosen[splits[name].test] for name, chosen in zip(dataset.clients, labelled, strict=True)]
        total, test = (sum(int(mask.sum()) for mask in masks) for masks in (labelled, tested))
        classes.add_row(escape(label), str(total), str(test), str(sum(bool(mask.any()) for mask in labelled)))
    console.print(classes)
    total = sum(len(windows) for windows in dataset.clients.values())
    _show_findings(dataset)
    console.print(f"{dataset.name}: {len(dataset.clients)} clients, {total} windows in {seconds:.1f} s")


def _show_findings(dataset: WindowedDataset) -> None:
    """Print suspicious data in the recordings, one row for several clients with the same finding."""
    if not dataset.findings:
        return
    alarming = any(finding.severity != "note" for finding in dataset.findings)
    title = "The recordings may not be as described" if alarming else "Of the recordings"
    table = Table("", "whose", "finding" if alarming else "note", title=title)
    colours = {"error": "red", "warning": "yellow", "note": "dim"}
    for severity, whose, words in grouped(dataset.findings, len(dataset.clients)):
        table.add_row(f"[{colours[severity]}]{severity}[/]", escape(whose), escape(words))
    console.print(table)
