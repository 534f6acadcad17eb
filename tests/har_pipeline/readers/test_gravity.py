"""Every reader's windows point up where the device did: by attitudes, postures and its makers' words."""

from __future__ import annotations

import importlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from har_pipeline import prepare, recordings
from har_pipeline.readers import READERS, described
from har_pipeline.readers.synthetic import rotation, segment_readings
from har_pipeline.units import CONVENTIONS, specific_force
from tests.har_pipeline import layouts
from tests.har_pipeline.readers import up

G = 9.80665
FOLDER = Path(described.__file__).parent
BY_MODEL = {"synthetic"}
"""Made by our own model of motion, which `test_synthetic_…` below judges, and not read from files."""


def agreement(name: str, root) -> float:
    """Cosine between the mean acceleration of a proof's windows and the direction that is up in its files."""
    proof = up.PROOFS[name]
    prepared = prepare(name, root, options=dict(proof.options))
    windows = prepared.clients[proof.client]
    mine = windows.x[windows.y == prepared.labels.index(proof.label)][..., :3]
    mean = mine.mean(axis=(0, 1))
    assert np.linalg.norm(mean) == pytest.approx(G, rel=1e-3)
    return float(mean @ proof.up / np.linalg.norm(mean))


def test_every_reader_has_a_proof_of_its_convention() -> None:
    assert set(READERS) == {*up.PROOFS, *BY_MODEL}, "a reader without a proof: add its files to tests/…/readers/up.py"


@pytest.mark.parametrize("name", READERS)
def test_a_reader_declares_a_convention_and_quotes_its_files_makers(name: str) -> None:
    assert READERS[name].acceleration in CONVENTIONS
    if name not in BY_MODEL:
        description = FOLDER / f"{name}.toml"
        if description.is_file():
            words = description.read_text("utf-8").replace("\n#", "\n")
        else:
            words = importlib.import_module(f"har_pipeline.readers.{name}").__doc__ or ""
        assert " ".join(up.PROOFS[name].quote.split()) in " ".join(words.split())


@pytest.mark.parametrize("name", up.PROOFS)
def test_windows_point_up_where_the_device_did(name: str, tmp_path) -> None:
    root = layouts.unpacked(up.PROOFS[name].files(), tmp_path)
    assert agreement(name, root) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", sorted(set(up.PROOFS) - {"described"}))
def test_the_proof_fails_for_the_opposite_convention(name: str, tmp_path, monkeypatch) -> None:
    wrong = "specific force" if READERS[name].acceleration == "gravity points down" else "gravity points down"
    monkeypatch.setitem(READERS, name, replace(READERS[name], acceleration=wrong))
    root = layouts.unpacked(up.PROOFS[name].files(), tmp_path)
    assert agreement(name, root) == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("convention", "sign"), [("specific force", 1), ("gravity points down", -1), ("without gravity", 1)]
)
def test_a_description_is_read_by_the_convention_that_it_declares(convention: str, sign: int, tmp_path) -> None:
    root = layouts.unpacked(up.described(), tmp_path)
    read = next(recordings("described", root, options={**up.DESCRIPTION, "acceleration": convention}))
    np.testing.assert_allclose(read.values[0], [0, 0, -sign * G], atol=1e-12)
    assert READERS["described"].convention({**up.DESCRIPTION, "acceleration": convention}) == convention


def test_only_the_accelerometer_is_turned_round(tmp_path) -> None:
    files = {
        name: content.replace(b",0,0,0,0,0,0\n", b",0.1,0.2,0.3,0,0,0\n") for name, content in up.motionsense().items()
    }
    _, gyro = list(recordings("motionsense", layouts.unpacked(files, tmp_path)))
    np.testing.assert_allclose(gyro.values[0], [0.1, 0.2, 0.3])
    x = np.arange(12.0).reshape(1, 2, 6)
    np.testing.assert_array_equal(specific_force(x[..., :3], "gravity points down"), -x[..., :3])


def test_synthetic_segments_at_rest_feel_the_force_that_holds_them_up() -> None:
    angles = np.tile(np.array([[0.3], [-0.8], [1.2]]), (1, 10))
    force, rate = segment_readings(np.zeros((3, 10)), angles)
    np.testing.assert_allclose(force[5], G * rotation(angles[:, 0]).T @ [0, 0, 1], atol=1e-9)
    np.testing.assert_allclose(rate, 0, atol=1e-9)


@pytest.mark.data
def test_apples_gravity_columns_agree_with_apples_angles(data) -> None:
    """The one set with attitude columns that is here: all rows of the sample, gz = −cos(pitch) · cos(roll)."""
    for file in sorted((data / "motionsense" / "sample").rglob("sub_1.csv")):
        rows = np.loadtxt(io.BytesIO(file.read_bytes()), delimiter=",", skiprows=1)
        roll, pitch, gravity = rows[:, 1], rows[:, 2], rows[:, 4:7]
        down = np.array([-up.up_by_apple(*angles) for angles in zip(roll, pitch, strict=True)])
        np.testing.assert_allclose(gravity, down, atol=2e-5)
        np.testing.assert_allclose(gravity[:, 2], -np.cos(pitch) * np.cos(roll), atol=2e-5)


@pytest.mark.data
def test_whoever_jogs_is_weightless_between_steps(data) -> None:
    """Gravity and user acceleration of MotionSense have one sign: their sum nearly vanishes in flight.

    With the wrong sign of one of them nothing ever would: the sum would be 2 g there, and 0 on landing.
    """
    rows = np.loadtxt(next((data / "motionsense" / "sample").glob("*/jog_16/sub_1.csv")), delimiter=",", skiprows=1)
    gravity, user = rows[:, 4:7], rows[:, 10:13]
    right, wrong = (np.einsum("ij,ij->i", gravity, gravity + sign * user) for sign in (1, -1))
    for vertical, is_right in ((right, True), (wrong, False)):  # in g: 1 at rest, 0 in flight, far above 1 on landing
        above, below = np.quantile(vertical, 0.99) - 1, 1 - np.quantile(vertical, 0.01)
        assert (above > below) == is_right


@pytest.mark.ci
@pytest.mark.data
def test_the_watch_of_whoever_sits_looks_up(data) -> None:
    clients = [f"s{number:02d}_sw" for number in range(1, 24)]
    sums = dict.fromkeys(clients, 0.0)
    for each in recordings("spsw", data / "sp_sw_har", clients=clients):
        if each.sensor == "acc":
            sums[each.client] += float(np.nansum(each.values[np.asarray(each.activity) == "SEATED", 2]))
    assert all(z > 0 for z in sums.values()), sums


@pytest.mark.data
def test_of_those_who_lie_the_phone_at_the_belly_looks_up(data) -> None:
    prepared = prepare("ucihar", data / "uci_har")
    lying = prepared.labels.index("LAYING")
    z = [float(np.median(each.x[each.y == lying, :, 2])) for each in prepared.clients.values()]
    assert sum(level > 0 for level in z) >= 28


@pytest.mark.data
def test_the_phone_on_the_shin_is_upright(data) -> None:
    acc = next(each for each in recordings("realworld", data / "realworld") if each.sensor == "acc")
    assert np.nanmean(acc.values[:, 1]) > 8
