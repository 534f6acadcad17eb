"""Plays many cases against one target within bounds of time and memory, in a process of its own:

    python -m tests.fuzzing.play TARGET CASES SEED

hypothesis draws seeds; each gives a few hundred mutants of valid messages, for drawing each of them takes it ten times
as long as the code under test. A mutant that has come before is not played again, and not counted.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

MUTANTS = 250
"""Cases of one seed."""
SEEDS = 200
"""Of one run of hypothesis, which remembers what it has drawn."""
CASE_CPU_S, CASE_S = 2.0, 180.0
"""What one case may take of the processor, and at all."""
MORE_BYTES = 512 << 20
"""Memory that a whole run may take on top of what it has after a first few cases; more cannot even be asked for."""
WARM = 200
SHOWN = 600


class Target(Protocol):
    """Something that takes bytes from outside."""

    def begin(self, rng: random.Random) -> None:
        """Begin anew, so that a seed can be played again alone."""
        ...

    def draw(self, rng: random.Random) -> bytes:
        """Draw a case."""
        ...

    def feed(self, case: bytes) -> None:
        """Play it; raises whatever must not happen."""
        ...

    def close(self) -> dict[str, int]:
        """End, and count what came of the cases, which shows whether they were any good."""
        ...


class Played(NamedTuple):
    """What a run came to."""

    cases: int
    seconds: float
    cpu_s: float
    slowest_s: float
    grown_bytes: int
    outcomes: dict[str, int]


class HungError(BaseException):
    """A case that takes too long; no handler in the code under test catches it."""


class Player:
    """Plays cases, and counts those that are new."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._seen: set[int] = set()
        self.slowest_s = 0.0

    @property
    def cases(self) -> int:
        """How many different cases were played."""
        return len(self._seen)

    def play(self, seed: str, mutants: int, most: int) -> None:
        """Play the mutants of a seed, but not more cases than `most` in all."""
        rng = random.Random(seed)
        self._target.begin(rng)
        for k in range(mutants):
            case = self._target.draw(rng)
            if (key := hash(case)) in self._seen or self.cases >= most:
                continue
            self._seen.add(key)
            began = time.process_time()
            try:
                self._target.feed(case)
            except (Exception, HungError) as error:
                raise AssertionError(f"seed {seed}, mutant {k}: {error!r} of {case[:SHOWN]!r}") from error
            self.slowest_s = max(self.slowest_s, time.process_time() - began)


def play(target: Target, cases: int, seed: int) -> Player:
    """Play that many different cases."""
    player = Player(target)
    while player.cases < cases:
        _play_some(player, cases, seed)
        seed += 1
    return player


def _play_some(player: Player, cases: int, seed: int) -> None:
    seeds = min(SEEDS, -(-(cases - player.cases) // MUTANTS))

    @settings(
        max_examples=seeds,
        phases=(Phase.generate,),  # a seed cannot be made simpler
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**63 - 1))
    def some(drawn: int) -> None:
        player.play(f"{seed}/{drawn}", MUTANTS, cases)  # what is drawn first is always 0

    hypothesis.seed(seed)(some)()


def bounded(make: Callable[[Path], Target], cases: int, seed: int) -> Played:
    """Play with this process's memory and the time of each case bounded."""
    with tempfile.TemporaryDirectory(prefix="gaitway-fuzz-") as folder:
        target = make(Path(folder))
        play(target, WARM, seed + 1_000_000)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MORE_BYTES,) * 2)
        for which in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(which, _hung)
        before, began, worked = _most_memory(), time.perf_counter(), time.process_time()
        watched = _Watched(target)
        player = play(watched, cases, seed)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - worked
        return Played(player.cases, seconds, cpu_s, player.slowest_s, _most_memory() - before, target.close())


class _Watched:
    """A target with an alarm set for each case."""

    def __init__(self, target: Target) -> None:
        self.begin, self.draw, self._feed = target.begin, target.draw, target.feed

    def feed(self, case: bytes) -> None:
        _set_alarms(CASE_CPU_S, CASE_S)
        try:
            self._feed(case)
        finally:
            _set_alarms(0, 0)

    def close(self) -> dict[str, int]:
        return {}


def _set_alarms(cpu_s: float, real_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, real_s)


def _hung(which: int, _frame: FrameType | None) -> None:
    bound = f"{CASE_CPU_S} s of the processor" if which == signal.SIGPROF else f"{CASE_S} s"
    raise HungError(f"it takes more than {bound}")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _most_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(words: list[str]) -> None:
    """Play what the command line says, and print what it came to as JSON."""
    from tests.fuzzing.targets import TARGETS

    name, cases, seed = words[0], int(words[1]), int(words[2])
    played: dict[str, Any] = bounded(TARGETS[name], cases, seed)._asdict()
    print(json.dumps({"target": name, **played}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
