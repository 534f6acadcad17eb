"""Which way is up for each reader: what its files' makers say, and small files in their layout with known attitudes.

Signs come from physics and from the makers' documentation alone, never from our readers. `Proof.up` is the direction
of specific force in the device's axes; it is worked out from what the file says of the device's attitude (Apple's
angles, Android's angles and quaternion, the earth's field), or from a posture in which it is known. What the documents
of one platform say of all its devices is quoted once, here and in the readers' docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tests.har_pipeline.apps import exports
from tests.har_pipeline.layouts import HHAR_COLUMNS, Files, table
from tests.har_pipeline.layouts_pretraining import MOBIACT_COLUMNS

G = 9.80665
ROWS = 400
ANDROID = "0 m/s2 minus the force of gravity, which is -9.81 m/s2"
"""developer.android.com, 'Motion sensors', of a device that lies flat on a table, screen up: the value of its z."""
APPLE = "The gravity acceleration vector expressed in the device's reference frame"
"""developer.apple.com, CMDeviceMotion.gravity."""
FACE_UP = np.array([0.0, 0.0, 1.0])
TOP_UP = np.array([0.0, 1.0, 0.0])
DIP = np.deg2rad(66)
"""How steeply the earth's field points downwards in Germany and England."""


@dataclass(frozen=True)
class Proof:
    """What shows the convention of a reader: words of its files' makers, files, and the direction that is up in them.

    `quote` must stand in the docstring of the reader's module. `client` and `label` choose the windows; the mean of
    their accelerations must be `up` (3,) times g.
    """

    quote: str
    files: Callable[[], Files]
    up: np.ndarray
    client: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)


def up_by_apple(roll: float, pitch: float) -> np.ndarray:
    """Up in the device's axes (3,) from CoreMotion's attitude in rad: z of the reference frame, turned back.

    CoreMotion turns about x by pitch, then about y by roll; at 0 the device lies on its back.
    """
    about_x = np.array([[1, 0, 0], [0, np.cos(pitch), np.sin(pitch)], [0, -np.sin(pitch), np.cos(pitch)]])
    about_y = np.array([[np.cos(roll), 0, -np.sin(roll)], [0, 1, 0], [np.sin(roll), 0, np.cos(roll)]])
    return np.asarray(about_y @ about_x @ [0.0, 0.0, 1.0])


def up_by_android(pitch: float, roll: float) -> np.ndarray:
    """Up in the device's axes (3,) from Android's orientation angles in rad; pitch −90° is the top edge up."""
    return np.array([-np.sin(roll) * np.cos(pitch), -np.sin(pitch), np.cos(pitch) * np.cos(roll)])


def up_by_quaternion(w: float, x: float, y: float, z: float) -> np.ndarray:
    """Up in the device's axes (3,) from Android's rotation vector, which turns them into east, north and up."""
    return np.array([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)])


def field_of_the_earth(up: np.ndarray, north: np.ndarray, micro_tesla: float = 48.0) -> np.ndarray:
    """What a magnetometer reads (3,) north of the equator: towards north, and down by DIP."""
    return micro_tesla * (np.cos(DIP) * north - np.sin(DIP) * up)


APPLE_ATTITUDE = (0.4, -0.9)


def motionsense() -> Files:
    """A phone in a pocket, top edge down, as its attitude columns say; at rest, so user acceleration is 0."""
    roll, pitch = APPLE_ATTITUDE
    down = -up_by_apple(roll, pitch)
    columns = ["", "attitude.roll", "attitude.pitch", "attitude.yaw"]
    columns += [f"{what}.{axis}" for what in ("gravity", "rotationRate", "userAcceleration") for axis in "xyz"]
    rows: list[list[object]] = [[i, roll, pitch, 0.3, *down, 0, 0, 0, 0, 0, 0] for i in range(ROWS)]
    return {"A_DeviceMotion_data/std_6/sub_1.csv": table(columns, rows)}


