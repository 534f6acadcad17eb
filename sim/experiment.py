"""What one run is, as the JSON that `config.json` holds and that decides whether a run can be resumed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from federation.plan import ModelSpec, RoundSettings, Strict, Task
from sim.data.holdout import Holdout
from sim.networks.initialization import Initialization

Normalization = Literal["client", "federated", "pooled"]
Split = Literal["temporal", "random80", "kfold7_3"]
ClientStoreKind = Literal["auto", "memory", "disk", "none"]
"""Where the clients' models lie between rounds; none: a client's ends with its round."""
UplinkPrecision = Literal["lossless", "float16", "int8", "int8_without_feedback"]
"""As devices send; the last only shows what the error feedback is worth."""


UNSCREENED: dict[str, Any] = {"max_weight_ratio": None, "norm_factor": None}
"""Settings of rounds that a command line starts from: clients are honest, and methods compute what their papers say.

A plan for a server starts with both rules (`federation.aggregation.screening`); --set rounds.norm_factor=10 and
--set rounds.max_weight_ratio=2 simulate them.
"""


class RunSettings(Strict):
    """Everything that the numbers of a run depend on (but for the engine, only up to float order)."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    data: str
    data_options: dict[str, Any] = Field(default_factory=dict)
    pipeline: dict[str, Any] = Field(default_factory=dict)
    clients_by: Literal["client", "dataset", "user", "device", "place"] = "client"
    partition: dict[str, Any] | None = Field(default=None, description="none: the data's own clients")
    holdout: Holdout | None = None
    scale: float = Field(default=1.0, gt=0, le=1, description="share of clients and examples that is left")
    model: ModelSpec
    alternatives: tuple[ModelSpec, ...] = Field(
        default=(), description="further networks, which the clients take in turn with `model`"
    )
    init: Initialization | None = Field(default=None, description="weights to start from instead of random ones")
    method: dict[str, Any]
    task: Task
    rounds: RoundSettings
    stragglers: float = Field(default=0.0, ge=0, le=1, description="share of a cohort that does F′ ~ U(0, F) steps")
    precision: UplinkPrecision = Field(default="lossless", description="of uploads, as they travel")
    autocast: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of convolutions and matrix products; all that is kept stays in float32"
    )
    engine: Literal["auto", "serial", "processes", "stacked", "ray"] = "serial"
    workers: int | None = Field(default=None, ge=1, le=1024, description="processes; none: one a core")
    chunk: int | None = Field(
        default=None,
        ge=1,
        description="clients stacked into one program; none: as many as a GPU holds, 8 on a CPU, in processes as pays",
    )
    client_store: ClientStoreKind = Field(default="auto", description="where the clients' models lie")
    compile: bool = Field(default=False, description="the training step of stacked clients, by torch.compile")
    split: Split = "temporal"
    validation_share: float = Field(
        default=0.0, ge=0, le=0.5, description="share of the training examples that a round is chosen by; 0: none"
    )
    normalization: Normalization = "federated"
    eval_every: int = Field(default=1, ge=1)
    generalization_examples: int | None = Field(
        default=None, ge=1, description="examples that generalization is measured on"
    )
    gradient_dissimilarity: bool = Field(
        default=False, description="measured before each round, over its cohort, at the server's model"
    )
    eval_batch: int = Field(default=256, ge=1)
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)
    preset: str | None = None

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """Every network of the federation."""
        return (self.model, *self.alternatives)
