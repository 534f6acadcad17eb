"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32 × 32, in the published binary version.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. A record is the label (CIFAR-100: the coarse
one, then the fine one, which is the class here) and 3,072 bytes: red, green, blue, each by rows. The version for Python
is pickled and is not read.
"""

from __future__ import annotations

import re

import numpy as np

from federation.training.forward import Moments
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Member, Source
from sim.data.images.image_files import read_bounded
from sim.data.images.reader import CIFAR10, CIFAR100, ImageReader, LabelledImages, Options

CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: off
CIFAR100_LABELS = (
    "apple", "aquarium_fish", "baby", "bear", "beaver",
    "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly",
    "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach",
    "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard",
    "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum",
    "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew",
    "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table",
    "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe",
    "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on


SHAPE = (3, 32, 32)
PIXELS = 3072
MAX_RECORDS = 60_000


def _reader(
    name: str, labels: tuple[str, ...], layout: Layout, files: int, label_bytes: int, moments: Moments
) -> ImageReader:
    size = label_bytes + PIXELS

    def read(source: Source, options: Options) -> LabelledImages:
        batches = [(bool(match["test"]), member.name, _records(member, size)) for match, member in source.members()]
        if len(batches) != files:
            names = ", ".join(name for _, name, _ in batches)
            raise SourceError(f"{source.root} holds {names}; expected {layout.expected}")
        batches.sort(key=lambda batch: batch[:2])  # a tar has its own order
        records = np.concatenate([batch for *_, batch in batches])
        train = np.repeat([not test for test, *_ in batches], [len(batch) for *_, batch in batches])
        x = records[:, label_bytes:].reshape(-1, *SHAPE)
        return LabelledImages(x, records[:, label_bytes - 1].astype(np.int64), labels, train)

    summary = f"{name.upper()}: 60,000 images, 32 × 32, {len(labels)} classes, the published binary version"
    return ImageReader(
        name=name,
        summary=summary,
        labels=lambda options: labels,
        layouts=lambda options: (layout,),
        shape=lambda options: SHAPE,
        images=read,
        moments=moments,
    )


def _records(member: Member, size: int) -> np.ndarray:
    with member.open() as stream:
        content = read_bounded(stream, MAX_RECORDS * size, member.name)
    if not content or len(content) % size:
        raise SourceError(
            f"{member.name} has {len(content):,} bytes; expected a multiple of {size} (the binary version)"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)


TEN = Layout(
    files=re.compile(r"(?:(?<=/)|^)(?:data_batch_[1-5]\.bin|(?P<test>test_batch\.bin))$"),
    archives=re.compile(r"cifar-10-binary", re.IGNORECASE),
    expected="cifar-10-binary.tar.gz, or its data_batch_{1..5}.bin and test_batch.bin (the binary version)",
)
HUNDRED = Layout(
    files=re.compile(r"(?:(?<=/)|^)(?:train\.bin|(?P<test>test\.bin))$"),
    archives=re.compile(r"cifar-100-binary", re.IGNORECASE),
    expected="cifar-100-binary.tar.gz, or its train.bin and test.bin (the binary version)",
)
READERS = (
    _reader("cifar10", CIFAR10_LABELS, TEN, 6, 1, CIFAR10),
    _reader("cifar100", CIFAR100_LABELS, HUNDRED, 2, 2, CIFAR100),
)
