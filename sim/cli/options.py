"""Builds a run's experiment from the command line's options and a plan file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from federation.errors import FederationError
from federation.methods import method_from_json, method_to_json
from federation.plan import DataSpec, ModelSpec, Plan
from federation.plan.plan import read_plan as plan_in
from federation.tasks import task_from_json, task_to_json
from gaitway.errors import first_problem
from gaitway.input_spec import InputSpec
from har_pipeline.description.model import read_description
from har_pipeline.readers.described import DESCRIBED
from models import MODELS
from sim.data.partitions import partition_from_json, partition_to_json
from sim.data.sources import check_target, get_source
from sim.errors import SettingsError
from sim.experiment.initialization import Initialization, check_windows, initialization
from sim.experiment.networks import chosen_networks, common_feature_dim
from sim.experiment.options import PLAN_OPTIONS, holdout
from sim.experiment.settings import DEFAULTS, OPTIONS, Experiment

SECTIONS = (
    *("task", "method", "model", "data", "pipeline", "partition", "holdout", "training", "rounds", "secure"),
    "rollout",
)
_FROM_OPTIONS = ("training", "rounds", "secure", "data")
"""Sections of the plan with keys that are also options."""
_READ_APART = frozenset({"data", "partition", "holdout", "init"})
"""Options whose text isn't the field's value."""


def describe(options: Mapping[str, Any], preset: str | None, plan: Plan | None) -> Experiment:
    """Build the experiment of these options, for the classes of their data.

    Raises:
        SettingsError: as `build_experiment`.
    """
    labels = get_source(options["data"]).labels(dataset_options(options["set"]))
    return build_experiment(options, labels, preset, plan)


def build_experiment(
    options: Mapping[str, Any], labels: Sequence[str], preset: str | None, plan: Plan | None = None
) -> Experiment:
    """Build and validate the experiment of a run; `options` wins over `plan`, and `options["set"]` over both.

    `labels` are the classes of the data set.

    Raises:
        SettingsError: for an invalid value, naming it, or a plan for other classes than the data's.
    """
    extra = assignments(options["set"])
    base: dict[str, Any] = plan.model_dump(mode="json", exclude_unset=True) if plan else {}
    described = {
        part: {**_of_the_same(base.get(part, {}), options[part]), "name": options[part], **extra[part]}
        for part in ("task", "method")
    }
    task, method = task_from_json(described["task"]), method_from_json(described["method"])
    if obstacle := method.task_incompatibility(task):
        raise SettingsError(obstacle)
    pipeline = {**base.get("data", {}).get("pipeline", {}), **extra["pipeline"]}
    source, own = get_source(options["data"]), dataset_options(options["set"])
    check_target(options["data"], source, task, own)
    labels = task.labels(tuple(labels), source.number(own))
    if plan is not None:
        _check_labels(plan, labels, options["data"])
    networks = chosen_networks(
        options["model"],
        {**_network_options(plan, options["model"], extra["model"]), **extra["model"]},
        source.input_spec(own, pipeline),
        len(labels),
        task.name,
    )
    sections = _sections(base, options, extra)
    planned = {key: value for key, value in extra["data"].items() if key in DataSpec.model_fields}
    data = {**_normalization(networks, sections["data"]), **planned}
    training = {"classes": len(labels), "feature_dim": common_feature_dim(networks, len(labels))}
    try:
        return Experiment.model_validate(
            dict(
                labels=labels,
                model=networks[0],
                alternatives=tuple(networks[1:]),
                task=task_to_json(task),
                method=method_to_json(method),
                training={**sections["training"], **extra["training"], **training},
                rounds={**sections["rounds"], **extra["rounds"]},
                secure={**sections["secure"], **extra["secure"]},
                rollout={**base.get("rollout", {}), **extra["rollout"]},
                data={**data, "pipeline": pipeline},
                dataset=options["data"],
                dataset_options=own,
                partition=_partition(options["partition"] or source.default_partition(own), extra["partition"]),
                holdout=holdout(options["holdout"], extra["holdout"]),
                init=_initialization(options["init"], source.input_spec(own, pipeline), data, preset),
                preset=preset,
                **{name: options[name] for name in OPTIONS.keys() - PLAN_OPTIONS.keys() - _READ_APART},
            )
        )
    except ValidationError as error:
        raise SettingsError(first_problem(error, input_shown=True, model=Experiment)) from error


def _initialization(
    path: Path | None, spec: InputSpec, data: Mapping[str, Any], preset: str | None
) -> Initialization | None:
    """Return the initial weights, which must have been trained on windows like the run's."""
    init = initialization(path)
    check_windows(init, spec, data["normalization"], preset)
    return init


