"""Recordings in layouts drawn at random, with what is true of them; nothing here is read by our code."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.description import description_of, file_recordings, find_files
from har_pipeline.description.guess.draft import Draft

G = 9.80665
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
TIME_NAMES = {
    "": ("time", "timestamp", "t", "Zeit", "Timestamp", "tiempo", "elapsed time"),
    "s": ("time (s)", "seconds_elapsed", "Zeit [s]", "t_sec"),
    "ms": ("time (ms)", "Timestamp in ms", "Zeit [ms]", "t_ms", "milliseconds", "Time since start in ms"),
    "us": ("time (us)", "timestamp_us", "Zeit [µs]", "microseconds"),
    "ns": ("time (ns)", "timestamp_ns", "nanos"),
}
ACC_SIZES = {"m/s2": 1.0, "g": 1 / G, "mg": 1000 / G}
ACC_HEADERS = {
    "": ("a{x}", "acc_{x}", "Acc {X}", "Beschl {X}", "accel-{x}", "aceleracion_{x}", "{x}_acc", "accelerometer.{x}"),
    "m/s2": ("acc_{x} [m/s²]", "Acc {X} (m/s^2)", "accel_{x} in m/s2", "Beschl {X} (m/s²)"),
    "g": ("acc_{x} [g]", "Acc {X} (g)", "acc_{x}_g"),
    "mg": ("acc_{x} [mg]", "Acc {X} (mg)"),
}
LINEAR_HEADERS = ("linear_acc_{x}", "userAcceleration.{x}", "lin_acc_{x}")
GYRO_SIZES = {"rad/s": 1.0, "deg/s": 180 / np.pi}
GYRO_HEADERS = {
    "": ("g{x}", "gyro_{x}", "Gyr {X}", "w{x}", "Drehrate {X}", "rotationRate.{x}", "giroscopio_{x}", "{x}_gyro"),
    "rad/s": ("gyro_{x} [rad/s]", "Gyr {X} (rad/s)", "gyro rad/s {x}"),
    "deg/s": ("gyro_{x} [deg/s]", "Gyr {X} (°/s)", "gyro deg/s {x}", "gyro_{x}_dps"),
}
ACTIVITIES = (
    ("sitting", "walking", "running"),
    ("sitzen", "gehen", "laufen"),
    ("sentado", "caminar", "correr"),
    ("A01", "A02", "A03"),
    ("lying_down", "walking_slow", "jumping_jacks"),
    ("desk", "hoover", "skipping"),
)
PERSONS = (("anna", "bert", "cleo"), ("P01", "P02", "P03"), ("subject1", "subject2", "subject7"), ("17", "23", "31"))
PLACES = ("folder", "file", "column")
PERSON_COLUMNS, ACTIVITY_COLUMNS = ("user", "subject_id", "Person"), ("activity", "label", "Aktivität", "ground_truth")


class Truth(NamedTuple):
    """What one file holds: who, what, acc (n, 3) in m/s² and gyro (n, 3) in rad/s or None."""

    client: str
    activity: str
    acc: np.ndarray
    gyro: np.ndarray | None


@dataclass
class Strange:
    """One layout: `choices` in words for a failing test, and each file's truth; without a time `timed` is False."""

    rate_hz: float
    timed: bool
    choices: dict[str, Any]
    with_gravity: bool = True
    files: dict[str, Truth] = field(default_factory=dict)


