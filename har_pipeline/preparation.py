"""Prepares a data set's windows from its name: reader, one stream per client, cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitway.errors import did_you_mean
from gaitway.plugins import PluginError, hint
from har_pipeline import cache
from har_pipeline.combination import (
    COMBINATIONS,
    adopt,
    combination_of,
    error_context,
    member_clients,
    member_options,
    member_settings,
    rename,
    unite,
    united_labels,
)
from har_pipeline.cutting import WindowCutter
from har_pipeline.errors import SettingsError, SignalError, SourceError
from har_pipeline.readers import READERS
from har_pipeline.readers.archive import Source
from har_pipeline.readers.reader import RecordingReader
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding, SignalChecks
from har_pipeline.streaming.windows import ClientWindows, WindowedDataset

log = logging.getLogger(__name__)

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the latest one's client."""


def dataset_names() -> tuple[str, ...]:
    """Return the names of all sets of recordings: those of installed packages and combinations too."""
    return (*READERS, *COMBINATIONS)


def reader_of(dataset: str) -> RecordingReader:
    """Return a reader by name; SettingsError names the nearest known one."""
    if dataset not in READERS:
        near = did_you_mean(dataset, dataset_names())
        raise SettingsError(f"unknown data set {dataset!r}; {near}{hint('readers', dataset)}")
    try:
        return READERS[dataset]
    except PluginError as error:
        raise SettingsError(str(error)) from error


def dataset_labels(dataset: str, options: dict[str, Any] | None = None) -> tuple[str, ...]:
    """Return the label names of a data set, in the order of their indices; a combination takes options by member."""
    if combination := combination_of(dataset):
        labels = []
        for member, own_options in member_options(dataset, combination.members, options).items():
            with error_context(dataset, member):
                labels.append(dataset_labels(member, own_options))
        return united_labels(combination, labels)
    reader = reader_of(dataset)
    return reader.labels(reader.options(options))


def dataset_number(dataset: str, options: dict[str, Any] | None = None) -> str:
    """Return the number that a regression can learn from a data set, with its unit; "": none, as for combinations."""
    if combination_of(dataset):
        return ""
    reader = reader_of(dataset)
    return reader.number(reader.options(options))


def dataset_settings(dataset: str) -> PipelineSettings:
    """Return the preset of a data set (spsw advances by 16 samples, all others by 64).

    For a combination these are the defaults: each member keeps its preset except for changes from them.
    """
    if combination_of(dataset):
        return PipelineSettings()
    return reader_of(dataset).settings


