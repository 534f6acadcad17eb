"""Print a generated recording as CSV, as a phone's app might write it: milliseconds, g and degrees a second."""

from itertools import islice

import numpy as np

from har_pipeline import recordings
from har_pipeline.recording import STANDARD_GRAVITY

SESSIONS, PAUSE_S = 6, 2.0


def main() -> None:
    """Print the first sessions of a generated person, one after the other on one clock."""
    print("time,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z")
    both = list(islice(recordings("synthetic", None), 2 * SESSIONS))
    now_s = 0.0
    for acc, gyro in zip(both[::2], both[1::2], strict=True):
        turned = [np.interp(acc.times_s, gyro.times_s, axis) for axis in np.degrees(gyro.values).T]
        times_s = now_s + acc.times_s - acc.times_s[0]
        now_s = times_s[-1] + PAUSE_S
        for row in np.column_stack([times_s * 1e3, acc.values / STANDARD_GRAVITY, *turned]):
            print(",".join(f"{cell:.5f}" for cell in row))


if __name__ == "__main__":
    main()
