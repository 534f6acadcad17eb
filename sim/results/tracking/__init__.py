"""Tells others of a run while it goes on: experiment trackers, and whatever a caller hangs in."""

from sim.results.tracking.callback import RunCallback
from sim.results.tracking.table import TRACKERS, trackers

__all__ = ["TRACKERS", "RunCallback", "trackers"]
