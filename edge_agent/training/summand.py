"""What a device adds to the secure sum of a round, as the training process leaves it: whole numbers in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_agent.storage.data_folder import write_file
from federation.plan import Plan
from federation.records import Client, Tree, Update
from federation.rounds.gains import Gains
from federation.secure_sums.summation import encoded, layout_of
from federation.training.local_round import Setup


def write_numbers(
    path: Path, setup: Setup, initial: Client, plan: Plan, update: Update, broadcast: Tree, gains: Gains
) -> dict[str, Any]:
    """Write an update's numbers as they are added; return, as JSON, what they mean and how large they may be.

    gains: what the device reports of its models (`federation.rounds.gains`).
    """
    layout = layout_of(setup.method, setup.training, initial, plan.secure)
    numbers = encoded(setup.method, layout, update, broadcast, plan.secure, gains)
    write_file(path, numbers.astype("<i8").tobytes())
    return {"bound": layout.bound, "layout": layout.digest.hex()}
