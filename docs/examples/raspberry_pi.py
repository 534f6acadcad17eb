"""Say what the wearer of a small board is doing: an IMU under Linux IIO, an exported model, no torch.

    python docs/examples/raspberry_pi.py model.onnx [/sys/bus/iio/devices/iio:device0]

Any other sensor does as well: give `recognizer.push` its times and readings, and `SampleUnits` their units.
"""

import sys
import time
from pathlib import Path

import numpy as np

from export.recognizer import Recognizer
from export.runtime import Session
from har_pipeline import SampleUnits

RATE_HZ, BATCH = 100, 25


def read(device: Path, kind: str, scale: float) -> list[float]:
    """Return one reading of the axes x, y and z: the kernel scales to m/s² and rad/s."""
    return [float((device / f"in_{kind}_{axis}_raw").read_text()) * scale for axis in "xyz"]


def main(model: str, folder: str = "/sys/bus/iio/devices/iio:device0") -> None:
    """Read for ever, and print an answer every stride of the model's windows."""
    device = Path(folder)
    scales = {kind: float((device / f"in_{kind}_scale").read_text()) for kind in ("accel", "anglvel")}
    # How the sensor sits on the board: which of its axes are the device's x (right), y (up) and z (out of the front).
    recognizer = Recognizer(Session.load(model), SampleUnits(axes="x,y,z"))
    while True:
        rows = []
        for _ in range(BATCH):
            rows.append([time.monotonic(), *(v for kind, scale in scales.items() for v in read(device, kind, scale))])
            time.sleep(1 / RATE_HZ)
        table = np.array(rows)
        for answer in recognizer.push(table[:, 0], table[:, 1:4], table[:, 4:7]):
            print(f"{answer.label} ({answer.probability:.0%}), {answer.delay_s:.1f} s ago", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
