"""The programs of docs/examples and docs/inference.md, run as they are on stand-ins for what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.test_runtime import model_bytes
from tests.repository.imports import REPOSITORY


@pytest.mark.ci
def test_the_board_reads_its_imu(tmp_path: Path) -> None:
    """A device as the kernel lays it out, at rest with z up: raw 981 times 0.01 m/s²."""
    device = tmp_path / "iio:device0"
    device.mkdir()
    for kind, scale in (("accel", "0.01"), ("anglvel", "0.001")):
        (device / f"in_{kind}_scale").write_text(scale + "\n")
        for axis in "xyz":
            raw = "981" if (kind, axis) == ("accel", "z") else "0"
            (device / f"in_{kind}_{axis}_raw").write_text(raw + "\n")
    (tmp_path / "model.onnx").write_bytes(model_bytes())
    command = [sys.executable, str(REPOSITORY / "docs/examples/raspberry_pi.py"), str(tmp_path / "model.onnx"), device]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline().startswith("jog (100%), 0.")  # acc_z is the third logit
        finally:
            running.terminate()


def test_the_page_on_inference_in_python(tmp_path: Path) -> None:
    """Its block, on the recording that its shell block makes; tests/repository/test_documents_run.py runs that."""
    block, _of_pictures = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "inference.md").read_text(), re.S)
    (tmp_path / "model.onnx").write_bytes(model_bytes())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    maker = [sys.executable, str(REPOSITORY / "docs/examples/make_recording.py")]
    with (tmp_path / "phone.csv").open("w") as file:
        subprocess.run(maker, cwd=tmp_path, env=environment, stdout=file, check=True)
    command = [sys.executable, "-c", block]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) > 20
    assert re.match(r"0\.0 to 2\.6 s: \w+ \(\d+%\)", ran.stdout)
