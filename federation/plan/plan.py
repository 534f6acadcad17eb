"""The whole plan, reading it from a file, and what devices don't support of it."""

from __future__ import annotations

import json
import operator
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from federation.errors import SettingsError
from federation.plan.releases import PromotionSettings, RolloutSettings
from federation.plan.rounds import PublicationSettings, RoundSettings, SecureSettings
from federation.plan.strict import Label, Options, Strict, Text
from federation.plan.training import DataSpec, ModelSpec, TrainingConfig
from gaitway import plugins
from gaitway.errors import did_you_mean, first_problem
from gaitway.python310 import tomllib
from gaitway.tasks import DEFAULT_TASK, TASKS, TargetKind, task_of


class Plan(Strict):
    """A federation's settings, shared by the simulation, the server and devices."""

    labels: tuple[Label, ...] = Field(min_length=1, description="the classes; of a number, its name and unit")
    task: Options = Field(
        default={"name": DEFAULT_TASK.name}, description='what is learnt: {"name": "classification", …options}'
    )
    model: ModelSpec = Field(description="the network")
    alternatives: tuple[ModelSpec, ...] = Field(
        default=(), description="other models that a device may choose, if the method mixes architectures"
    )
    method: Options = Field(description='{"name": "fedali", …hyper-parameters}')
    training: TrainingConfig = Field(description="how clients train")
    rounds: RoundSettings = Field(default=RoundSettings(), description="who takes part, and for how long")
    publication: PublicationSettings = Field(
        default=PublicationSettings(),
        # left out where it is as here, so that devices of a version without it go on
        exclude_if=lambda settings: settings == PublicationSettings(),
        description="of a continuous federation, which has no rounds with a cohort and a deadline",
    )
    secure: SecureSettings = Field(
        default=SecureSettings(),
        # left out where it is as here, so that devices of a version without it go on
        exclude_if=lambda settings: settings == SecureSettings(),
        description="what the server may see of single clients' updates",
    )
    rollout: RolloutSettings = Field(default=RolloutSettings(), description="how devices get new versions")
    promotion: PromotionSettings = Field(default=PromotionSettings(), description="which versions are rolled out")
    data: DataSpec = Field(default=DataSpec(), description="how clients make training examples")
    packages: dict[Text, Text] = Field(
        default_factory=dict,
        max_length=64,
        exclude_if=operator.not_,
        description='packages whose entries the plan names: {"methods:feddyn": "gaitway-feddyn 0.1"}',
    )

    @model_validator(mode="after")
    def _labels_fit_the_task(self) -> Plan:
        learnt = task_of(self.task)
        twice = next((label for label in self.labels if self.labels.count(label) > 1), None)
        if twice is not None:
            raise ValueError(f"labels: {twice!r} is listed twice; expected a different name for each class")
        if len(self.labels) < learnt.min_labels:
            raise ValueError(
                f"labels: got {len(self.labels)}; {learnt.name} learns classes, at least {learnt.min_labels}"
            )
        if learnt.target is TargetKind.NUMBER and len(self.labels) > 1:
            raise ValueError(
                f"labels: got {len(self.labels)}; {learnt.name} learns one number, and its label is the number's name "
                'and unit, such as "heart rate (beats/min)"'
            )
        return self


def with_packages(plan: Plan) -> Plan:
    """Say in a plan which packages its method, task and models come from, where they are not ours."""
    names = {"methods": [plan.method.get("name")], "tasks": [plan.task.get("name")]}
    names["models"] = [spec.name for spec in (plan.model, *plan.alternatives)]
    found = {
        f"{group}:{name}": plugin.describe()
        for group, known in names.items()
        for name in known
        if (plugin := plugins.provider(group, str(name))) is not None
    }
    return plan.model_copy(update={"packages": found})


def window_change_incompatibility(plan: Plan) -> str | None:
    """Say in words why windows cannot be changed in training, and what to do about it; None where they can."""
    by_method = plan.method.get("rotations", 0) or plan.method.get("sensor_loss", False)
    if not (plan.training.augmentation.is_of_windows or by_method) or plan.data.normalization != "client":
        return None
    return (
        "rotating windows or dropping a sensor needs the units of measurement, but data.normalization = 'client' "
        "gives each client its own units; use 'federated' or 'none'"
    )


def live_incompatibility(plan: Plan) -> str | None:
    """Say in words what of a plan devices cannot do, and what to do about it; None where they can do all of it."""
    data, task = plan.data, plan.task.get("name")
    if package := plugins.missing(plan.packages):
        return package
    if task not in TASKS:
        return f"task.name = {task!r}: {did_you_mean(str(task), TASKS)}"
    if task_of(plan.task).input_kind == "image" and data.input is None:
        return (
            f"task.name = {task!r} needs images: set their shape in data.input, such as "
            '{"kind": "image", "shape": [3, 96, 128]}'
        )
    if plan.rollout.used and not task_of(plan.task).is_served:
        return (
            f"rollout.mode = {plan.rollout.mode!r}: devices have no use for a model of {task}, so there is nothing to "
            f"release; use 'off', and create a federation of another task from this one's model"
        )
    if plan.secure.mode == "clear":
        return (
            "secure.mode = 'clear' hides nothing and is only for simulations that compare with 'masked'; use "
            "'masked', or 'off' if the server may see every update"
        )
    if plan.secure.voucher is not None and plan.secure.mode != "masked":
        return (
            f"secure.voucher vouches for the members of secure sums, but secure.mode = {plan.secure.mode!r} has none; "
            f"use secure.mode = 'masked', or leave out secure.voucher"
        )
    if reason := window_change_incompatibility(plan):
        return reason
    if data.split != "temporal":
        return (
            f"data.split = {data.split!r} leaks between overlapping windows, so it is only for simulations; use "
            f"'temporal'"
        )
    if data.normalization == "pooled":
        return (
            "data.normalization = 'pooled' needs all windows in one place, so it is only for simulations; use "
            "'federated', which has the same statistics up to rounding, or 'client'"
        )
    if data.normalization == "federated" and data.statistics is None:
        return (
            "data.normalization = 'federated' needs data.statistics, the sum of the clients' statistics, which devices "
            "do not report: take them from the plan.json of a simulated run, or use 'client'"
        )
    return None


def read_plan(path: Path) -> Plan:
    """Read a plan of TOML (by its name, *.toml) or JSON; also out of an answer of the server, `{"plan": …}`.

    Raises:
        SettingsError: if the file is not there or not a plan, naming the key.
    """
    try:
        text = path.read_text("utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--plan {path}: {error}; expected a plan in TOML or JSON") from error
    inner = found.get("plan", found) if isinstance(found, dict) else found
    try:
        return Plan.model_validate(inner)
    except ValidationError as error:
        raise SettingsError(f"--plan {path}: {first_problem(error, input_shown=True, model=Plan)}") from error
