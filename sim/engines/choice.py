"""Chooses a run's engine, and says why."""

from __future__ import annotations

import os
from typing import NamedTuple

from sim.engines.fork_map import is_supported
from sim.engines.processes import Processes
from sim.engines.ray_cluster import RayCluster
from sim.engines.serial import Engine, Serial
from sim.engines.stacked import Stacked
from sim.errors import SettingsError
from sim.experiment.settings import Experiment

_COMPILE = "--compile is for clients that train stacked, not for {}: use --engine stacked or processes"


class EngineChoice(NamedTuple):
    """An engine, how many processes it takes, and why it was chosen."""

    engine: Engine
    name: str
    workers: int
    reason: str


def choose(settings: Experiment, clients: int) -> EngineChoice:
    """Return the engine that the settings name, or for `auto` the fastest for `clients` clients a round.

    Raises:
        SettingsError: for an engine that this system or device cannot run.
    """
    cores = settings.workers or usable_cores()
    workers = max(1, min(cores, clients))
    stacked = Stacked(settings.chunk, settings.device, compiled=settings.compile)
    if settings.compile and settings.engine in ("serial", "ray"):
        raise SettingsError(_COMPILE.format(settings.engine))
    if settings.training.example_clip_norm is not None:
        return _one_by_one(settings, workers)
    at_a_time = "as many clients at a time as fit" if stacked.meter else f"{stacked.chunk} clients at a time"
    match settings.engine:
        case "serial":
            return EngineChoice(Serial(), "serial", 1, "as asked")
        case "stacked":
            return EngineChoice(stacked, "stacked", 1, f"as asked, {at_a_time}")
        case "processes":
            _check(settings)
            chunk = settings.chunk or (None if settings.compile else 1)
            processes = Processes(workers, chunk, compiled=settings.compile)
            return EngineChoice(processes, "processes", workers, f"as asked, {workers} of them")
        case "ray":
            where = os.environ.get("RAY_ADDRESS", "this machine")
            return EngineChoice(RayCluster(settings.workers, settings.device), "ray", 1, f"as asked, on {where}")
    if settings.device != "cpu":
        return EngineChoice(stacked, "stacked", 1, f"on {settings.device}, {at_a_time}")
    if workers == 1 or not is_supported():
        why = "one core or one client per round" if workers == 1 else "this system cannot fork"
        if settings.compile:
            raise SettingsError(_COMPILE.format(f"serial, which auto chooses here ({why})"))
        return EngineChoice(Serial(), "serial", 1, why)
    processes = Processes(workers, settings.chunk, compiled=settings.compile)
    return EngineChoice(processes, "processes", workers, f"{cores} cores, {clients} clients per round")


def _one_by_one(settings: Experiment, workers: int) -> EngineChoice:
    """Return an engine in which no two clients are one program."""
    why = "per-example gradients (training.example_clip_norm) need one client at a time"
    if settings.engine in ("stacked", "ray") or settings.compile or (settings.chunk or 1) > 1:
        raise SettingsError(f"{why}: use --engine serial or processes, without --chunk and --compile")
    if settings.engine == "serial" or settings.device != "cpu" or workers == 1 or not is_supported():
        return EngineChoice(Serial(), "serial", 1, why)
    return EngineChoice(Processes(workers, 1), "processes", workers, why)


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(settings: Experiment) -> None:
    if settings.device != "cpu":
        raise SettingsError(f"engine processes on device {settings.device}: forks cannot share a GPU; use stacked")
    if not is_supported():
        raise SettingsError("engine processes: this system cannot fork; use serial")
