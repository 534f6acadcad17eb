"""Every reader of images on small files in exactly the published layout, from folders and archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gaitway.errors import GaitwayError
from har_pipeline import SourceError
from sim.data.images import IMAGE_SETS, LabelledImages
from tests.har_pipeline.layouts import Files, forms, tarred, unpacked, zipped
from tests.sim.data.images import layouts

FORMS = ["folder", "deep", "zip", "tar", "tar.gz", "tar.xz", "zip in zip in folder"]
MADE = {
    "mnist": (layouts.mnist(), "mnist-master"),
    "fashion_mnist": (layouts.mnist(), "fashion-mnist"),
    "femnist": (layouts.letters(), "emnist"),
    "femnist_leaf": (layouts.leaf(), "leaf-femnist"),
    "cifar10": (layouts.cifar10(), "cifar-10-binary"),
    "cifar100": (layouts.cifar100(), "cifar-100-binary"),
    "cifar10_jpg": (layouts.images(), "cifar10_jpg"),
    "cifar100_jpg": (layouts.images(("apple", "worm"), (0, 99)), "cifar100"),
    "celeba": (layouts.celeba(), "celeba"),
}
OPTIONS = {name: {"labels": ["airplane", "cat"]} for name in ("image_folder", "mask_folder")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, dict[str, Path]]:
    return {name: forms(made.files, tmp_path_factory.mktemp(name), archive) for name, (made, archive) in MADE.items()}


def same(images: LabelledImages, made: layouts.Made) -> None:
    assert np.array_equal(images.x, made.x)
    assert np.array_equal(images.y, made.y)
    assert np.array_equal(images.train, made.train)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MADE)
def test_each_set_reads_what_was_written_from_a_folder_and_from_any_archive(sources, name: str, form: str) -> None:
    reader, (made, _) = IMAGE_SETS[name], MADE[name]
    images = reader.read(sources[name][form])
    same(images, made)
    assert images.labels == reader.labels(reader.options(None))
    assert images.shape == reader.shape(reader.options(None))
    assert images.y.dtype == np.int64


@pytest.mark.parametrize("separator", "-.")
def test_idx_files_need_not_be_packed(tmp_path: Path, separator: str) -> None:
    made = layouts.mnist(packed=False, separator=separator)
    same(IMAGE_SETS["mnist"].read(unpacked(made.files, tmp_path)), made)


def test_letters_are_upright_and_fewer_by_option(sources) -> None:
    ten = IMAGE_SETS["femnist"].read(sources["femnist"]["folder"], {"classes": 10})
    assert ten.labels == tuple("abcdefghij")
    assert len(ten) == 30
    made = MADE["femnist"][0]
    assert np.array_equal(ten.x, made.x[made.y < 10])


def test_the_npz_brings_its_clients_and_t10k_is_not_read_beside_it(tmp_path: Path) -> None:
    files: Files = {"mnist_pfllib_20clients_uint8.npz": layouts.npz()}
    files |= {name: content for name, content in layouts.mnist().files.items() if name.startswith("t10k")}
    images = IMAGE_SETS["mnist"].read(unpacked(files, tmp_path))
    assert len(images) == 8
    assert images.shape == (1, 28, 28)
    assert images.train.tolist() == [True, True, True, False, True, True, False, False]
    assert images.client is not None
    assert images.client.tolist() == ["client-00"] * 4 + ["client-11"] * 4


def test_the_npz_is_taken_even_beside_the_published_files_and_each_can_be_named(tmp_path: Path) -> None:
    root = unpacked({"mnist.npz": layouts.npz()} | {f"idx/{k}": v for k, v in layouts.mnist().files.items()}, tmp_path)
    assert len(IMAGE_SETS["mnist"].read(root)) == 8
    assert len(IMAGE_SETS["mnist"].read(root / "mnist.npz")) == 8
    assert len(IMAGE_SETS["mnist"].read(root / "idx")) == 10


def test_fashion_is_not_taken_for_digits(tmp_path: Path) -> None:
    root = unpacked({"fashion_mnist/fashion_mnist_15k_uint8.npz": layouts.npz()}, tmp_path)
    assert IMAGE_SETS["fashion_mnist"].read(root).labels[0] == "t-shirt"
    with pytest.raises(SourceError, match=r"no mnist files.*mnist\*\.npz.*; or: .*train,t10k"):
        IMAGE_SETS["mnist"].read(root)


def test_own_images_are_resized_and_labels_come_by_option(tmp_path: Path) -> None:
    made = layouts.images()
    root = unpacked(made.files, tmp_path)
    images = IMAGE_SETS["image_folder"].read(root, {"labels": ["cat", "airplane"], "side": 16})
    assert images.shape == (3, 16, 16)
    assert images.labels == ("cat", "airplane")
    assert images.y.tolist() == [0, 0, 1, 1, 0, 1]
    assert abs(float(images.x.mean()) - float(made.x.mean())) < 2


def test_celeba_has_people_as_clients_and_can_take_a_few(tmp_path: Path) -> None:
    made = layouts.celeba()
    split = {("Anno/" if name.endswith("txt") else "Img/") + name: content for name, content in made.files.items()}
    images = IMAGE_SETS["celeba"].read(unpacked(split, tmp_path / "a"))
    assert images.client is not None
    assert images.client.tolist() == [f"identity-{person:05d}" for person in layouts.PEOPLE]
    zip_of_images = zipped({k: v for k, v in made.files.items() if k.startswith("img")})
    texts = {f"Anno/{k}": v for k, v in made.files.items() if k.endswith("txt")}
    root = unpacked({"Img/img_align_celeba.zip": zip_of_images, **texts}, tmp_path / "b")
    few = IMAGE_SETS["celeba"].read(root, {"identities": 2, "side": 32})
    assert few.shape == (3, 32, 32)
    assert set(few.client.tolist()) == {"identity-02880", "identity-02937"}
    assert few.y.tolist() == [1, 0, 0, 1]


def test_leaf_writers_are_clients(sources) -> None:
    images = IMAGE_SETS["femnist_leaf"].read(sources["femnist_leaf"]["folder"])
    assert images.client.tolist() == ["f0001_00"] * 4 + ["f0002_41"] * 2


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mnist", {"size": 1}, "unknown option 'size' for mnist; it takes none"),
        ("femnist", {"clases": 1}, "did you mean 'classes'"),
        ("femnist", {"classes": 27}, "whole number from 1 to 26"),
        ("cifar10_jpg", {"side": 0}, "whole number from 1 to 1024"),
        ("image_folder", {}, "expected the names of two or more classes"),
        ("image_folder", {"labels": "cat"}, "expected the names of two or more classes"),
        ("celeba", {"identities": True}, "whole number from 1 to 10177"),
    ],
)
def test_wrong_options_are_told_before_files_are_searched(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(GaitwayError, match=words):
        IMAGE_SETS[name].read("/nowhere", options)


def test_a_missing_root_says_what_was_expected(tmp_path: Path) -> None:
    for name, reader in IMAGE_SETS.items():
        options = OPTIONS.get(name)
        for root, words in (
            (None, f"{name} needs its data"),
            (tmp_path / "no", "does not exist"),
            (tmp_path, "no .* files"),
        ):
            with pytest.raises(SourceError, match=words) as refused:
                reader.read(root, options)
            assert reader.layouts(reader.options(options))[-1].expected in str(refused.value)


def test_members_never_touch_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar whose members climb out of the folder is read all the same, and writes nothing."""
    made = layouts.cifar100()
    climbing = {f"../../{name}": content for name, content in made.files.items()}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "cifar-100-binary.tar.gz").write_bytes(tarred(climbing, "gz"))
    before = sorted(tmp_path.rglob("*"))
    same(IMAGE_SETS["cifar100"].read(tmp_path), made)
    assert sorted(tmp_path.rglob("*")) == before
