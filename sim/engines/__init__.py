"""Engines that run a round's clients: one after the other, in processes, or stacked. All give the same numbers."""

from sim.engines.choice import EngineChoice, choose
from sim.engines.processes import Processes
from sim.engines.ray_cluster import RayCluster
from sim.engines.serial import ClientJob, Engine, Serial
from sim.engines.stacked import Stacked

__all__ = ["ClientJob", "Engine", "EngineChoice", "Processes", "RayCluster", "Serial", "Stacked", "choose"]
