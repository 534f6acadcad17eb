"""Pascal VOC 2012, segmentation: images with a class of 20 objects, or background, for each pixel.

Which classes the images show can also be read from a CSV file, without any image. M. Everingham et al.: The Pascal
Visual Object Classes Challenge, IJCV 111, 2015; B. Hariharan et al.: Semantic Contours from Inverse Detectors, ICCV
2011 (the augmented masks). The file has one line a mask: `image`, `in_train_aug` (1 for the 10,582 of train_aug),
`width`, `height`, `classes` (numbers 1 to 20, parted by spaces). Enough to deal the images to clients and to count what
they got.

Everingham et al., "The Pascal visual object classes (VOC) challenge", IJCV 88, 2010; with option masks="augmented" the
masks of Hariharan et al., "Semantic contours from inverse detectors", ICCV 2011, as others publish them together:
SegmentationClassAug and train_aug.txt, 10,582 images to train on instead of 1,464. The published test part has no masks
to be had; as is usual the 1,449 images of val.txt are what is tested on. Without them (`val`=false) all images are of
the part to train on, of which a partition with test="split" makes each client a test set. Objects' outlines (255) have
no class. `classes`="macro" joins the 20 classes to four as Michieli and Ozay 2021 do; `one_object` keeps the images
with one class besides the background, as they do. Partitions deal by the object class of most pixels, or by its macro
class. Memory: 256 kB an example of 256 × 256.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from gaitway.images import Bytes
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import DAMAGED, VOID, classes_table, read_bounded
from sim.data.images.mask_folder import (
    FRAME,
    ImageMaskPair,
    dominant_class,
    frame_of,
    images_of,
    mask_reader,
    read_images,
    read_masks,
)
from sim.data.images.reader import LabelledImages, Options, PartitionTargets, chosen
from sim.errors import SettingsError

COLUMNS = ("image", "in_train_aug", "classes")
MAX_BYTES = 1 << 24
MAX_CLASSES = 20


def single_class_images(path: Path) -> npt.NDArray[np.int64]:
    """Return the class 0 to 19 of each image of train_aug that shows one object class, in the file's order.

    Those are what Michieli and Ozay 2021 divide: 6,746 of the published file, 6,665 in their paper.

    Raises:
        SettingsError: if there is no such file.
        SourceError: if it is damaged, or its lines are something else.
    """
    if not path.is_file():
        raise SettingsError(f"{path} isn't a file; expected a CSV, or CSV.gz, with the columns {', '.join(COLUMNS)}")
    with path.open("rb") as file:
        text = _read(file, path)
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        columns = ",".join(map(str, rows.fieldnames or ())) or "nothing"
        raise SourceError(f"{path}: the first line is {columns[:80]!r}; expected columns {', '.join(COLUMNS)}")
    found = [_classes(path, rows.line_num, dict(row)) for row in rows if row["in_train_aug"] == "1"]
    return np.array([classes[0] - 1 for classes in found if len(classes) == 1], dtype=np.int64)


def _read(file: IO[bytes], path: Path) -> str:
    try:
        if path.suffix != ".gz":
            return read_bounded(file, MAX_BYTES, str(path)).decode()
        with gzip.GzipFile(fileobj=file) as unpacked:
            return read_bounded(cast("IO[bytes]", unpacked), MAX_BYTES, str(path)).decode()
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as text: {error}") from error


def _classes(path: Path, line: int, row: dict[str, str | None]) -> list[int]:
    if row["classes"] is None:
        raise SourceError(f"{path}, line {line}: it ends early; expected the columns {', '.join(COLUMNS)}")
    words = row["classes"].split()
    if not all(word.isdigit() and 1 <= int(word) <= MAX_CLASSES for word in words):
        raise SourceError(f"{path}, line {line}: classes {row['classes']!r}; expected numbers from 1 to {MAX_CLASSES}")
    return [int(word) for word in words]


BACKGROUND = "background"
OBJECTS = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
MACRO = {
    "person": ("person",),
    "vehicles": ("aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train"),
    "household": ("bottle", "chair", "diningtable", "pottedplant", "sofa", "tvmonitor"),
    "animals": ("bird", "cat", "cow", "dog", "horse", "sheep"),
}
MACRO_OF = np.array([0, *(1 + next(n for n, group in enumerate(MACRO.values()) if name in group) for name in OBJECTS)])
"""The macro class (21,) of each class; the background is 0 of both."""
LABELS = {"objects": (BACKGROUND, *OBJECTS), "macro": (BACKGROUND, *MACRO)}
MASKS = {"published": ("SegmentationClass", "train"), "augmented": ("SegmentationClassAug", "train_aug")}
MAX_TEXT_BYTES = 4 << 20
LISTED = re.compile(r"(?:\S*/)?(?P<name>[\w-]+)(?:\.jpg)?(?:\s+\S+)?")
"""`2007_000032`, or `/JPEGImages/2007_000032.jpg /SegmentationClassAug/2007_000032.png`."""
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?:JPEGImages/(?P<image>[\w-]+)\.jpg"
        r"|(?:SegmentationClassAug\.zip/)?(?P<folder>SegmentationClass(?:Aug)?)/(?P<mask>[\w-]+)\.png"
        r"|(?:ImageSets/Segmentation(?:Aug)?/)?(?P<list>train|val|train_?aug)\.txt)$"
    ),
    archives=re.compile(r"voc|SegmentationClassAug", re.IGNORECASE),
    expected=(
        "VOCdevkit/VOC2012/ with JPEGImages/NAME.jpg, SegmentationClass/NAME.png and ImageSets/Segmentation/"
        "{train,val}.txt, as VOCtrainval_11-May-2012.tar of host.robots.ox.ac.uk/pascal/VOC/voc2012 holds them "
        "(masks=augmented: SegmentationClassAug/NAME.png and train_aug.txt beside them, of the Semantic Boundaries "
        "Dataset)"
    ),
)


def labels(options: Options) -> tuple[str, ...]:
    """Return background and the objects' classes; raises SettingsError for a word that an option does not know."""
    chosen(options, "masks", tuple(MASKS))
    chosen(options, "deal_by", ("class", "macro"))
    for key in ("one_object", "val"):
        if not isinstance(options[key], bool):
            raise SettingsError(f"option {key} is {options[key]!r}; expected true or false")
    return LABELS[chosen(options, "classes", tuple(LABELS))]


