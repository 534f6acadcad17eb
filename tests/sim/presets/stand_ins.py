"""Generated files of the data sets that presets are about, each in its published layout, below one folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.har_pipeline import layouts as recordings
from tests.har_pipeline import layouts_pretraining as pretraining
from tests.har_pipeline.layouts import Files, unpacked
from tests.sim.data.images import layouts as images

TRAINED, TESTED = 24, 8
"""Images of each of ten digits or objects to train on and to test on."""
FEW_TRAINED, FEW_TESTED = 3, 1
"""Of each of 26 letters, and of each of CIFAR's hundred classes."""
IMAGES_EACH = 8
"""Of a person."""


def in_turn(classes: int, trained: int, tested: int) -> list[int]:
    return [*np.tile(np.arange(classes), trained).tolist(), *np.tile(np.arange(classes), tested).tolist()]


def image_sets() -> dict[str, Files]:
    digits, people = in_turn(10, TRAINED, TESTED), np.repeat([2880, 2937, 8692], IMAGES_EACH).tolist()
    smiles = np.tile([1, -1], len(people) // 2).tolist()
    return {
        "mnist": images.mnist(digits=digits, training=10 * TRAINED).files,
        "fashion_mnist": images.mnist(digits=digits, training=10 * TRAINED).files,
        "emnist": images.letters(TRAINED, TESTED).files,
        "cifar10": images.cifar10(digits, each=2 * TRAINED).files,
        "cifar100": images.cifar100(in_turn(100, FEW_TRAINED, FEW_TESTED), 100 * FEW_TRAINED).files,
        "celeba": images.celeba(people, smiles).files,
        "voc2012": images.voc_squares(40),
    }


def recording_sets() -> dict[str, Files]:
    return {
        "motionsense": recordings.motionsense(rows=800),
        "spsw": recordings.spsw(rows=2400),
        "ucihar": recordings.ucihar(times=4),
        "hhar": recordings.hhar(seconds=20),
        "realworld": recordings.realworld(rows=800),
        "pamap2": pretraining.pamap2(),
        "mobiact": pretraining.mobiact(),
        "shl": pretraining.shl(),
    }


def write_stand_ins(folder: Path) -> Path:
    """Write every set into a folder of its name, and return the folder of all."""
    for name, files in (image_sets() | recording_sets()).items():
        unpacked(files, folder / name)
    return folder
