"""What a preset's clients get, from the classes of images alone: the images themselves need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim.cli.options import assignments
from sim.data.images import voc
from sim.data.partitions import Pool, Share, class_counts, partition_from_json
from sim.errors import SettingsError
from sim.presets.preset import Preset


class PresetShares(NamedTuple):
    """Who got which of the images, whose classes are y (n,) and `labels`."""

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
    """Deal images whose object classes (n,) are 0 to 19 as a run of this preset would deal them.

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
