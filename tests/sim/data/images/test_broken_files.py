"""Files that are not what they claim: refused with what came and what was expected, within bounds."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest

from gaitway.errors import GaitwayError
from har_pipeline import SourceError
from sim.data.images import IMAGE_SETS, voc
from sim.data.images.voc import single_class_images
from tests.har_pipeline.layouts import Files, unpacked, zipped
from tests.sim.data.images import layouts


def broken(made: layouts.Made, name: str, content: bytes | None) -> Files:
    files = dict(made.files)
    if content is None:
        del files[name]
    else:
        files[name] = content
    return files


MNIST, CIFAR, CELEBA, IMAGES = layouts.mnist(packed=False), layouts.cifar10(), layouts.celeba(), layouts.images()
TRAIN = "train-images-idx3-ubyte"
LETTER = "gzip/emnist-letters-test-labels-idx1-ubyte.gz"
IMAGE = "train/cat/0000.png"
JSON = "train/all_data_0_niid_0_keep_0_train_9.json"
BATCH = "cifar-10-batches-bin/data_batch_2.bin"
ATTRIBUTES = "list_attr_celeba.txt"
SMALL, LARGE = (layouts.idx(np.zeros(shape)) for shape in ((5, 28, 28), (6, 32, 32)))
HUGE = b"\0\0\x08\x03" + b"\xff\xff\xff\xff" + b"\0\0\0\x1c" * 2
CUT = gzip.compress(MNIST.files[TRAIN])[:-500]
BOMB = gzip.compress(layouts.idx(np.zeros((6, 28, 28))) + bytes(50_000_000), mtime=0)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("mnist", broken(MNIST, TRAIN, None), "no train images; expected .train,t10k"),
        ("mnist", broken(MNIST, TRAIN, MNIST.files[TRAIN][:-1]), "ends after 4,703 of 4,704 bytes"),
        ("mnist", broken(MNIST, TRAIN, MNIST.files[TRAIN] + b"x"), "has more than 0 bytes"),
        ("mnist", broken(MNIST, TRAIN, b"\x89PNG" + bytes(100)), r"begins with \(137.*expected \(0, 0, 8, 3\)"),
        ("mnist", broken(MNIST, TRAIN, HUGE), r"says that it holds \(4294967295, 28, 28\)"),
        ("mnist", broken(MNIST, TRAIN, b""), "ends after 0 of 16 bytes"),
        ("mnist", broken(MNIST, TRAIN, SMALL), "5 train images, but 6 labels"),
        ("mnist", broken(MNIST, TRAIN, LARGE), r"expected \(1 to 1,000,000, \*\(28, 28\)\)"),
        ("mnist", {**broken(MNIST, TRAIN, None), TRAIN + ".gz": BOMB}, "has more than 0 bytes"),
        ("mnist", {**broken(MNIST, TRAIN, None), TRAIN + ".gz": b"not gzip"}, "cannot be read: Not a gzipped file"),
        ("mnist", {**broken(MNIST, TRAIN, None), TRAIN + ".gz": CUT}, "cannot be read: Compressed file ended"),
        ("mnist", broken(MNIST, "t10k-labels-idx1-ubyte", layouts.idx(np.full(4, 10))), "labels from 1 to 10"),
        ("femnist", broken(layouts.letters(), LETTER, gzip.compress(layouts.idx(np.arange(26)))), "count from 1"),
        ("cifar10", broken(CIFAR, BATCH, CIFAR.files[BATCH][:-1]), "9,218 bytes; expected a multiple of 3073"),
        ("cifar10", broken(CIFAR, BATCH, b""), "has 0 bytes"),
        ("cifar10", broken(CIFAR, BATCH, None), r"holds .*test_batch.bin; expected cifar-10-binary.tar.gz"),
        ("cifar10", broken(CIFAR, BATCH, bytes([11]) + bytes(3072)), "to 11; expected 0 to 9"),
        ("cifar10", {"cifar-10-batches-py/data_batch_1": b"pickled"}, "the binary version"),
        ("cifar10_jpg", broken(IMAGES, IMAGE, b"GIF89a" + bytes(20)), "readable image.*expected a JPEG or PNG"),
        ("cifar10_jpg", broken(IMAGES, IMAGE, IMAGES.files[IMAGE][:90]), "readable image"),
        ("cifar10_jpg", layouts.images(("airplane", "catt")).files, "folder 'catt'; did you mean 'cat'"),
        ("celeba", broken(CELEBA, ATTRIBUTES, None), "has no list_attr_celeba.txt"),
        ("celeba", broken(CELEBA, ATTRIBUTES, b"5\nBald Male\n000001.jpg 1 1\n"), "no Smiling in its second line"),
        ("celeba", broken(CELEBA, ATTRIBUTES, CELEBA.files[ATTRIBUTES].replace(b"-1", b"0")), "has not 40 values"),
        ("celeba", broken(CELEBA, "identity_CelebA.txt", b"000001.jpg\n"), "such as '000001.jpg 2880'"),
        ("celeba", broken(CELEBA, "identity_CelebA.txt", b"999999.jpg 1\n"), "do not fit"),
        ("femnist_leaf", broken(layouts.leaf(), JSON, b"[1, 2]"), r"train/\*\.json"),
        ("femnist_leaf", broken(layouts.leaf(), JSON, b"{"), "JSONDecodeError"),
        ("femnist_leaf", broken(layouts.leaf(), JSON, b'{"user_data": {"w": {"x": [[2]], "y": [1]}}}'), "x is"),
        ("femnist_leaf", broken(layouts.leaf(), JSON, b'{"user_data": {"w": {"x": [], "y": []}}}'), "x is"),
    ],
)
def test_broken_files_are_refused_with_what_was_expected(tmp_path: Path, name: str, files: Files, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        IMAGE_SETS[name].read(unpacked(files, tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (layouts.npz(X=np.zeros((8, 28, 28), np.float32)), "X is float32"),
        (layouts.npz(X=np.zeros((8, 784), np.uint8)), r"X is \(8, 784\)"),
        (layouts.npz(y=np.zeros(7, np.uint8)), "differ in number"),
        (layouts.npz(y=np.full(8, 10, np.uint8)), "labels from 10 to 10"),
        (layouts.npz(client=np.array([{}] * 8, dtype=object)), "client is object"),
        (zipped({"X.npy": b"\x93NUMPY\x01\x00"}), "expected an .npz with the arrays X, y, client, is_test"),
        (b"no zip at all", "expected an .npz with the arrays"),
    ],
    # not the bytes themselves: an archive has the time in it, and xdist's workers must give tests the same names
    ids=lambda value: "file" if isinstance(value, bytes) else None,
)
def test_a_broken_npz_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(SourceError, match=words):
        IMAGE_SETS["mnist"].read(tmp_path)


def test_an_npz_header_that_promises_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 28, 28), }"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(784)
    (tmp_path / "mnist.npz").write_bytes(zipped({"X.npy": array}))
    with pytest.raises(SourceError, match="ends after 784 of 784,000,000 bytes"):
        IMAGE_SETS["mnist"].read(tmp_path)


def test_an_image_that_claims_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    claims = bytearray(layouts.image_bytes(np.zeros((3, 32, 32), np.uint8)))
    claims[16:24] = (5000).to_bytes(4, "big") * 2
    claims[29:33] = zlib.crc32(bytes(claims[12:29])).to_bytes(4, "big")
    with pytest.raises(SourceError, match="claims 5000 × 5000 pixels"):
        IMAGE_SETS["cifar10_jpg"].read(unpacked({"train/cat/0.png": bytes(claims)}, tmp_path))


def test_two_npz_files_are_ambiguous(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="give the path of one"):
        IMAGE_SETS["mnist"].read(unpacked({"mnist_a.npz": layouts.npz(), "mnist_b.npz": layouts.npz()}, tmp_path))


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