def read(source: Source, options: Options) -> LabelledImages:
    """Read the listed masks, then the images that are kept, ordered by part and name."""
    frame, pairs = frame_of(options), _pairs(source, options)
    identity = {number: number for number in range(len(LABELS["objects"]))}
    masks, sizes = read_masks(source, pairs, frame, classes_table({**identity, VOID: VOID}))
    if options["one_object"]:
        kept = _objects(masks) == 1
        if not kept.any():
            raise SourceError(f"{source.root}: none of {len(pairs)} masks has exactly one class of objects")
        masks, pairs, sizes = masks[kept], list(compress(pairs, kept)), list(compress(sizes, kept))
    dealt = PartitionTargets(dominant_class(masks, background=0), LABELS["objects"])
    if "macro" in (options["classes"], options["deal_by"]):
        dealt = PartitionTargets(MACRO_OF[dealt.y], LABELS["macro"])
    if options["classes"] == "macro":
        masks = _macro(masks)
    return images_of(pairs, read_images(source, pairs, frame, sizes), masks, labels(options), dealt)


def _objects(masks: Bytes) -> np.ndarray:
    """Count the classes of objects (n,) in each mask."""
    objects = range(1, len(LABELS["objects"]))
    return np.array([np.isin(np.unique(mask), objects).sum() for mask in masks])


def _macro(masks: Bytes) -> Bytes:
    table = np.full(256, VOID, dtype=np.uint8)
    table[: len(MACRO_OF)] = MACRO_OF
    joined: Bytes = table[masks]
    return joined


def _pairs(source: Source, options: Options) -> list[ImageMaskPair]:
    """Return what the lists of both parts name."""
    folder, train = MASKS[options["masks"]]
    images: dict[str, str] = {}
    masks: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for match, member in source.members():
        if match["image"]:
            images[match["image"]] = member.name
        elif match["folder"] == folder:
            masks[match["mask"]] = member.name
        elif match["list"]:
            with member.open() as stream:
                text = read_bounded(stream, MAX_TEXT_BYTES, member.name).decode("ascii", "replace")
            lists[match["list"].replace("trainaug", "train_aug")] = list(_listed(text, member.name))
    parts = {"train": train, **({"test": "val"} if options["val"] else {})}
    for name in parts.values():
        if not lists.get(name):
            raise SourceError(f"{source.root} has no images listed in {name}.txt; expected {LAYOUT.expected}")
    return [
        ImageMaskPair(_file(images, name, "JPEGImages", source), _file(masks, name, folder, source), part)
        for part, listed in parts.items()
        for name in sorted(set(lists[listed]))
    ]


def _listed(text: str, where: str) -> Iterator[str]:
    for line in filter(None, map(str.strip, text.splitlines())):
        match = LISTED.fullmatch(line)
        if match is None:
            raise SourceError(f"{where} has a line {line[:80]!r}; expected names of images such as 2007_000032")
        yield match["name"]


def _file(found: dict[str, str], name: str, folder: str, source: Source) -> str:
    if name not in found:
        raise SourceError(f"{source.root}: {name} is listed, but {folder} has no such file; expected {LAYOUT.expected}")
    return found[name]


READER = mask_reader(
    name="voc2012",
    summary="Pascal VOC 2012, a class of 20 objects for each pixel; options masks, val, classes, one_object, "
    "deal_by, height, width, fit",
    labels=labels,
    layouts=lambda options: (LAYOUT,),
    images=read,
    defaults={
        **FRAME,
        "masks": "published",
        "val": True,
        "classes": "objects",
        "one_object": False,
        "deal_by": "class",
    },
)
