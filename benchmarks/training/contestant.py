"""What every contestant is called with, and how it answers: `CONTESTANT --work NAME --options JSON --rounds N`.

A line of JSON a round on the output: {"seconds": wall time of the round}. The first rounds warm up and are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from workloads import WORKS, Work


def arguments() -> argparse.Namespace:
    """Read the command line; `work` is the work itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=sorted(WORKS), required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON: keywords of the work")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="cores to use, in threads or processes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    wanted = parser.parse_args()
    os.environ |= {"GAITWAY_BENCH_WORK": wanted.work, "GAITWAY_BENCH_OPTIONS": json.dumps(wanted.options)}
    wanted.work = WORKS[wanted.work](**wanted.options)
    return wanted


def play(prepare: Callable[[Work, int, str], Callable[[], object]]) -> None:
    """Let `prepare(work, threads, device)` make the round, and time each."""
    wanted = arguments()
    play_round = prepare(wanted.work, wanted.threads, wanted.device)
    for _ in range(wanted.rounds):
        begun = time.perf_counter()
        play_round()
        if wanted.device != "cpu":
            torch.cuda.synchronize()
        answer(time.perf_counter() - begun)


def answer(seconds: float) -> None:
    """Tell one round's time."""
    print(json.dumps({"seconds": seconds}))
    sys.stdout.flush()
