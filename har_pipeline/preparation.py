"""From a data set's name to its windows: reader, one stream per client, cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from har_pipeline import cache
from har_pipeline.archive import Source, locate
from har_pipeline.combination import COMBINATIONS, part_clients, rename, unite, united_labels
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers import READERS
from har_pipeline.readers.reader import Reader
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings, nearest
from har_pipeline.stream import StreamPipeline, Window
from har_pipeline.windows import ClientWindows, WindowedDataset

DATASETS = (*READERS, *COMBINATIONS)

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


def reader_of(dataset: str) -> Reader:
    """Return a reader by name; SettingsError names the nearest known one."""
    if dataset not in READERS:
        raise SettingsError(f"unknown data set {dataset!r}; {nearest(dataset, DATASETS)}")
    return READERS[dataset]


def dataset_labels(dataset: str, options: dict[str, Any] | None = None) -> tuple[str, ...]:
    """Return the label names of a data set, in the order of their indices."""
    if dataset in COMBINATIONS:
        return united_labels(dataset, [dataset_labels(part) for part in COMBINATIONS[dataset].parts])
    reader = reader_of(dataset)
    return reader.labels(reader.options(options))


def dataset_settings(dataset: str) -> PipelineSettings:
    """Return the preset of a data set (spsw advances by 16 samples, all others by 64)."""
    if dataset in COMBINATIONS:
        return dataset_settings(COMBINATIONS[dataset].parts[0])
    return reader_of(dataset).settings


def recordings(
    dataset: str,
    root: Path | str | None,
    *,
    clients: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[Recording]:
    """Yield a data set's raw recordings, each client's sessions one after another.

    Raises SourceError where the files are not as published.
    """
    if dataset in COMBINATIONS:
        for part in COMBINATIONS[dataset].parts:
            wanted = part_clients(part, None if clients is None else list(clients))
            if wanted != []:
                for recording in recordings(part, root, clients=wanted, options=options):
                    yield rename(dataset, part, recording)
        return
    reader = reader_of(dataset)
    chosen_options = reader.options(options)
    yield from reader.recordings(open_source(reader, root, chosen_options), clients, chosen_options)


def prepare(
    dataset: str,
    root: Path | str | None,
    settings: PipelineSettings | None = None,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    clients: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> WindowedDataset:
    """Read, filter, resample and cut a data set into windows.

    root is a folder or archive (None for `synthetic`); settings default to the data set's preset. With cache_dir the
    result is kept there under a hash of inputs, settings, clients and options. Raises PipelineError.
    """
    settings = settings or dataset_settings(dataset)
    wanted = None if clients is None else sorted(set(clients))
    if dataset in COMBINATIONS:
        parts = [(part, part_clients(part, wanted)) for part in COMBINATIONS[dataset].parts]
        prepared = [
            prepare(part, root, settings, cache_dir=cache_dir, progress=progress, clients=mine, options=options)
            for part, mine in parts
            if mine != []
        ]
        if wanted is not None and sum(len(each.clients) for each in prepared) < len(wanted):
            raise SettingsError(f"{dataset} clients are called {{part}}-{{client}}; not all of {wanted} exist")
        return unite(dataset, prepared)
    reader = reader_of(dataset)
    chosen_options = reader.options(options)
    source = open_source(reader, root, chosen_options)
    if cache_dir is None:
        return _build(reader, source, settings, wanted, chosen_options, progress)
    request = {"settings": settings.to_json(), "clients": wanted, "options": chosen_options}
    key = cache.cache_key(dataset, source.inputs if source else (), request)
    path = Path(cache_dir) / f"{dataset}-{key}.npz"
    kept = cache.load(path)
    if kept is None:
        kept = _build(reader, source, settings, wanted, chosen_options, progress)
        cache.save(path, kept)
    return kept


def open_source(reader: Reader, root: Path | str | None, options: dict[str, Any]) -> Source | None:
    """Find a reader's files under root; None for a reader without files. Raises SourceError."""
    layout = reader.layout(options)
    return None if layout is None else locate(root, layout, reader.name)


def _build(
    reader: Reader,
    source: Source | None,
    settings: PipelineSettings,
    wanted: list[str] | None,
    options: dict[str, Any],
    progress: Progress | None,
) -> WindowedDataset:
    labels = reader.labels(options)
    if reader.windows is not None:
        if settings != reader.settings:
            raise SettingsError(f"{reader.name} is published as windows; its settings cannot be changed")
        windows = reader.windows(source, wanted, options)
    else:
        windows = _cut(reader.recordings(source, wanted, options), settings, labels, progress)
    missing = sorted(set(wanted or ()) - set(windows))
    if missing:
        raise SettingsError(f"{reader.name} has no client {missing[0]!r} ({len(missing)} of those asked for)")
    if not windows:
        raise SourceError(f"{reader.name}: no recordings of both sensors in {source.root if source else 'the options'}")
    return WindowedDataset(reader.name, labels, dict(sorted(windows.items())), settings)


def _cut(
    stream: Iterator[Recording], settings: PipelineSettings, labels: tuple[str, ...], progress: Progress | None
) -> dict[str, ClientWindows]:
    pipelines: dict[str, StreamPipeline] = {}
    windows: dict[str, list[Window]] = {}
    for done, recording in enumerate(stream, start=1):
        client = recording.client
        if client not in pipelines:
            pipelines[client], windows[client] = StreamPipeline(settings, labels), []
        windows[client] += pipelines[client].push(recording)
        if progress is not None:
            progress(done, client)
    for client, pipeline in pipelines.items():
        windows[client] += pipeline.flush()
    # Popped, so that no more than one client's windows are held twice.
    return {client: ClientWindows.stack(client, windows.pop(client), settings) for client in list(windows)}