def ucihar() -> Files:
    """One window on the back: the phone lies on the belly, its screen outwards, so up."""
    files: Files = {}
    for signal, values in (("total_acc", FACE_UP), ("body_acc", np.zeros(3)), ("body_gyro", np.zeros(3))):
        for axis, value in zip("xyz", values, strict=True):
            text = " ".join(f"{value:15.7e}" for _ in range(128)).encode()
            files[f"UCI HAR Dataset/train/Inertial Signals/{signal}_{axis}_train.txt"] = text
    return {**files, "UCI HAR Dataset/train/subject_train.txt": b"1", "UCI HAR Dataset/train/y_train.txt": b"6"}


def spsw() -> Files:
    """Somebody sits, the hand with the watch on the thigh: a watch's face looks up from there."""
    columns = ["x_acc", "y_acc", "z_acc", "x_gyro", "y_gyro", "z_gyro", "timestamp", "label"]
    rows: list[list[object]] = [[0, 0, G, 0, 0, 0, 1657544418323 + 10 * i, "SEATED"] for i in range(ROWS)]
    return {f"DATA/s03/s03_01_{kind}.csv": table(columns, rows) for kind in ("sp", "sw")}


def hhar() -> Files:
    """A phone that lies flat, screen up, while its owner sits."""
    files: Files = {}
    for sensor, values in (("accelerometer", [0, 0, G]), ("gyroscope", [0, 0, 0])):
        rows: list[list[object]] = [
            [i, 1424696633908 + 10 * i, (1424696633908 + 10 * i) * 10**6, *values, "a", "nexus4", "nexus4_1", "sit"]
            for i in range(ROWS)
        ]
        files[f"Activity recognition exp/Phones_{sensor}.csv"] = table(HHAR_COLUMNS, rows)
    return files


def realworld() -> Files:
    """A phone strapped upright to the shin of somebody who stands: its top edge is up."""
    files: Files = {}
    for name, values in (("acc", [0, G, 0]), ("Gyroscope", [0, 0, 0])):
        rows: list[list[object]] = [[i + 1, 1435993159412 + 20 * i, *values] for i in range(ROWS)]
        columns = ["id", "attr_time", "attr_x", "attr_y", "attr_z"]
        files[f"proband1/data/{name}_standing_shin.csv"] = table(columns, rows)
    return files


PAMAP2_UP = np.array([2.0, 8.6, 4.26]) / np.linalg.norm([2.0, 8.6, 4.26])


def pamap2() -> Files:
    """Each unit at rest with its magnetometer beside: the earth's field points down where up is up."""
    north = np.cross(PAMAP2_UP, [1.0, 0.0, 0.0])
    magnetic = field_of_the_earth(PAMAP2_UP, north / np.linalg.norm(north))
    unit = [30.375, *(G * PAMAP2_UP), *(G * PAMAP2_UP), 0, 0, 0, *magnetic, 1, 0, 0, 0]
    rows = [" ".join(map(str, [8.38 + i / 100, 3, "NaN", *unit, *unit, *unit])) for i in range(ROWS)]
    return {"PAMAP2_Dataset/Protocol/subject101.dat": ("\n".join(rows) + "\n").encode()}


MOBIACT_ANGLES = (np.deg2rad(-70.0), 0.0)


def mobiact() -> Files:
    """A phone in a pocket, its top edge up and leaning, as its angles say (azimuth, pitch, roll in degrees)."""
    pitch, roll = MOBIACT_ANGLES
    acc = G * up_by_android(pitch, roll)
    rows: list[list[object]] = [
        [5_000_000 * i, i / 200, *acc, 0, 0, 0, 278, np.rad2deg(pitch), np.rad2deg(roll), "STD"]
        for i in range(2 * ROWS)
    ]
    return {"MobiAct_Dataset_v2.0/Annotated Data/STD/STD_2_1_annotated.csv": table(MOBIACT_COLUMNS, rows)}


SHL_QUATERNION = (np.cos(0.6), np.sin(0.6) * 0.8, np.sin(0.6) * 0.6, 0.0)


