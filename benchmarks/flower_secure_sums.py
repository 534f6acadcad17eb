"""What Flower's SecAgg+ costs a device and the server: its own client functions and masks, beside `bench_secure_sums`.

Run with the interpreter of a virtual environment that has `flwr`; tried with 1.42.0. A device's figures are those of
Flower's four client stages with as many neighbours, and the same threshold, as ours has for so many devices (pairs are
given by `--degrees devices:neighbours:threshold`). The server's are its steps for one device, times their number, 5 %
of them lost with their vectors: reading a vector and adding it, a secret from its shares, and masks of that secret.

Flower's numbers are int64 whatever the modulus, 2³² here. Its masks are of RandomState, whose seed has 32 bits, and a
device's keys are not signed: less is done than by ours, so times compare what each offers, not the same thing.

Example: python benchmarks/flower_secure_sums.py --degrees 10:9:5 100:54:28 1000:98:54
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flwr
import numpy as np
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_subtraction
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

LENGTHS = {"prototypes, 6 × 192": 6 * 192 + 6, "HAR CNN": 123_303, "(G, B), 760 × 6": 760 * 761 // 2 + 760 * 6 + 1}
MODULUS = 1 << 32
mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # its package hides it by a function
# what it does with a message of each stage
SETUP, SHARE_KEYS, MASK, UNMASK = (
    getattr(mod, name) for name in ("_setup", "_share_keys", "_collect_masked_vectors", "_unmask")
)
LOST_SHARE = 0.05


class Degree(NamedTuple):
    """How many devices there are, with how many each shares, and how many of these open a secret."""

    devices: int
    neighbours: int
    threshold: int


class Clock:
    """Adds up processor time, by stage."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    def run(self, stage: str, call: Callable[[], Any]) -> Any:
        """Call, and count its milliseconds."""
        begun = time.process_time()
        result = call()
        self.ms[stage] = self.ms.get(stage, 0.0) + 1000 * (time.process_time() - begun)
        return result


def size(record: dict[str, Any]) -> int:
    """Return the bytes of what a message holds, without Flower's envelope."""
    count = 0
    for value in record.values():
        for one in value if isinstance(value, list) else [value]:
            count += len(one) if isinstance(one, bytes) else 8
    return count


def begun(degree: Degree, nid: int) -> Any:
    """Return a device's state with the plan's numbers."""
    state = mod.SecAggPlusState()
    state.nid = nid
    given = {Key.SAMPLE_NUMBER: degree.devices, Key.SHARE_NUMBER: degree.neighbours + 1}
    given |= {Key.THRESHOLD: degree.threshold, Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: 1 << 22}
    SETUP(state, {**given, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1000.0})
    return state


def measure(degree: Degree, length: int) -> tuple[Clock, Clock, int, int]:
    """Return one device's clock, the server's for one device and one that is lost, and the bytes up and down."""
    own, server = Clock(), Clock()
    device = own.run("keys", lambda: begun(degree, 1))
    others = {nid: begun(degree, nid) for nid in range(2, degree.neighbours + 2)}
    keys = {str(nid): (each.pk1, each.pk2) for nid, each in {1: device, **others}.items()}
    sent = own.run("shares", lambda: SHARE_KEYS(device, dict(keys)))
    up, down = len(device.pk1) + len(device.pk2) + size(sent), size({k: list(v) for k, v in keys.items()})
    dealt = {nid: SHARE_KEYS(each, dict(keys)) for nid, each in others.items()}
    ciphertexts = {nid: out[Key.CIPHERTEXT_LIST][out[Key.DESTINATION_LIST].index(1)] for nid, out in dealt.items()}
    asked = {Key.CIPHERTEXT_LIST: list(ciphertexts.values()), Key.SOURCE_LIST: list(ciphertexts)}
    numbers = ndarrays_to_parameters([np.random.default_rng(0).normal(size=length)])
    masked = own.run("vector", lambda: MASK(device, asked, 100, numbers))
    up, down = up + size(masked), down + size(asked)
    lost = max(1, round(LOST_SHARE * degree.neighbours))
    names = list(others)
    listed = {Key.ACTIVE_NODE_ID_LIST: [1, *names[lost:]], Key.DEAD_NODE_ID_LIST: names[:lost]}
    opened = own.run("opening", lambda: UNMASK(device, dict(listed)))
    up, down = up + size(opened), down + size(listed)
    _serve(server, device, others, masked, degree)
    return own, server, up, down


def _serve(server: Clock, device: Any, others: dict[int, Any], masked: dict[str, Any], degree: Degree) -> None:
    """Do what the workflow's stages do for one device in the sum, and for one pair of a lost one."""
    vectors = server.run("read", lambda: [bytes_to_ndarray(each) for each in masked[Key.MASKED_PARAMETERS]])
    total = [each.copy() for each in vectors]
    server.run("add", lambda: parameters_addition(total, vectors))
    dims = [each.shape for each in vectors]
    shares = create_shares(device.rd_seed, degree.threshold, degree.neighbours + 1)[: degree.threshold]
    secret = server.run("combine", lambda: combine_shares(shares))
    server.run("unmask", lambda: parameters_subtraction(total, pseudo_rand_gen(secret, MODULUS, dims)))
    other = next(iter(others.values()))

    def pair() -> None:
        key = mod.generate_shared_key(mod.bytes_to_private_key(device.sk1), mod.bytes_to_public_key(other.pk1))
        parameters_addition(total, pseudo_rand_gen(key, MODULUS, dims))

    server.run("pair", pair)


def main() -> None:
    """Print a line for each number of devices and vector."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--degrees", nargs="+", default=["10:9:5", "100:54:28", "1000:98:54", "10000:120:65"])
    for text in parser.parse_args().degrees:
        degree = Degree(*map(int, text.split(":")))
        for name, length in LENGTHS.items():
            own, server, up, down = measure(degree, length)
            present = degree.devices - round(LOST_SHARE * degree.devices)
            each = present * sum(server.ms[stage] for stage in ("read", "add", "combine", "unmask"))
            gone = (degree.devices - present) * (server.ms["combine"] + server.ms["pair"] * degree.neighbours)
            stages = ", ".join(f"{stage} {ms:.0f}" for stage, ms in own.ms.items())
            print(
                f"| {degree.devices:,} | {degree.neighbours}, {degree.threshold} | {name} | {sum(own.ms.values()):.0f} "
                f"ms | {(each + gone) / 1000:.2f} s | {up / 1e6:.3f} MB | {down / 1e6:.3f} MB | {stages} ms |",
                flush=True,
            )
    print(f"flwr {flwr.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
