"""`python -m export recognize`: files and pipes in, a time line out, and refusals that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from export.__main__ import app
from gaitway.own_packages import install_command
from tests.export.test_recognizer import rotation
from tests.export.test_runtime import model_bytes

HEADER = "time,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model_bytes())
    return path


def two_postures(seconds: float = 40.0) -> str:
    """Half the time y points up (walk, the second label), then z (jog, the third); a CSV without its header."""
    times = np.arange(0, seconds, 0.01)
    noise = 0.05 * np.random.default_rng(0).normal(size=(len(times), 3))
    acc = np.where((times < seconds / 2)[:, None], [0, 9.81, 0.0], [0, 0, 9.81]) + noise
    rows = np.column_stack([times, acc, 0.01 * rotation(times)])
    return "".join(",".join(f"{cell:.4f}" for cell in row) + "\n" for row in rows)


def run(*words: object, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["recognize", *map(str, words)], input=stdin, env={"COLUMNS": "300"})
    return result.exit_code, result.stdout, result.stderr


def test_a_recording_becomes_a_time_line(tmp_path: Path, model: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + two_postures())
    code, out, errors = run(model, tmp_path / "a.csv")
    assert (code, errors) == (0, "")
    first, second = (line.split() for line in out.splitlines())
    assert (first[0], first[1], first[4]) == ("0.0", "to", "walk")
    assert second[4] == "jog"
    assert float(first[2]) == pytest.approx(20, abs=2.6)
    assert int(first[6]) + int(second[6]) == 30  # (40 − 2.56) / 1.28 strides, and the first


def test_a_pipe_of_other_columns_and_units_is_told_apart_as_json(model: Path) -> None:
    lines = two_postures(10).splitlines()
    cells = [line.split(",") for line in lines]
    turned = "t;ax;ay;az;gx;gy;gz\n" + "".join(
        ";".join([f"{1000 * float(time):.3f}", *(str(float(a) / 9.80665) for a in rest[:3]), *rest[3:]]) + "\n"
        for time, *rest in cells
    )
    words = ("--time", "t", "--acc", "ax,ay,az", "--gyro", "gx,gy,gz", "--separator", ";", "--units", "ms,g,rad/s")
    code, out, errors = run(model, "-", *words, "--json", stdin=turned)
    assert (code, errors) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["label"] for answer in answers[:2]] == ["walk", "walk"]
    assert answers[-1]["label"] == "jog"
    assert set(answers[0]["probabilities"]) == {"rest", "walk", "jog", "run"}
    assert answers[1]["start_s"] == pytest.approx(1.28)


def test_a_described_folder_is_answered_session_by_session_whatever_its_labels(tmp_path: Path, model: Path) -> None:
    for subject, name in (("s1", "dancing"), ("s2", "sitting")):
        (tmp_path / "data" / subject).mkdir(parents=True)
        rows = [line.split(",") for line in two_postures(20).splitlines()]
        text = "".join(";".join([f"{1000 * float(time):.0f}", *rest]) + ";\n" for time, *rest in rows)
        (tmp_path / "data" / subject / f"{name}.txt").write_text(text)
    (tmp_path / "data.toml").write_text(
        "files = '(?P<client>s\\d)/(?P<activity>[a-z]+)\\.txt'\nheader = false\nseparator = ';'\ntrailing = ';'\n"
        'labels = ["sitting"]\ntime = { column = 1, unit = "ms" }\n'
        'acceleration = "specific force"\n'
        "acc = { columns = [2, 3, 4] }\ngyro = { columns = [5, 6, 7] }\n"
    )
    code, out, errors = run(model, tmp_path / "data", "--describe", tmp_path / "data.toml")
    assert (code, errors) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if len(line) == 2] == ["s1,", "s2,"]
    assert [line[4] for line in lines if len(line) > 4] == ["walk", "jog"] * 2
    alone = run(model, tmp_path / "data" / "s2" / "sitting.txt", "--describe", tmp_path / "data.toml")
    assert alone[1].splitlines()[1:] == out.splitlines()[4:]
    _, out, _ = run(model, tmp_path / "data", "--describe", tmp_path / "data.toml", "--json")
    named = [(answer["client"], answer["session"]) for answer in map(json.loads, out.splitlines())]
    assert dict.fromkeys(named) == {("s1", "s1/dancing.txt"): None, ("s2", "s2/sitting.txt"): None}
    _, _, errors = run(model, tmp_path / "data", "--describe", tmp_path / "data.toml", "--units", "ms,g,rad/s")
    assert "--describe already sets what --units sets" in errors


def test_sessions_come_in_the_order_of_their_times_and_each_note_names_its_own(tmp_path: Path, model: Path) -> None:
    """Of a client whose tenth walk has the earliest times; the accelerometer of the second measures g."""
    (tmp_path / "data").mkdir()
    for number, unit, begin_s in ((10, 1.0, 0), (2, 1 / 9.80665, 1000)):
        rows = [[float(cell) for cell in line.split(",")] for line in two_postures(10).splitlines()]
        cells = [(row[0] + begin_s, *(unit * cell for cell in row[1:4]), *row[4:]) for row in rows]
        text = "".join(",".join(f"{cell:.5f}" for cell in row) + "\n" for row in cells)
        (tmp_path / "data" / f"anna_{number}.csv").write_text(HEADER + text)
    (tmp_path / "data.toml").write_text(
        "files = '(?P<client>[a-z]+)_(?P<session>\\d+)\\.csv'\n"
        'time = { column = "time", unit = "s" }\nacceleration = "specific force"\nlabels = []\n'
        'acc = { columns = ["acc_x", "acc_y", "acc_z"] }\ngyro = { columns = ["gyro_x", "gyro_y", "gyro_z"] }\n'
    )
    words = (model, tmp_path / "data", "--describe", tmp_path / "data.toml")
    code, out, errors = run(*words)
    assert (code, [line for line in out.splitlines() if line.endswith(":")]) == (0, ["anna, 10:", "anna, 2:"])
    assert errors.startswith("note: anna, 2: ")


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, errors = run(model, stdin=HEADER)
    assert code == 2
    assert install_command("runtime") in errors


def test_a_file_that_grows_is_followed(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "growing.csv"
    rows = two_postures(6).splitlines(keepends=True)
    path.write_text(HEADER + "".join(rows[:200]))
    command = [sys.executable, "-m", "export", "recognize", str(model), str(path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as running:
        try:
            with path.open("a") as file:
                for part in (rows[200:399], rows[399:]):
                    time.sleep(0.3)
                    file.write("".join(part))
                    file.flush()
            assert running.stdout is not None
            assert "walk" in running.stdout.readline()
        finally:
            running.terminate()


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ((), "time,a,b\n1,2,3\n", "no column 'acc_x'"),
        ((), "", "standard input is empty"),
        ((), HEADER + "0,1,2,3,4,5\n", "no row has a number in each of the columns ['gyro_x', 'gyro_y', 'gyro_z']"),
        ((), HEADER + "0,1,2,x,4,5,6\n", "line 2: 'x' in column 'acc_z' is no number"),
        ((), HEADER + "0" * (2 << 20), "a line of more than 1 MiB"),
        (("--units", "s,g"), HEADER, "--units 's,g': expected three"),
        (("--units", "s,stone,rad/s"), HEADER, "acc.unit: unknown unit; Known: m/s2, g, mg"),
        (("--axes", "x,y"), HEADER, "axes are 'x,y'"),
        (("--acc", "a,b"), HEADER, "acc.columns: expected three columns"),
        (("--separator", ""), HEADER, "expected one character"),
        (("--describe", "none.toml"), HEADER, "none.toml: [Errno 2] No such file or directory"),
        (
            ("--gyro", ""),
            HEADER + two_postures(5),
            "there are no samples of the gyroscope, but this model was trained with",
        ),
        ((), HEADER + two_postures(25) + "0,1,2,3,4,5,6\n", "comes after later ones"),
    ],
)
def test_refusals(model: Path, words: tuple[str, ...], text: str, message: str) -> None:
    code, _, errors = run(model, *words, stdin=text)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_a_file_of_a_header_alone_is_no_recording_of_nothing(tmp_path: Path, model: Path) -> None:
    (tmp_path / "walk.csv").write_text(HEADER)
    code, shown, said = run(model, tmp_path / "walk.csv")
    assert (code, shown) == (2, "")
    assert "walk.csv contains no samples; expected rows of numbers" in said


def test_what_looks_wrong_is_said_once_beside_the_answers(model: Path) -> None:
    code, out, errors = run(model, "--units", "s,g,rad/s", stdin=HEADER + two_postures())
    assert code == 0
    assert "walk" in out
    assert errors.count("note: accelerometer: |acceleration| is 97 at rest, expected 9.81") == 1


def test_a_short_recording_says_why_nothing_came(model: Path) -> None:
    code, out, errors = run(model, stdin=HEADER + two_postures(1.5))
    assert (code, out) == (0, "")
    assert "both sensors together last 1.49 s, a window 2.56 s" in errors
