"""CelebA: 202,599 faces of 10,177 people; the class is whether they smile, the client is the person.

Liu, Luo, Wang, Tang, "Deep learning face attributes in the wild", ICCV 2015. Images are resized to 84 × 84 as in
LEAF (Caldas et al. 2018; Michieli and Ozay 2021 do not say). The official parts divide people, not a person's images,
so all count as training: divide each client by test="split".
Memory: 21 kB an image, 4.3 GB for all; option `identities` reads the people with so many smallest numbers only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import read_bounded, read_image
from sim.data.images.reader import COLOUR_TO_ONE, ImageReader, LabelledImages, Options, positive, square

LABELS = ("not smiling", "smiling")
ATTRIBUTE = "Smiling"
MAX_TEXT_BYTES = 128 << 20
MAX_SIDE = 218
PEOPLE = 10_177
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?:(?:Anno|Img)/)?(?:img_align_celeba\.zip/)?"
        r"(?:img_align_celeba/(?P<image>\d{6}\.jpg)|(?P<text>list_attr_celeba|identity_CelebA)\.txt)$"
    ),
    archives=re.compile(r"celeba", re.IGNORECASE),
    expected="img_align_celeba/NNNNNN.jpg (or img_align_celeba.zip), list_attr_celeba.txt and identity_CelebA.txt",
)

Lines = list[list[str]]


def labels(options: Options) -> tuple[str, ...]:
    """Return both classes; raises SettingsError for an impossible number of people."""
    positive(options, "identities", PEOPLE)
    return LABELS


def read(source: Source, options: Options) -> LabelledImages:
    """Read the two texts, then the chosen people's images, in the order of their numbers."""
    side, texts = positive(options, "side", MAX_SIDE), _texts(source)
    people = _chosen(_identities(texts["identity_CelebA"]), options)
    smiles = _smiles(texts["list_attr_celeba"])
    images = {}
    for match, member in source.members():
        if match["image"] in people:
            with member.open() as stream:
                images[match["image"]] = read_image(stream, member.name, side)
    names = sorted(images)
    if not names or any(name not in smiles for name in names):
        raise SourceError(f"{source.root}: images and list_attr_celeba.txt do not fit; expected {LAYOUT.expected}")
    return LabelledImages(
        np.stack([images[name] for name in names]),
        np.array([smiles[name] for name in names], dtype=np.int64),
        LABELS,
        np.ones(len(names), dtype=bool),
        np.array([f"identity-{people[name]:05d}" for name in names]),
    )


def _texts(source: Source) -> dict[str, Lines]:
    texts: dict[str, Lines] = {}
    for match, member in source.members():
        if match["text"]:
            with member.open() as stream:
                content = read_bounded(stream, MAX_TEXT_BYTES, member.name)
            texts[match["text"]] = [line.split() for line in content.decode("ascii", "replace").splitlines()]
    for name in ("list_attr_celeba", "identity_CelebA"):
        if name not in texts:
            raise SourceError(f"{source.root} has no {name}.txt; expected {LAYOUT.expected}")
    return texts


def _identities(lines: Lines) -> dict[str, int]:
    """Read `000001.jpg 2880`."""
    try:
        return {image: int(identity) for image, identity in filter(None, lines)}
    except ValueError as error:
        raise SourceError(f"identity_CelebA.txt: {error}; expected lines such as '000001.jpg 2880'") from error


def _smiles(lines: Lines) -> dict[str, bool]:
    """Read the count, the attributes' names, then `000001.jpg -1 1 …`."""
    if len(lines) < 3 or ATTRIBUTE not in lines[1]:
        raise SourceError(f"list_attr_celeba.txt: no {ATTRIBUTE} in its second line; expected 40 attributes' names")
    column = 1 + lines[1].index(ATTRIBUTE)
    rows = [line for line in lines[2:] if line]
    for row in rows:
        if len(row) != 1 + len(lines[1]) or row[column] not in ("-1", "1"):
            raise SourceError(f"list_attr_celeba.txt: {row[:3]}… has not {len(lines[1])} values of -1 or 1")
    return {row[0]: row[column] == "1" for row in rows}


def _chosen(identities: Mapping[str, int], options: Options) -> dict[str, int]:
    """Keep the images of the people with the smallest numbers, which say nothing about them."""
    kept = set(sorted(set(identities.values()))[: positive(options, "identities", PEOPLE)])
    return {image: identity for image, identity in identities.items() if identity in kept}


READER = ImageReader(
    name="celeba",
    summary="CelebA: 202,599 faces, smiling or not, by person; options side, identities (how many people)",
    labels=labels,
    shape=lambda options: square(options, MAX_SIDE),
    layouts=lambda options: (LAYOUT,),
    images=read,
    has_clients=lambda options: True,
    moments=COLOUR_TO_ONE,
    defaults={"side": 84, "identities": PEOPLE},
)
