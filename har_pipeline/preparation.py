"""From a data set's name to its windows: reader, one stream per client, cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from har_pipeline import cache
from har_pipeline.archive import Source, locate
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers import READERS
from har_pipeline.readers.reader import Reader
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings, nearest
from har_pipeline.stream import StreamPipeline, Window
from har_pipeline.windows import ClientWindows, WindowedDataset

DATASETS = tuple(READERS)

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


def reader_of(dataset: str) -> Reader:
    """Return a reader by name; SettingsError names the nearest known one."""
    if dataset not in READERS:
        raise SettingsError(f"unknown data set {dataset!r}; {nearest(dataset, DATASETS)}")
    return READERS[dataset]


def dataset_labels(dataset: str, options: dict[str, Any] | None = None) -> tuple[str, ...]:
    """Return the label names of a data set, in the order of their indices."""
    reader = reader_of(dataset)
    return reader.labels(reader.options(options))


def dataset_settings(dataset: str) -> PipelineSettings:
    """Return the preset of a data set (spsw advances by 16 samples, all others by 64)."""
    return reader_of(dataset).settings


def recordings(
    dataset: str,
    root: Path | str | None,
    *,
    clients: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[Recording]:
    """Yield a data set's raw recordings; raises SourceError where its files are not as published."""
    reader = reader_of(dataset)
    chosen_options = reader.options(options)
    return reader.recordings(_open(reader, root, chosen_options), clients, chosen_options)


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
    reader = reader_of(dataset)
    settings = settings or reader.settings
    chosen_options = reader.options(options)
    source = _open(reader, root, chosen_options)
    wanted = None if clients is None else sorted(clients)
    request = {"settings": settings.to_json(), "clients": wanted, "options": chosen_options}
    path = None
    if cache_dir is not None:
        key = cache.cache_key(dataset, source.inputs if source else (), request)
        path = Path(cache_dir) / f"{dataset}-{key}.npz"
        kept = cache.load(path)
        if kept is not None:
            return kept
    labels = reader.labels(chosen_options)
    if reader.windows is not None:
        windows = reader.windows(source, wanted, chosen_options)
    else:
        stream = reader.recordings(source, wanted, chosen_options)
        windows = _cut(stream, settings, labels, progress)
    _refuse_missing(dataset, windows, wanted)
    result = WindowedDataset(dataset, labels, dict(sorted(windows.items())), settings)
    if path is not None:
        cache.save(path, result)
    return result


def _open(reader: Reader, root: Path | str | None, options: dict[str, Any]) -> Source | None:
    layout = reader.layout(options)
    return None if layout is None else locate(root, layout, reader.name)


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
    return {client: ClientWindows.stack(client, each, settings) for client, each in windows.items()}


def _refuse_missing(dataset: str, windows: dict[str, ClientWindows], wanted: list[str] | None) -> None:
    if not windows:
        raise SourceError(f"{dataset}: no recordings were found; ask for other clients or check the path")
    missing = sorted(set(wanted or ()) - set(windows))
    if missing:
        raise SettingsError(f"{dataset} has no client {missing[0]!r} ({len(missing)} of those asked for are missing)")
