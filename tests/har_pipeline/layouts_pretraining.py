"""Small PAMAP2, MobiAct and SHL data sets in exactly the published layouts."""

from __future__ import annotations

from tests.har_pipeline.layouts import Files, table

Activity = tuple[int, float]
"""An activity's code and for how many seconds it goes on."""


def pamap2() -> Files:
    """Subject 101 with both recordings, 102 with the protocol's; each unit's ±16 g columns read 10·unit + (1, 2, 3)."""
    walking, soccer = _pamap2([(0, 1.0), (4, 5.0)], begin_s=8.38), _pamap2([(20, 4.0)], begin_s=5.1)
    return {
        "PAMAP2_Dataset/Protocol/subject101.dat": walking,
        "PAMAP2_Dataset/Protocol/subject102.dat": walking,
        "PAMAP2_Dataset/Optional/subject101.dat": soccer,
        "PAMAP2_Dataset/DescriptionOfActivities.pdf": b"-",
    }


def _pamap2(activities: list[Activity], *, begin_s: float) -> bytes:
    codes = [code for code, seconds in activities for _ in range(round(100 * seconds))]
    rows = []
    for i, code in enumerate(codes):
        row: list[object] = [f"{begin_s + i / 100:.2f}", code, 104 if i % 11 == 0 else "NaN"]
        for unit in range(3):
            level = 10 * unit
            row += [30.375, level + 1, level + 2, level + 3, 99, 99, 99]
            row += [unit + 0.1, unit + 0.2, unit + 0.3, 14, -69, -58, 1, 0, 0, 0]
        rows.append(" ".join(str(cell) for cell in row))
    return ("\n".join(rows) + "\n").encode()


MOBIACT_COLUMNS = ["timestamp", "rel_time"]
MOBIACT_COLUMNS += ["acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z", "azimuth", "pitch", "roll", "label"]


def mobiact() -> Files:
    """Annotated files: subject 2 walks, falls and lies, and leaves home; subject 11 walks."""
    trials = {
        "WAL_2_1": ["WAL"] * 1000,
        "FOL_2_1": ["STD"] * 600 + ["FOL"] * 200 + ["LYI"] * 800,
        "SLH_2_1": ["STD"] * 600 + ["WAL"] * 600,
        "WAL_11_1": ["WAL"] * 1000,
    }
    folder = "MobiAct_Dataset_v2.0/Annotated Data"
    return {f"{folder}/{name[:3]}/{name}_annotated.csv": _annotated(labels) for name, labels in trials.items()}


def _annotated(labels: list[str]) -> bytes:
    rows: list[list[object]] = [
        [939456916000 + 5_000_000 * i, i / 200, 1, 2, 3, 0.1, 0.2, 0.3, 278, -90, 1, label]
        for i, label in enumerate(labels)
    ]
    return table(MOBIACT_COLUMNS, rows)


def mobiact_raw() -> Files:
    """The raw files of subject 2: two trials, and a scenario, whose samples have no labels of their own."""
    files: Files = {}
    for activity, kind in (("WAL", "ADL"), ("FOL", "FALLS"), ("SLH", "SCENARIOS")):
        for sensor, level, step_ms in (("acc", 1.0, 10), ("gyro", 0.1, 5), ("ori", 45.0, 10)):
            files[f"sub2/{kind}/{activity}/{activity}_{sensor}_2_1.txt"] = _raw(activity, level, step_ms)
    return files


def _raw(activity: str, level: float, step_ms: int) -> bytes:
    head = (
        f"#Acceleration force\n#timestamp(ns),x,y,z(m/s^2)\n#Activity: 2 - {activity}\n#Gender: Male\n####\n\n\n@DATA\n"
    )
    rows = [
        f"{46449824617000 + 1_000_000 * step_ms * i}, {level}, {2 * level}, {3 * level:E}"
        for i in range(6000 // step_ms)
    ]
    return (head + "\n".join(rows) + "\n").encode()


def shl() -> Files:
    """User 3 on two days, of which the one that sorts last comes first in time; a hand and a torso phone."""
    files: Files = {}
    for folder, begin_ms, activities in (
        ("030717", 1499068800000, [(2, 4.0), (0, 4.0)]),
        ("140617", 1497427200000, [(0, 2.0), (5, 4.0)]),
    ):
        codes = [code for code, seconds in activities for _ in range(round(100 * seconds))]
        base = f"SHLDataset_preview_v1/User3/{folder}"
        for place, level in (("Hand", 1.0), ("Torso", 2.0)):
            motion = [[level, 2, 9, 0.1, 0.2, 0.3] for _ in codes]
            files[f"{base}/{place}_Motion.txt"] = _lines(
                [[begin_ms + 10 * i, *row, *[7] * 13, 1013.2, 50, 30] for i, row in enumerate(motion)]
            )
        files[f"{base}/Label.txt"] = _lines(
            [[begin_ms + 10 * i, code, 9, 0, 0, 0, 0, 0] for i, code in enumerate(codes)]
        )
    return files


def _lines(rows: list[list[float]]) -> bytes:
    return ("\n".join(" ".join(str(cell) for cell in row) for row in rows) + "\n").encode()