def _sections(
    base: Mapping[str, Any], options: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Merge options into a plan's sections; if the server sees only sums, no rule screens updates by default."""
    sections = {name: {**base.get(name, {}), **_from_options(options, name)} for name in _FROM_OPTIONS}
    if {**sections["secure"], **extra["secure"]}["mode"] != "off":
        # two rules that are on by default would screen single updates
        sections["rounds"] = {"norm_factor": None, "max_weight_ratio": None, **sections["rounds"]}
    return sections


def _check_labels(plan: Plan, labels: tuple[str, ...], data: str) -> None:
    if labels != plan.labels:
        raise SettingsError(
            f"the plan is for the classes {', '.join(plan.labels)}, {data} has {', '.join(labels)}; "
            "give the plan's data with --data, and its options with --set data.KEY"
        )


def _normalization(networks: Sequence[ModelSpec], data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave windows unnormalized if a network needs raw ones and no other normalization is requested.

    Raises:
        SettingsError: if one is requested.
    """
    raw = [spec.name for spec in networks if spec.name in MODELS and MODELS[spec.name].takes_raw_input]
    wanted = data.get("normalization", DEFAULTS["normalization"])
    if not raw or wanted == "none":
        return dict(data)
    if wanted != DEFAULTS["normalization"] or len(raw) < len(networks):
        raise SettingsError(f"{raw[0]} needs raw windows; use --normalization none")
    return {**data, "normalization": "none"}


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        SettingsError: if the file doesn't exist or isn't a plan, naming the key.
    """
    try:
        return plan_in(path)
    except FederationError as error:
        raise SettingsError(str(error)) from error


def options_of(plan: Plan) -> dict[str, Any]:
    """Return a plan's values as options, including its defaults."""
    found = {name: option.value(plan) for name, option in PLAN_OPTIONS.items()}
    return {**found, "model": "+".join(spec.name for spec in (plan.model, *plan.alternatives))}


def described_by(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with a description of recordings added as `--set data.KEY`, which given options override.

    Raises:
        SettingsError: if another data set is requested. har_pipeline.SettingsError: if the description cannot be read,
        naming the key.
    """
    if (data := options.get("data")) not in (None, DESCRIBED):
        raise SettingsError(f"--describe replaces the data set; leave out --data {data}")
    keys = read_description(path).to_json()
    own = [f"data.{key}={json.dumps(value)}" for key, value in keys.items()]
    return {**options, "data": DESCRIBED, "set": [*own, *options.get("set", ())]}


def _from_options(options: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {option.path[1]: options[name] for name, option in PLAN_OPTIONS.items() if option.path[0] == section}


def _of_the_same(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a plan's settings of its method or task, unless another one is requested."""
    return described if described.get("name") == name else {}


def _network_options(plan: Plan | None, names: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan's options of its networks as `N.KEY`, except those given for all networks."""
    if plan is None or options_of(plan)["model"] != names:
        return {}
    specs = enumerate((plan.model, *plan.alternatives), 1)
    return {f"{n}.{key}": value for n, spec in specs for key, value in spec.options.items() if key not in given}


def dataset_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return what `--set data.KEY` gives of the data set; the keys of the plan's `data` are the plan's."""
    return {key: value for key, value in assignments(texts)["data"].items() if key not in DataSpec.model_fields}


def _partition(kind: str | None, options: Mapping[str, Any]) -> dict[str, Any] | None:
    if kind is not None:
        return partition_to_json(partition_from_json({"kind": kind, **options}))
    if options:
        raise SettingsError(f"--set partition.{next(iter(options))} needs --partition")
    return None


def assignments(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read `key=value` (a method's hyper-parameter) and `section.key=value`; values are JSON or plain text.

    Raises:
        SettingsError: for text without '=', or an unknown section.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for text in texts:
        key, equals, value = text.partition("=")
        section, _, name = key.partition(".") if "." in key else ("method", ".", key)
        if not (equals and name) or section not in found:
            raise SettingsError(f"--set {text!r}: expected key=value or {{{'|'.join(SECTIONS)}}}.key=value")
        found[section][name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
