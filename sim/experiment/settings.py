"""What one simulated run is: the plan of its federation, and what only a simulation has.

`config.json` holds it. `sim.experiment.options` has the options that set its fields.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from federation.plan import ModelSpec, Plan
from gaitway.tasks import DEFAULT_TASK
from sim.experiment.holdout import Holdout
from sim.experiment.initialization import Initialization
from sim.experiment.options import (
    OPTIONS,
    AnalysesKind,
    AttackKind,
    BaselineKind,
    ClientsBy,
    ClientStoreKind,
    EngineKind,
    NumberFormat,
    Option,
    UplinkPrecision,
)


class Experiment(Plan):
    """Everything that the numbers of a run depend on (but for the environment, only up to float order)."""

    schema_version: Literal[2] = Field(default=2, alias="schema")
    dataset: str = "synthetic"
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    partition: dict[str, Any] | None = None
    clients_by: ClientsBy = "client"
    holdout: Holdout | None = None
    scale: float = Field(default=1.0, gt=0, le=1)
    validation_share: float = Field(default=0.1, ge=0, le=0.5)
    labelled_per_class: int | None = Field(default=None, ge=1)
    labelled_clients: float = Field(default=1.0, gt=0, le=1)
    init: Initialization | None = None
    baseline: BaselineKind = "none"
    stragglers: float = Field(default=0.0, ge=0, le=1)
    attack: AttackKind = "none"
    attackers: float = Field(default=0.2, ge=0, lt=1)
    precision: UplinkPrecision = "lossless"
    autocast: NumberFormat = "float32"
    eval_every: int = Field(default=1, ge=1)
    eval_last: int = Field(default=1, ge=1)
    generalization_examples: int | None = Field(default=None, ge=1)
    analyses: AnalysesKind = "none"
    new_users: bool = True
    eval_batch: int = Field(default=256, ge=1)
    engine: EngineKind = "auto"
    workers: int | None = Field(default=None, ge=1, le=1024)
    chunk: int | None = Field(default=None, ge=1)
    compile: bool = False
    client_store: ClientStoreKind = "auto"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)
    preset: str | None = None

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """Every network of the federation."""
        return (self.model, *self.alternatives)

    def by_section(self) -> dict[str, Any]:
        """Return all settings, the plan's `data` apart: pipeline, split, normalization, …."""
        values = self.model_dump()
        return {**values.pop("data"), **values}


def field_of(option: Option) -> FieldInfo:
    """Return the field that an option sets; a text for the name of a method or a task, whose fields differ."""
    model: Any = Experiment
    for name in option.path[:-1]:
        model = model.model_fields[name].annotation
    return model.model_fields[option.path[-1]] if hasattr(model, "model_fields") else FieldInfo(annotation=str)


def default_of(option: Option) -> Any:
    """Return an option's default; None where its field has none."""
    names = {"method": "fedavg", "model": "har_cnn", "task": DEFAULT_TASK.name}
    if option.path[1:] == ("name",):
        return names[option.path[0]]
    field = field_of(option)
    return None if field.is_required() else field.get_default(call_default_factory=True)


DEFAULTS: dict[str, Any] = {**{name: default_of(option) for name, option in OPTIONS.items()}, "set": []}
"""What an option is where neither a preset, nor a plan, nor the command line gives it."""
