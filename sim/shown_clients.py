"""Who has what, before the first round: a table in the terminal and `partition.png` in the run's directory."""

from __future__ import annotations

from pathlib import Path

from sim.cli.terminal import console
from sim.data.federated_data import FederatedData
from sim.data.partitions.plot import draw_partition
from sim.data.partitions.table import partition_table
from sim.data.repartition import current_partition


def show_clients(data: FederatedData, out: Path) -> None:
    """Print and draw every client's training and test examples by class."""
    shares, y = current_partition(data)
    console.print(partition_table(shares, y, data.labels))
    out.mkdir(parents=True, exist_ok=True)
    draw_partition(out / "partition.png", shares, y, data.labels)
