"""Synthetic(φ1, φ2) as a source: every client is generated with a task of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gaitway.errors import did_you_mean, first_problem
from gaitway.input_spec import InputSpec
from gaitway.tasks import TargetKind
from sim.data.federated_data import FederatedData
from sim.data.sources.source import Progress
from sim.data.synthetic_logistic import DIMENSION, LABELS, SyntheticTasks, synthetic_federation
from sim.errors import SettingsError
from sim.experiment.settings import Experiment

NAME = "synthetic_logistic"


class SyntheticLogistic:
    """Generated logistic regressions; the options are the fields of SyntheticTasks."""

    targets = (TargetKind.CLASS,)

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the ten classes."""
        return LABELS

    def number(self, options: Mapping[str, Any]) -> str:
        """Return nothing: there are classes alone."""
        return ""

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe an input."""
        return InputSpec.vectors((0.0,) * DIMENSION, (1.0,) * DIMENSION)

    def default_partition(self, options: Mapping[str, Any]) -> str | None:
        """Return nothing: tasks are drawn client by client."""
        return None

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Draw all clients.

        Raises:
            SettingsError: for an impossible option, or a partition, which these tasks have by nature.
        """
        if settings.partition is not None:
            raise SettingsError(f"{NAME} is drawn client by client; leave --partition out, or set data.clients")
        tasks = _tasks(settings.dataset_options)
        return synthetic_federation(
            tasks, seed=settings.training.seed, device=settings.device, validation_share=settings.validation_share
        )


def _tasks(options: Mapping[str, Any]) -> SyntheticTasks:
    known = SyntheticTasks.__dataclass_fields__
    if strange := sorted(set(options) - set(known)):
        raise SettingsError(f"unknown option {strange[0]!r} for {NAME}; {did_you_mean(strange[0], known)}")
    try:
        return TypeAdapter(SyntheticTasks).validate_python(dict(options))
    except ValidationError as error:
        raise SettingsError(f"{NAME}: {first_problem(error, input_shown=True, model=SyntheticTasks)}") from error
