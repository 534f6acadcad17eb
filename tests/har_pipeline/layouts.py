"""Small data sets in exactly the published layouts, and the same files packed as they are downloaded."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np

Files = dict[str, bytes]


def zipped(files: Files) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return stream.getvalue()


def tarred(files: Files, kind: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=f"w:{kind}") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def unpacked(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def forms(files: Files, folder: Path, name: str) -> dict[str, Path]:
    """The files as a folder, a folder within a folder, and each kind of archive, alone and inside a zip."""
    (folder / "packed").mkdir()
    found = {"folder": unpacked(files, folder / "a"), "deep": unpacked(files, folder / "b" / "x" / "y").parents[1]}
    archives = {"zip": zipped(files), "tar": tarred(files, ""), "tar.gz": tarred(files, "gz")}
    archives["tar.xz"] = tarred(dict(reversed(files.items())), "xz")
    for suffix, content in archives.items():
        found[suffix] = folder / "packed" / f"data.{suffix}"
        found[suffix].write_bytes(content)
    (folder / "c").mkdir()
    (folder / "c" / f"{name}.zip").write_bytes(zipped({f"{name}.zip": archives["zip"], "readme.txt": b"hello"}))
    found["zip in zip in folder"] = folder / "c"
    return found


def table(columns: list[str], rows: list[list[object]]) -> bytes:
    lines = [",".join(columns), *(",".join(str(cell) for cell in row) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def motionsense(rows: int = 200) -> Files:
    """Two subjects, two trials; the top edge down, as pitch says, so gravity 1 g on y; user acceleration 0.5 g on x."""
    columns = ["", "attitude.roll", "attitude.pitch", "attitude.yaw"]
    columns += [f"{what}.{axis}" for what in ("gravity", "rotationRate", "userAcceleration") for axis in "xyz"]
    content = table(columns, [[i, 0, -np.pi / 2, 0, 0, 1, 0, 0.1, 0.2, 0.3, 0.5, 0, 0] for i in range(rows)])
    return {f"A_DeviceMotion_data/{trial}/sub_{n}.csv": content for trial in ("wlk_7", "dws_11") for n in (1, 24)}


def spsw(rows: int = 400) -> Files:
    """One subject's phone and watch, 100 rows a second; the label changes half way."""
    columns = ["x_acc", "y_acc", "z_acc", "x_gyro", "y_gyro", "z_gyro", "timestamp", "label"]
    labels = ["WALKING" if 2 * i < rows else "TURNING" for i in range(rows)]
    contents = {
        n: table(
            columns, [[1, 2, 3, 4, 5, 6, 1657544358323 + 60_000 * n + 10 * i, label] for i, label in enumerate(labels)]
        )
        for n in (1, 2)
    }
    return {f"DATA/s03/s03_{n:02d}_{kind}.csv": contents[n] for n in (1, 2) for kind in ("sp", "sw")}


def ucihar(times: int = 1) -> Files:
    """Train with subject 1 (a chain of three windows, then one of two), test with subject 2 (one window).

    `times` as many windows in each chain.
    """
    random = np.random.default_rng(0)
    files: Files = {}
    for part, chains, subjects, labels in (
        ("train", (3 * times, 2 * times), [1] * 5 * times, [1] * 3 * times + [4] * 2 * times),
        ("test", (times,), [2] * times, [6] * times),
    ):
        channels = [f"{signal}_{axis}" for signal in ("total_acc", "body_gyro", "body_acc") for axis in "xyz"]
        for channel in channels:
            rows = []
            for chain in chains:
                signal = random.normal(size=64 * (chain + 1))
                rows += [signal[64 * i : 64 * i + 128] for i in range(chain)]
            text = "\n".join(" ".join(f"{value:15.7e}" for value in row) for row in rows)
            files[f"UCI HAR Dataset/{part}/Inertial Signals/{channel}_{part}.txt"] = text.encode()
        files[f"UCI HAR Dataset/{part}/subject_{part}.txt"] = "\n".join(map(str, subjects)).encode()
        files[f"UCI HAR Dataset/{part}/y_{part}.txt"] = "\n".join(map(str, labels)).encode()
    return files


HHAR_COLUMNS = ["Index", "Arrival_Time", "Creation_Time", "x", "y", "z", "User", "Model", "Device", "gt"]


def hhar(*, seconds: float = 8.0) -> Files:
    """User a with nexus4 (two handsets) and s3 (whose clocks count from boot, differently for each sensor)."""
    files: Files = {}
    for sensor, level, boot_s in (("accelerometer", 1.0, 100.0), ("gyroscope", 0.1, 7000.0)):
        rows: list[list[object]] = []
        for model, device, rate_hz, epoch in (
            ("nexus4", "nexus4_1", 200, True),
            ("s3", "s3_1", 150, False),
            ("nexus4", "nexus4_2", 200, True),
        ):
            random = np.random.default_rng(5)
            for i in range(int(seconds * rate_hz)):
                since_s = i / rate_hz
                arrival_ms = 1424696633908 + 1000 * since_s + random.uniform(0, 8)
                created_s = 1424696633.908 + since_s if epoch else boot_s + since_s
                label = "walk" if since_s < seconds * 0.75 else "null"
                values = [level, 2 * level, 3 * level]
                rows.append([i, int(arrival_ms), int(created_s * 1e9), *values, "a", model, device, label])
        files[f"Activity recognition exp/Phones_{sensor}.csv"] = table(HHAR_COLUMNS, rows)
    return files


def realworld(*, packed: bool = True, rows: int = 200) -> Files:
    """Two subjects; walking in one part, climbingup in three (as zips within the zip for subject 2)."""
    files: Files = {}
    for subject in (1, 2):
        for short, long, level in (("acc", "acc", 1.0), ("gyr", "Gyroscope", 0.1)):
            walking = {f"{long}_walking_{place}.csv": _realworld(0.0, level, rows) for place in ("shin", "waist")}
            parts = {
                part: {f"{long}_climbingup_{part}_shin.csv": _realworld(100.0 * part, level, rows)}
                for part in (1, 2, 3)
            }
            folder = f"proband{subject}/data"
            inside = {name: content for part in parts.values() for name, content in part.items()}
            if subject == 2:
                inside = {f"{short}_climbingup_{part}_csv.zip": zipped(each) for part, each in parts.items()}
            if packed:
                files[f"{folder}/{short}_walking_csv.zip"] = zipped({"readMe": b"-", **walking})
                files[f"{folder}/{short}_climbingup_csv.zip"] = zipped(inside)
            elif subject == 1:
                files.update({f"{folder}/{name}": content for name, content in {**walking, **inside}.items()})
    return files


def _realworld(start_s: float, level: float, rows: int) -> bytes:
    first_ms = 1435993159412 + int(1000 * start_s)
    found: list[list[object]] = [[i + 1, first_ms + 20 * i, level, 2 * level, 3 * level] for i in range(rows)]
    return table(["id", "attr_time", "attr_x", "attr_y", "attr_z"], found)