def motion(random: np.random.Generator, count: int, rate_hz: float, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Linear acceleration (m/s²) and turns (rad/s) at rest (level 0), walking (1) and running (2)."""
    t, size = np.arange(count) / rate_hz, (0.04, 3.0, 9.0)[level] * random.uniform(0.8, 1.2)
    phases, shares = random.uniform(0, 2 * np.pi, (2, 3)), random.uniform(0.4, 1.0, 3)
    cadence = 2 * np.pi * random.uniform(1.5, 2.4)
    swing = np.sin(cadence * t[:, None] + phases[0]) + 0.5 * np.sin(2 * cadence * t[:, None] + phases[1])
    turn = np.cos(cadence * t[:, None] / 2 + phases[1]) * (0.01, 1.2, 3.0)[level]
    return size * shares * swing + random.normal(0, 0.03, (count, 3)), turn + random.normal(0, 0.01, (count, 3))


def strange_layout(folder: Path, seed: int) -> Strange:
    """Draw a layout and write its files: three persons, three activities each, some with two trials."""
    random = np.random.default_rng(seed)

    def one_of(options: Any) -> Any:
        return options[int(random.integers(len(options)))]

    rate_hz, header, gravity = float(one_of((20, 25, 32, 50, 64, 100, 128, 200, 400))), random.random() < 0.8, True
    unit, clock = one_of(tuple(PER_SECOND)), one_of(("epoch", "uptime", "zero"))
    acc_unit, gyro_unit = one_of(tuple(ACC_SIZES)), one_of(("", *GYRO_SIZES))
    gravity = random.random() < 0.75
    timed = random.random() < 0.9
    separator, decimal = one_of(((",", "."), (";", "."), ("\t", "."), (";", ","), ("\t", ",")))
    who_at, what_at = one_of(PLACES), one_of(PLACES)
    if not header:  # nothing would say which column is whose
        who_at = "folder" if who_at == "column" else who_at
    if who_at == "file" and what_at == "file":
        what_at = "folder"
    persons, activities = one_of(PERSONS), one_of(ACTIVITIES)
    if what_at == "file" and any("_" in each for each in activities):
        who_at = "folder"
    trials = int(random.integers(1, 3))
    time_name = one_of(TIME_NAMES[one_of(("", unit))])
    acc_name = (
        one_of(ACC_HEADERS[one_of(("", acc_unit))]) if gravity or random.random() < 0.4 else one_of(LINEAR_HEADERS)
    )
    gyro_name = one_of(GYRO_HEADERS[one_of(("", gyro_unit))])
    if acc_name[0] == "a" and acc_name[1] == "{":
        gyro_name = one_of(("g{x}", "w{x}"))
    groups = ["time"] * timed + ["acc"] + ["gyro"] * bool(gyro_unit)
    order = [groups[at] for at in random.permutation(len(groups))] if header else groups
    made = Strange(rate_hz, timed, {
        "seed": seed, "rate_hz": rate_hz, "header": header, "unit": unit, "clock": clock, "timed": timed,
        "acc_unit": acc_unit, "gyro_unit": gyro_unit, "gravity": gravity, "separator": separator, "decimal": decimal,
        "who_at": who_at, "what_at": what_at, "persons": persons, "activities": activities, "trials": trials,
        "time_name": time_name, "acc_name": acc_name, "gyro_name": gyro_name, "order": order,
    }, gravity)  # fmt: skip
    names: dict[str, list[str]] = {
        "time": [time_name],
        "acc": [acc_name.format(x=x, X=x.upper()) for x in "xyz"],
        "gyro": [gyro_name.format(x=x, X=x.upper()) for x in "xyz"],
    }
    words = {"who": one_of(PERSON_COLUMNS), "what": one_of(ACTIVITY_COLUMNS)}
    columns = [name for group in order for name in names[group]]
    columns += [words[key] for key, at in (("who", who_at), ("what", what_at)) if at == "column"]
    began = {"epoch": 1_600_000_000.0, "uptime": 123_456.0, "zero": 0.0}[clock]
    for number, (who, what, trial) in enumerate(itertools.product(persons, activities, range(1, trials + 1))):
        count, level = int(6 * rate_hz), activities.index(what)
        linear, turns = motion(random, count, rate_hz, level)
        tilt = random.normal(0, 1, 3) + np.array([0, 1, 2])
        acc = linear + (G * tilt / np.linalg.norm(tilt) if gravity else 0.0)
        steps = np.arange(count) / rate_hz * PER_SECOND[unit]
        begin = (began + (0 if clock == "zero" else 60 * number)) * PER_SECOND[unit]
        time = [f"{begin + step:.4f}" for step in steps] if unit == "s" else [str(int(begin) + round(s)) for s in steps]
        cells = {"time": [time], "acc": (acc * ACC_SIZES[acc_unit]).T, "gyro": (turns * GYRO_SIZES.get(gyro_unit, 1)).T}
        table = [
            [value if group == "time" else f"{value:.6f}" for value in column]
            for group in order
            for column in cells[group]
        ]
        table += [[word] * count for word, at in ((who, who_at), (what, what_at)) if at == "column"]
        lines = [separator.join(row).replace(".", decimal) for row in zip(*table, strict=True)]
        parts = {"folder": [], "file": [], "column": []}
        for word, at in ((who, who_at), (what, what_at)):
            parts[at].append(word)
        stem = "_".join([*(parts["file"] or ["rec"]), *([f"{trial:02d}"] if trials > 1 else [])])
        name = "/".join([*parts["folder"], stem])
        if "column" in (who_at, what_at) and f"{name}.csv" in made.files:
            name = f"{name}_{number}"
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*([separator.join(columns)] if header else []), *lines, ""]))
        made.files[f"{name}.csv"] = Truth(who, what, acc, turns if gyro_unit else None)
    return made


def verdicts(found: Draft, made: Strange, folder: Path) -> dict[str, tuple[bool, bool]]:
    """Apply a guessed description; say of each aspect whether it is right, and whether the guess was sure of it."""
    sure = {key: guess.sure for key, guess in found.guesses.items()}
    description = description_of(found.to_json())
    right = dict.fromkeys(("rate", "acc", "gyro", "client", "activity"), True)
    seen = set()
    for file in find_files(description, folder).each():
        truth, parts = made.files[file.name], list(file_recordings(description, file))
        seen.add(file.name)
        acc = [each for each in parts if each.sensor == "acc"]
        times = np.concatenate([each.times_s for each in acc])
        rate_hz = (len(times) - 1) / max(np.ptp(times), 1e-12)
        assert 5 <= rate_hz <= 1000, (rate_hz, made.choices, found.toml())
        right["rate"] &= bool(abs(rate_hz / made.rate_hz - 1) < 0.05)
        right["acc"] &= same(np.concatenate([each.values for each in acc]), truth.acc)
        gyro = np.concatenate([each.values for each in parts if each.sensor == "gyro"])
        right["gyro"] &= same(gyro, np.zeros_like(truth.acc) if truth.gyro is None else truth.gyro)
        right["client"] &= {each.client.removeprefix("subject") for each in acc} == {
            truth.client.removeprefix("subject")
        }
        right["activity"] &= {str(word) for each in acc for word in np.unique(np.asarray(each.activity))} == {
            truth.activity
        }
    right["client"] &= seen == set(made.files)
    groups = sure["files"]
    return {
        "rate": (right["rate"], sure.get("time", sure.get("rate_hz", False))),
        "acc": (right["acc"], sure["acc"]),
        "gyro": (right["gyro"], sure.get("gyro", False)),
        "client": (right["client"], sure.get("client", groups)),
        "activity": (right["activity"], sure.get("activity", groups)),
    }


def same(values: np.ndarray, truth: np.ndarray) -> bool:
    """Whether values (n, 3) are the truth, but for the digits that were written."""
    return values.shape == truth.shape and bool(np.allclose(values, truth, rtol=1e-3, atol=0.02))
