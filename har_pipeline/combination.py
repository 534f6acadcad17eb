"""Several data sets as one federation: clients side by side, activities of the same meaning under one name.

`combined` is the Combined set of Ek et al. 2024: HHAR and RealWorld 2016, 141 clients, nine activities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from har_pipeline.errors import SettingsError
from har_pipeline.recording import Recording
from har_pipeline.windows import WindowedDataset


class Combination(NamedTuple):
    """Names of the data sets, and which activity goes by which other name."""

    parts: tuple[str, ...]
    synonyms: dict[str, str]


COMBINATIONS = {
    "combined": Combination(
        ("hhar", "realworld"),
        {
            "sit": "sitting",
            "stand": "standing",
            "walk": "walking",
            "stairsup": "climbingup",
            "stairsdown": "climbingdown",
        },
    )
}


def united_labels(name: str, labels: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the union of the parts' labels after renaming, sorted."""
    synonyms = COMBINATIONS[name].synonyms
    return tuple(sorted({synonyms.get(label, label) for each in labels for label in each}))


def unite(name: str, datasets: Sequence[WindowedDataset]) -> WindowedDataset:
    """Lay data sets together; a client `a_nexus4` of hhar becomes `hhar-a_nexus4`.

    Raises SettingsError where the parts were cut with different settings.
    """
    if any(each.settings != datasets[0].settings for each in datasets):
        raise SettingsError(f"{name}: its parts were prepared with different settings; give one for all")
    labels = united_labels(name, [each.labels for each in datasets])
    synonyms = COMBINATIONS[name].synonyms
    clients = {}
    for dataset in datasets:
        to_united = np.array([labels.index(synonyms.get(label, label)) for label in dataset.labels])
        for client, windows in dataset.clients.items():
            united = f"{dataset.name}-{client}"
            clients[united] = replace(windows, client=united, y=to_united[windows.y])
    return WindowedDataset(name, labels, dict(sorted(clients.items())), datasets[0].settings)


def rename(name: str, part: str, recording: Recording) -> Recording:
    """Give a part's recording the client id and the activity names of the combination."""
    synonyms = COMBINATIONS[name].synonyms
    names, codes = np.unique(np.atleast_1d(recording.activity), return_inverse=True)
    renamed = np.array([synonyms.get(each, each) for each in names.tolist()])[codes]
    activity = str(renamed[0]) if isinstance(recording.activity, str) else renamed
    return recording._replace(client=f"{part}-{recording.client}", activity=activity)


def part_clients(part: str, clients: Sequence[str] | None) -> list[str] | None:
    """Return the chosen clients of one part, under their own ids."""
    prefix = f"{part}-"
    return None if clients is None else [each.removeprefix(prefix) for each in clients if each.startswith(prefix)]
