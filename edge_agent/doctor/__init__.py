"""What could keep a device from taking part, looked at one by one: `python -m edge_agent doctor`."""

from edge_agent.doctor.finding import Finding, Level
from edge_agent.doctor.visit import examine

__all__ = ["Finding", "Level", "examine"]
