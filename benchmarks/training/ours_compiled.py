"""Gaitway's contestant as `--compile` makes it: the first round, which is not counted, compiles."""

from functools import partial

from contest import play
from ours import prepare

if __name__ == "__main__":
    play(partial(prepare, compiled=True))
