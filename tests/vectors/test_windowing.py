"""Python is held to `windowing.json`, and docs/examples/Windowing.kt as well, where there is a compiler."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vectors.windowing import PATH, TOLERANCE, vectors

VECTORS: dict[str, Any] = json.loads(PATH.read_text())
PORT = Path(__file__).resolve().parents[2] / "docs" / "examples" / "Windowing.kt"
MAIN = """
import java.io.File

fun main(args: Array<String>) {
    val numbers = File(args[0]).readText().trim().split(" ").map { it.toDouble() }.iterator()
    fun samples(): Samples {
        val rows = List(numbers.next().toInt()) { DoubleArray(4) { numbers.next() } }
        val values = rows.map { row -> FloatArray(3) { row[it + 1].toFloat() } }
        return Samples(DoubleArray(rows.size) { rows[it][0] }, values)
    }
    while (numbers.hasNext()) {
        val found = Windowing().windows(samples(), samples())
        println(found.size.toString() + found.joinToString("") { window -> window.joinToString("") { " $it" } })
    }
}
"""


def windows_of(case: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(case["windows"]), "<f4").reshape(-1, 128, 6)


def samples_of(case: dict[str, Any], sensor: str) -> tuple[np.ndarray, np.ndarray]:
    times = np.frombuffer(base64.b64decode(case[f"{sensor}_times"]), "<f8")
    return times, np.frombuffer(base64.b64decode(case[f"{sensor}_values"]), "<f4").reshape(-1, 3)


def test_the_file_says_what_python_computes() -> None:
    made = vectors()
    assert made["input"] == VECTORS["input"]
    assert [len(case["starts_s"]) for case in VECTORS["cases"]] == [5, 2, 0]
    for case, given in zip(made["cases"], VECTORS["cases"], strict=True):
        assert case.keys() == given.keys()
        assert case["starts_s"] == pytest.approx(given["starts_s"], abs=1e-6)
        np.testing.assert_allclose(windows_of(case), windows_of(given), rtol=0, atol=TOLERANCE / 10)
        for sensor in ("acc", "gyro"):
            for one, other in zip(samples_of(case, sensor), samples_of(given, sensor), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kotlinc") is None, reason="no Kotlin: on Debian apt-get install kotlin")
def test_the_example_in_kotlin_makes_these_windows(tmp_path: Path) -> None:
    assert len(PORT.read_text().splitlines()) <= 67
    shutil.copy(PORT, tmp_path)
    (tmp_path / "Main.kt").write_text(MAIN)
    numbers: list[str] = []
    for case in VECTORS["cases"]:
        for sensor in ("acc", "gyro"):
            times, values = samples_of(case, sensor)
            numbers += [str(len(times)), *(repr(float(each)) for each in np.column_stack([times, values]).ravel())]
    (tmp_path / "numbers.txt").write_text(" ".join(numbers))
    built = tmp_path / "windowing.jar"
    compiled = ["kotlinc", "Windowing.kt", "Main.kt", "-include-runtime", "-d", str(built)]
    subprocess.run(compiled, cwd=tmp_path, check=True, capture_output=True)
    ran = ["java", "-cp", str(built), "MainKt", str(tmp_path / "numbers.txt")]
    said = subprocess.run(ran, check=True, capture_output=True, text=True).stdout.splitlines()
    for line, case in zip(said, VECTORS["cases"], strict=True):
        count, *found = map(float, line.split())
        expected = windows_of(case)
        assert int(count) == len(expected), case["name"]
        found_windows = np.array(found).reshape(-1, 128, 6)
        np.testing.assert_allclose(found_windows, expected, rtol=0, atol=TOLERANCE, err_msg=case["name"])
