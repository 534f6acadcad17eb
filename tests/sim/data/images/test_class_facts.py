"""Facts about VOC's masks: which lines count, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gaitway.errors import GaitwayError
from sim.data.images import voc
from sim.data.images.voc import single_class_images

HEAD = "image,in_train_aug,width,height,classes\n"
LINES = HEAD + "a,1,500,281,1 15\nb,0,500,366,1\nc,1,500,375,20\nd,1,500,335,\ne,1,500,335,7\n"


@pytest.mark.parametrize("name", ["facts.csv", "facts.csv.gz"])
def test_images_of_train_aug_with_one_class_are_kept(name: str, tmp_path: Path) -> None:
    content = LINES.encode()
    (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith("gz") else content)
    assert single_class_images(tmp_path / name).tolist() == [19, 6]


@pytest.mark.data
def test_the_published_masks_have_6746_such_images(gaitway_data: Path) -> None:
    """Michieli and Ozay have 6,665; most show a person, fewest a dining table."""
    y = single_class_images(gaitway_data / "voc2012" / "voc2012_aug_classes.csv.gz")
    counts = np.bincount(y, minlength=20)
    assert counts.sum() == len(y) == 6746
    assert (counts.argmax(), counts.max()) == (14, 1111)
    assert (counts.argmin(), counts.min()) == (10, 25)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"image,classes\na,1\n", "the first line is 'image,classes'; expected columns image, in_train_aug"),
        ("a.csv", b"", "the first line is 'nothing'"),
        ("a.csv", (HEAD + "a,1,5,5,21\n").encode(), "line 2: classes '21'; expected numbers from 1 to 20"),
        ("a.csv", (HEAD + "a,1,5,5,person\n").encode(), "classes 'person'"),
        ("a.csv", (HEAD + "a,1\n").encode(), "line 2: it ends early"),
        ("a.csv", b"\xff\xfe", "cannot be read as text"),
        ("a.csv.gz", b"no gzip", "cannot be read"),
        ("a.csv.gz", gzip.compress(LINES.encode(), mtime=0)[:-12], "cannot be read"),
        ("a.csv", HEAD.encode() + b"x" * 200, "has more than 200 bytes"),
    ],
)
def test_another_file_is_refused_in_words(
    name: str, content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voc, "MAX_BYTES", 200)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GaitwayError, match=words):
        single_class_images(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        GaitwayError, match=r"nothing\.csv isn't a file; expected a CSV, or CSV.gz, with the columns image"
    ):
        single_class_images(tmp_path / "nothing.csv")
