"""The window cache: one file per hash of inputs and settings, written atomically, rebuilt if damaged."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaitway.files import written_whole
from har_pipeline.errors import PipelineError
from har_pipeline.recording import Origin
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding
from har_pipeline.streaming.windows import ClientWindows, WindowedDataset

# Increment this with every change that alters windows, so that old files are no longer found.
FORMAT = 7
FIELDS = ("x", "y", "start_s", "session", "number")


def cache_key(dataset: str, inputs: Sequence[Path], request: dict[str, Any]) -> str:
    """Hash names, sizes and modification times of the input files and the JSON-able request."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in inputs]
    record = {"format": FORMAT, "dataset": dataset, "files": sorted(files), "request": request}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:24]


def save(path: Path, dataset: WindowedDataset) -> None:
    """Write a cache file atomically."""
    clients = list(dataset.clients.values())
    meta = {
        "name": dataset.name,
        "labels": dataset.labels,
        "settings": dataset.settings.to_json(),
        "clients": [[windows.client, len(windows), *dataset.origin(windows.client)] for windows in clients],
        "rates_hz": dataset.rates_hz,
        "findings": dataset.findings,
        "number": dataset.number,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as stream:
        arrays = {name: np.concatenate([getattr(windows, name) for windows in clients]) for name in FIELDS}
        np.savez(stream, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)


def load(path: Path) -> WindowedDataset | None:
    """Read a file from `save`; None if it doesn't exist or is damaged (a CRC covers every byte)."""
    try:
        # Opened here: np.load leaves its own handle open on a damaged file.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as packed:
            meta = json.loads(str(packed["meta"]))
            arrays = {name: packed[name] for name in FIELDS}
        settings = PipelineSettings.from_json(meta["settings"])
        clients, origins, start = {}, {}, 0
        for client, count, *origin in meta["clients"]:
            clients[client] = ClientWindows(client, *(arrays[name][start : start + count] for name in FIELDS))
            origins[client] = Origin(*origin)
            start += count
        findings = tuple(Finding(*entry) for entry in meta["findings"])
        return WindowedDataset(
            meta["name"], tuple(meta["labels"]), clients, settings, origins, meta["rates_hz"], findings, meta["number"]
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, PipelineError):
        return None
