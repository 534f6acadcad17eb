"""CamVid: 701 images of four drives through Cambridge, a class for each pixel; a natural client is a drive.

Brostow, Fauqueur, Cipolla, "Semantic object classes in video: a high-definition ground truth database", Pattern
Recognition Letters 30, 2009; in the eleven classes, the parts and the size of 480 × 360 of Badrinarayanan, Kendall,
Cipolla, "SegNet", TPAMI 2017 (arXiv 1511.00561): 367 to train on, 101 for validation, 233 to test on.
The published test part has other drives than the training part: by it two clients are tested, one of which has nothing
to train on. Images of one drive are a second apart, so test="split" tests on scenes that were nearly seen.
`deal_by` is what partitions by label deal: "distinctive", the class that an image has more of than others have (by
"largest" all but a few images are of road or building), or "drive".
"""

from __future__ import annotations

import re

import numpy as np

from gaitway.images import Bytes
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import VOID, classes_table
from sim.data.images.mask_folder import (
    FRAME,
    ImageMaskPair,
    distinctive,
    dominant_class,
    frame_of,
    images_of,
    mask_reader,
    read_images,
    read_masks,
)
from sim.data.images.reader import LabelledImages, Options, PartitionTargets, chosen

LABELS = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
VOID_LABEL = "void"
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?P<part>train|val|test)(?P<mask>annot)?/(?P<name>[^/]+)\.(?:png|jpe?g)$", re.IGNORECASE
    ),
    archives=re.compile(r"camvid|segnet", re.IGNORECASE),
    expected="{train,val,test}/NAME.png (or .jpg) and {train,val,test}annot/NAME.png",
)


def labels(options: Options) -> tuple[str, ...]:
    """Return the eleven classes, with void="class" a twelfth; raises SettingsError for a word that is none."""
    chosen(options, "deal_by", ("distinctive", "largest", "drive"))
    return LABELS if chosen(options, "void", ("ignore", "class")) == "ignore" else (*LABELS, VOID_LABEL)


def read(source: Source, options: Options) -> LabelledImages:
    """Read all images and masks, ordered by part and name."""
    names, frame, pairs = labels(options), frame_of(options), _pairs(source)
    table = classes_table({**{number: number for number in range(len(LABELS))}, VOID: VOID})
    table[len(LABELS)] = len(LABELS) if VOID_LABEL in names else VOID
    masks, sizes = read_masks(source, pairs, frame, table)
    images = read_images(source, pairs, frame, sizes)
    return images_of(pairs, images, masks, names, _dealt_by(str(options["deal_by"]), pairs, masks))


def _pairs(source: Source) -> list[ImageMaskPair]:
    """Join images and masks by part and name; a drive is what stands before the first `_`."""
    found: dict[tuple[str, str], dict[bool, str]] = {}
    for match, member in source.members():
        found.setdefault((match["part"].lower(), match["name"]), {})[bool(match["mask"])] = member.name
    pairs = []
    for (part, name), files in sorted(found.items()):
        if len(files) < 2:
            present, lacks = next((file, "an image" if mask else "a mask") for mask, file in files.items())
            raise SourceError(f"{source.root}: {present} lacks {lacks}; expected {LAYOUT.expected}")
        pairs.append(ImageMaskPair(files[False], files[True], part, name.partition("_")[0]))
    return pairs


def _dealt_by(kind: str, pairs: list[ImageMaskPair], masks: Bytes) -> PartitionTargets:
    if kind == "largest":
        return PartitionTargets(dominant_class(masks, None), (*LABELS, VOID_LABEL))
    if kind == "distinctive":
        train = np.array([pair.part != "test" for pair in pairs])
        return PartitionTargets(distinctive(masks, len(LABELS), train if train.any() else ~train), LABELS)
    drives = tuple(sorted({str(pair.client) for pair in pairs}))
    return PartitionTargets(np.array([drives.index(str(pair.client)) for pair in pairs]), drives)


READER = mask_reader(
    name="camvid",
    summary="street images of four drives, a class of 11 for each pixel; options height, width, fit, void, deal_by",
    labels=labels,
    has_clients=lambda options: True,
    layouts=lambda options: (LAYOUT,),
    images=read,
    defaults={**FRAME, "height": 180, "width": 240, "void": "ignore", "deal_by": "distinctive"},
)
