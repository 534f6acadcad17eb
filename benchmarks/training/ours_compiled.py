"""Gaitway's contestant as `--compile` makes it: the first round, which is not counted, compiles."""

from functools import partial

from contestant import play
from gaitway_peer import prepare

if __name__ == "__main__":
    play(partial(prepare, compiled=True))