def recordings(
    dataset: str,
    root: Path | str | None,
    *,
    clients: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[Recording]:
    """Yield a data set's raw recordings, each client's sessions one after another.

    Raises SourceError if the files aren't as published.
    """
    if combination := combination_of(dataset):
        by_member = member_options(dataset, combination.members, options)
        chosen = member_clients(dataset, combination.members, None if clients is None else list(clients))
        for member, wanted in chosen.items():
            with error_context(dataset, member):
                for recording in recordings(member, root, clients=wanted, options=by_member[member]):
                    yield rename(combination, member, recording)
        return
    reader = reader_of(dataset)
    chosen_options = reader.options(options)
    yield from reader.read(reader.open(root, chosen_options), clients, chosen_options)


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
    result is stored there under a hash of inputs, settings, clients and options; a failure to store is logged. A
    combination takes options by member, {"spsw": {…}}, and keeps each member's preset except for what `settings`
    changes from the defaults. Raises PipelineError.
    """
    settings = settings or dataset_settings(dataset)
    wanted = None if clients is None else sorted(set(clients))
    if combination_of(dataset):
        members = prepare_members(
            dataset, root, settings, cache_dir=cache_dir, progress=progress, clients=wanted, options=options
        )
        return unite(dataset, list(members), settings)
    reader = reader_of(dataset)
    chosen_options = reader.options(options)
    source = reader.open(root, chosen_options)
    if cache_dir is None:
        return _build(reader, source, settings, wanted, chosen_options, progress)
    request = {
        "settings": settings.to_json(),
        "clients": wanted,
        "options": chosen_options,
        "acceleration": reader.convention(chosen_options),
    }
    key = cache.cache_key(dataset, source.inputs if source else (), request)
    path = Path(cache_dir) / f"{dataset}-{key}.npz"
    kept = cache.load(path)
    if kept is None:
        kept = _build(reader, source, settings, wanted, chosen_options, progress)
        try:
            cache.save(path, kept)
        except OSError as error:  # they are as good without
            why = error.strerror or error
            log.warning(
                "prepared windows cannot be stored in %s: %s; name another folder with --cache", path.parent, why
            )
    return kept


def prepare_members(
    dataset: str,
    root: Path | str | None,
    settings: PipelineSettings | None = None,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    clients: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[WindowedDataset]:
    """Yield a combination member by member, prepared as by prepare(), so that not all windows must fit in memory.

    Labels and client ids are already those of the combination. Raises PipelineError, which names the member.
    """
    combination = combination_of(dataset)
    if combination is None:
        raise SettingsError(f"{dataset} is one data set; use prepare(), or a combination: {', '.join(COMBINATIONS)}")
    labels = dataset_labels(dataset, options)
    by_member = member_options(dataset, combination.members, options)
    chosen = member_clients(dataset, combination.members, None if clients is None else sorted(set(clients)))
    for member, wanted in chosen.items():
        with error_context(dataset, member):
            own = member_settings(dataset_settings(member), settings or PipelineSettings())
            prepared = prepare(
                member, root, own, cache_dir=cache_dir, progress=progress, clients=wanted, options=by_member[member]
            )
        yield adopt(combination, dataset, labels, prepared)


def _build(
    reader: RecordingReader,
    source: Source | None,
    settings: PipelineSettings,
    wanted: list[str] | None,
    options: dict[str, Any],
    progress: Progress | None,
) -> WindowedDataset:
    labels, checks = reader.labels(options), SignalChecks(reader.declared_hz(options), reader.convention(options))
    lost: tuple[Finding, ...] = ()
    if reader.windows is not None:
        # these windows have the grid's rate, so no filter is left out, and each has its activity
        ours = {name: getattr(reader.settings, name) for name in ("anti_alias", "keep_unlabelled")}
        if replace(settings, **ours) != reader.settings:
            raise SettingsError(f"{reader.name} is published as windows; its settings cannot be changed")
        windows = reader.read_windows(source, wanted, options)
        for client in windows.values():
            for recording in _as_recordings(client, settings):
                checks.add(recording)
    else:
        cutter = WindowCutter(settings, labels, checks, leaves_out=reader.leaves_out(options))
        for done, recording in enumerate(reader.read(source, wanted, options), start=1):
            cutter.take(recording)
            if progress is not None:
                progress(done, recording.client)
        windows = cutter.finish()
        lost = tuple(cutter.findings(windows))
    missing = sorted(set(wanted or ()) - set(windows))
    if missing:
        raise SettingsError(f"{reader.name} has no client {missing[0]!r} ({len(missing)} of those asked for)")
    if not windows:
        raise SourceError(f"{reader.name}: no recordings of both sensors in {source.root if source else 'the options'}")
    without = [
        checks.no_windows(client, settings.window_s, settings.max_gap_s)
        for client in sorted(windows)
        if not len(windows[client])
    ]
    if len(without) == len(windows):
        first = without[0]
        raise SignalError(f"{reader.name} gives no window at all; {first.client}, 1 of {len(windows)}: {first.message}")
    origins = {client: reader.origin(client) for client in windows}
    findings = (*without, *lost, *checks.findings())
    ordered = dict(sorted(windows.items()))
    number = reader.number(options)
    return WindowedDataset(reader.name, labels, ordered, settings, origins, checks.rates_hz(), findings, number)


def _as_recordings(windows: ClientWindows, settings: PipelineSettings) -> Iterator[Recording]:
    """Yield published windows as recordings again, without what each shares with the next."""
    offsets = np.arange(settings.stride) / settings.rate_hz
    for session in np.unique(windows.session):
        in_session = windows.session == session
        times = (windows.start_s[in_session][:, None] + offsets).ravel()
        values = windows.x[in_session, : settings.stride].reshape(len(times), -1)
        yield Recording(windows.client, str(session), "", "acc", times, values[:, :3])
        yield Recording(windows.client, str(session), "", "gyro", times, values[:, 3:])
