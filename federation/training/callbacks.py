"""How one client's local round is followed from outside: resumed after an epoch, and ended before its last step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from federation.records import Tensors, Tree


class EpochCheckpoint(NamedTuple):
    """A local round after one of its epochs: what a later process needs to go on, bit for bit."""

    epoch: int  # epochs done, over all phases
    steps: int  # optimizer steps done
    params: Tensors  # all of them, in the model's order
    buffers: Tensors
    momenta: Tree  # the optimizer's state in the phase that the epoch belongs to
    loss: Tensor  # () Σ loss · examples of that epoch
    examples: Tensor  # ()


class TrainingCallback:
    """Sees a round of one client; this one lets it run undisturbed."""

    wants_checkpoints = False
    """Whether it wants `on_epoch_end`, which costs a copy of the parameters each time."""

    def resume(self) -> EpochCheckpoint | None:
        """Return where an earlier run of the same round came to; None to begin with the first epoch."""
        return None

    def should_stop(self, steps: int) -> bool:
        """Whether no further step is to begin after `steps` of them; what was done is then partial work."""
        return False

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        """Take note of a whole epoch; the tensors are not changed afterwards."""
