"""The records that methods, engines and the wire exchange: NamedTuples of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from torch import Tensor, dtype

Tensors = dict[str, Tensor]
Tree = dict[str, Any]
"""A nested dict with tensors at its leaves: a server's state, a broadcast, an upload."""


class Batch(NamedTuple):
    """One mini-batch; rows with mask 0 are padding and always stand at the end."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B,) int64, or (B, ...) as the task has its targets
    mask: Tensor  # (B,) 1 for an example, 0 for padding


class Output(NamedTuple):
    """What a network returns: features, mostly what enters the head, the logits, and its moved buffers."""

    features: Tensor  # (B, D), or (B, D, h, w) of pixels
    logits: Tensor  # (B, C), (B, C, H, W) of pixels, or what is restored of x in its shape
    buffers: Tensors
    hidden: Tensor | None = None  # 1 where x was hidden from the network, in a shape that broadcasts to x's


class Client(NamedTuple):
    """Everything that a client keeps between rounds: its full model, and a method's own memory."""

    params: Tensors
    buffers: Tensors
    memory: Tree


class Examples(NamedTuple):
    """A client's labelled examples: x (n, ...), y (n,) int64, or (n, ...) as the task has its targets."""

    x: Tensor
    y: Tensor


class Phase(NamedTuple):
    """A stretch of local training in which only some parameters move."""

    trainable: Callable[[str], bool]
    epochs: int
    rate: float = 1.0  # what the plan's learning rate is multiplied by
    plain_sgd: bool = False  # whether it takes plain gradient steps, whatever the plan's optimizer


class ClassStats(NamedTuple):
    """Sums over a client's examples, per class, in float64; they add across batches."""

    counts: Tensor  # (C,) examples
    total: Tensor  # (C, D) sum of features
    square: Tensor  # (C,) sum of squared feature norms


ExampleSums = Any
"""What a method sums over a client's examples (`Method.add_sums`): a NamedTuple of tensors, `ClassStats` by default."""


class TrainingStats(NamedTuple):
    """What the local round measured for the upload."""

    before: ExampleSums  # with the received model, if the method asked for it
    after: ExampleSums  # with the trained model, if the method asked for it
    lr_sum: Tensor  # () Σ of learning rates over all phases' steps; with SGD's momentum as many times as it steps so

    @property
    def dtype(self) -> dtype:
        """What the client computes in, and sends its statistics in."""
        return self.lr_sum.dtype


class Update(NamedTuple):
    """What reached the server from one client.

    A `SumMethod`'s comes with what it replaces; without tensors it takes that out.
    """

    client_id: str
    examples: int
    steps: int
    tensors: Tree
    discount: float = 1.0  # below 1 for a stale update
    replaces: Tree | None = None  # the client's tensors that the state has now; None: it has none


class UploadGroup(Enum):
    """What a group of an upload's tensors is: the server measures, checks and caps it accordingly."""

    CHANGE = "change"  # moved on from the broadcast's group of that name: the norm of its change is judged
    VALUE = "value"  # measured anew in each round: its own norm is judged
    SQUARED_VALUE = "squared value"  # the same in units squared, such as covariances: the root of its norm is judged
    CLASS_COUNTS = "class counts"  # (C,) of examples, which sum to the update's, or of pixels; they shrink with them
    OTHER = "other"  # of a size that says nothing, such as margins


class SumKind(Enum):
    """What a group of numbers that clients add up is, which says how large they can be (`SecureSettings`)."""

    WEIGHTED_CHANGE = "weighted change"  # of parameters, times the client's weight
    WEIGHTED_VALUE = "weighted value"
    VALUE = "value"
    COUNT = "count"  # a weight, or a number of examples
    WHOLE = "whole numbers"  # differences of two of 32 bits


Forward = Callable[[Tensors, Tensors, Tensor, "Tensor | None"], Output]
"""forward(params, buffers, x, mask) -> Output, a pure function; training or evaluation is bound before."""

Broadcast = Mapping[str, Any]
