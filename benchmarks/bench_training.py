"""Rounds of training: Gaitway's simulation against a plain loop, pfl and Flower, on the same work and cores.

    python benchmarks/bench_training.py public --rounds 2 --repeats 3 --out public.json

Contestants run one after the other, A B A B …, each in a process of its own that plays a round to warm up and then
`--rounds` more; the table has the median of all of a contestant's rounds. pfl runs as one process with a thread a core
and as one process a core. The limit is centralized training on as many examples, without any federation.
Peers live in virtual environments under benchmarks/.peers, made at the first use; --without leaves some out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import matmul_rate, report
from peers import python_of

HERE = Path(__file__).parent
TRAINING = HERE / "training"
CONTESTANTS = ("ours", "ours-compiled", "loop", "pfl", "pfl-processes", "flower", "limit")
WORKS = ("public", "har_cnn", "hart", "hart_alp", "tan")
CAN_NOT = {("tan", "pfl"), ("tan", "pfl-processes"), ("tan", "limit"), ("public", "limit")} | {
    (work, "ours-compiled") for work in WORKS if work != "tan"
}
"""pfl has no fedproto; the limit is asked for where the data are HAR's; only Tan's steps are small enough to stack."""

ON_GPU = ("ours", "loop", "pfl")


def command(contestant: str, cores: int) -> list[str]:
    """Return what starts a contestant, without the work."""
    scripts = {
        "ours": "gaitway_peer",
        "ours-compiled": "ours_compiled",
        "limit": "centralized",
        "flower": "flower_peer",
    }
    script = "pfl_peer" if contestant.startswith("pfl") else scripts.get(contestant, contestant)
    path = str(TRAINING / f"{script}.py")
    if contestant == "pfl-processes":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(cores)]
        return [str(python_of("pfl")), *torchrun, path, "--threads", "1"]
    peer = {"pfl": "pfl", "flower": "flwr"}.get(contestant)
    return [str(python_of(peer)) if peer else sys.executable, path, "--threads", str(cores)]


def seconds_of(contestant: str, work: str, options: str, rounds: int, cores: int, device: str) -> list[float]:
    """Play a contestant once and return its rounds, the first of which warms up."""
    paths = [str(HERE.parent), str(TRAINING), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    asked = ["--work", work, "--options", options, "--rounds", str(rounds + 1), "--device", device]
    done = subprocess.run(
        [*command(contestant, cores), *asked],
        env=environment,
        capture_output=True,
        text=True,
    )
    rounds_s = [json.loads(line)["seconds"] for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if len(rounds_s) != rounds + 1:
        ended = f"{contestant} ended with {done.returncode} after {len(rounds_s)} rounds"
        print(f"{ended}; it is left out:\n{done.stderr[-3000:]}", file=sys.stderr)
        return []
    return rounds_s


def counted_work(work: str, options: dict[str, Any]) -> dict[str, float]:
    """Count a round's operations and the bytes that are shared."""
    sys.path[:0] = [str(HERE.parent), str(TRAINING)]
    from workloads import WORKS, operations, shared_bytes

    described = WORKS[work](**options)
    return {"GFLOP a round": operations(described) / 1e9, "MB shared a round": shared_bytes(described) / 1e6}


def main() -> None:
    """Read the command line, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS, nargs="?", default="public")
    parser.add_argument("--options", default="{}", help='JSON that makes the work smaller: {"clients": 8, "epochs": 1}')
    parser.add_argument("--rounds", type=int, default=2, help="rounds a process that count")
    parser.add_argument("--repeats", type=int, default=3, help="processes a contestant")
    parser.add_argument("--without", action="append", default=[], choices=CONTESTANTS, help="leave a contestant out")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, where ours, loop and pfl play")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    wanted = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    playing = [one for one in CONTESTANTS if one not in wanted.without and (wanted.work, one) not in CAN_NOT]
    if wanted.device != "cpu":
        playing = [one for one in playing if one in ON_GPU]
    seconds: dict[str, list[float]] = {name: [] for name in playing}
    for turn in range(wanted.repeats):
        for name in playing:
            if played := seconds_of(name, wanted.work, wanted.options, wanted.rounds, cores, wanted.device):
                seconds[name] += played[1:]
                line = f"{turn + 1}/{wanted.repeats} {name}: {played[-1]:.2f} s a round, the first {played[0]:.2f}"
                print(line, file=sys.stderr)
            if wanted.out:  # what was measured outlives whoever stops this
                wanted.out.write_text(json.dumps({"all seconds": seconds}))
    median = {name: statistics.median(each) for name, each in seconds.items() if each}
    rate, counted = matmul_rate(cores), counted_work(wanted.work, json.loads(wanted.options))
    rows = [
        {
            "contestant": name, "seconds a round": value, "least": min(seconds[name]), "most": max(seconds[name]),
            "ours is faster by": value / median["ours"] if "ours" in median else None,
            "share of matmul": counted["GFLOP a round"] * 1e9 / value / rate,
        }
        for name, value in median.items()
    ]  # fmt: skip
    report(
        f"{wanted.work} {wanted.options}, {cores} cores", rows, out=wanted.out,
        more={"all seconds": seconds, "GFLOP/s of float32 matmul, all cores": rate / 1e9, **counted},
    )  # fmt: skip


if __name__ == "__main__":
    main()