def shl() -> Files:
    """A phone at rest: the quaternion and the gravity columns say its attitude, linear acceleration is 0."""
    up = up_by_quaternion(*SHL_QUATERNION)
    north = np.cross(up, [1.0, 0.0, 0.0])
    magnetic = field_of_the_earth(up, north / np.linalg.norm(north))
    row = [*(G * up), 0, 0, 0, *magnetic, *SHL_QUATERNION, *(G * up), 0, 0, 0, 1013.2, 50, 30]
    motion = [" ".join(map(str, [1499068800000 + 10 * i, *row])) for i in range(ROWS)]
    label = [" ".join(map(str, [1499068800000 + 10 * i, 1, 1, 0, 0, 0, 0, 0])) for i in range(ROWS)]
    base = "SHLDataset_preview_v1/User3/030717"
    return {f"{base}/Hand_Motion.txt": "\n".join(motion).encode(), f"{base}/Label.txt": "\n".join(label).encode()}


def described() -> Files:
    """An iPhone on its back, in g, as its owner's app wrote it down, and so declared."""
    rows: list[list[object]] = [[20 * i, 0, 0, -1.0, 0, 0, 0] for i in range(ROWS)]
    return {"anna.csv": table(["ms", "ax", "ay", "az", "gx", "gy", "gz"], rows)}


DESCRIPTION = {
    "labels": ["rest"],
    "activity": {"fixed": "rest"},
    "time": {"column": "ms", "unit": "ms"},
    "acceleration": "gravity points down",
    "acc": {"columns": ["ax", "ay", "az"], "unit": "g"},
    "gyro": {"columns": ["gx", "gy", "gz"]},
}

APP_LABELS: Mapping[str, Any] = {"labels": ["walking"]}
SENSOR_LOGGER = "If 'Standardise Units & Frames' is toggled on, Sensor Logger will conform to the Android definition"


def face_up(file: str, export: Callable[..., Any]) -> Callable[[], Files]:
    """What an app writes of a phone that lies face up, in a person's folder of an activity; `file` for a single one."""

    def files() -> Files:
        content = export(moved=exports.face_up())
        return {f"anna/walking/{name}": data for name, data in ({file: content} if file else content).items()}

    return files


PROOFS = {
    "motionsense": Proof(APPLE, motionsense, up_by_apple(*APPLE_ATTITUDE), "s01", "std"),
    "ucihar": Proof(ANDROID, ucihar, FACE_UP, "s01", "LAYING"),
    "spsw": Proof(ANDROID, spsw, FACE_UP, "s03_sw", "SEATED"),
    "hhar": Proof(ANDROID, hhar, FACE_UP, "a_nexus4", "sit"),
    "realworld": Proof(ANDROID, realworld, TOP_UP, "1_shin", "standing"),
    "pamap2": Proof("3D-acceleration data (ms-2), scale: ±16g", pamap2, PAMAP2_UP, "101_chest", "standing"),
    "mobiact": Proof(ANDROID, mobiact, up_by_android(*MOBIACT_ANGLES), "s02", "STD"),
    "shl": Proof(ANDROID, shl, up_by_quaternion(*SHL_QUATERNION), "user3_hand", "still"),
    # of an iPhone that was not told to standardise, which the reader turns round by the Metadata
    "sensor_logger": Proof(
        SENSOR_LOGGER,
        face_up("", partial(exports.sensor_logger, "ios")),
        FACE_UP,
        "832809b8-84b8_phone",
        "walking",
        APP_LABELS,
    ),
    "phyphox": Proof(
        "`kG = -9.81` in phyphox-ios", face_up("", exports.phyphox), FACE_UP, "anna_phone", "walking", APP_LABELS
    ),
    "androsensor": Proof(
        "the accelerometer reads +9.81",
        face_up("a.csv", exports.androsensor),
        FACE_UP,
        "anna_phone",
        "walking",
        APP_LABELS,
    ),
    "physics_toolbox": Proof(
        "the file does not say its platform",
        face_up("a.csv", exports.physics_toolbox),
        FACE_UP,
        "anna_phone",
        "walking",
        {**APP_LABELS, "acceleration": "specific force"},
    ),
    "described": Proof("a description declares", described, FACE_UP, "anna", "rest", DESCRIPTION),
}
