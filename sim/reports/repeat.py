"""The command line that repeats a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from federation.plan import DataSpec, RoundSettings, SecureSettings, TrainingConfig
from sim.experiment.options import PLAN_OPTIONS, option_words
from sim.experiment.settings import DEFAULTS, OPTIONS, Experiment

ALWAYS = frozenset({"data", "method", "model", "rounds", "epochs", "batch", "lr", "optimizer", "seed"})
"""Options that are written even where they are the defaults: readers look for them, or a method has its own."""


def repeat_command(experiment: Experiment) -> str:
    """Return the command line that repeats a run; the folder of the data and DIR are the reader's."""
    words = ["python", "-m", "sim", "run"]
    words += [] if experiment.dataset == "synthetic" else ["--data-root", "FOLDER"]
    for name in OPTIONS:
        value = given(experiment, name)
        if name in ALWAYS or value != DEFAULTS[name]:
            words += option_words(name, value)
    for assignment in _assignments(experiment):
        words += ["--set", assignment]
    return shlex.join([*words, "--out", "DIR"])


def given(experiment: Experiment, name: str) -> Any:
    """Return what an experiment has for an option, as the option is given."""
    value = OPTIONS[name].value(experiment)
    match name:
        case "model":
            return "+".join(spec.name for spec in experiment.models)
        case "partition":
            return value and value["kind"]
        case "holdout":
            return value and f"{value.kind}:{value.out if isinstance(value.out, int) else ','.join(value.out)}"
        case "init":
            return value and str(value.path)
    return value


def _assignments(experiment: Experiment) -> Iterator[str]:
    """Yield what `--set` takes: every hyper-parameter, and of the plan's sections what is not the default."""
    of_options = {
        section: {o.path[1] for o in PLAN_OPTIONS.values() if o.path[0] == section}
        for section in ("data", "rounds", "secure", "training")
    }
    plain = experiment.model_dump(mode="json")
    sections = {
        "task": _without(plain["task"], "name"),
        "method": _without(plain["method"], "name"),
        **_model_options(experiment),
        "data": plain["dataset_options"] | _changed(plain["data"], DataSpec(), "pipeline", *of_options["data"]),
        "pipeline": plain["data"]["pipeline"],
        "partition": _without(plain["partition"] or {}, "kind"),
        "holdout": _without(plain["holdout"] or {}, "kind", "out"),
        "training": _changed(
            plain["training"], TrainingConfig(classes=2), *of_options["training"], "classes", "feature_dim"
        ),
        "rounds": _changed(plain["rounds"], RoundSettings(), *of_options["rounds"]),
        "secure": _changed(plain.get("secure", {}), SecureSettings(), *of_options["secure"]),
        "rollout": _changed(plain["rollout"], type(experiment.rollout)()),
    }
    for section, values in sections.items():
        for key, value in values.items():
            yield f"{section}.{key}={json.dumps(value)}"


def _model_options(experiment: Experiment) -> dict[str, Mapping[str, Any]]:
    """Number the networks where there are several."""
    if not experiment.alternatives:
        return {"model": experiment.model.options}
    return {f"model.{number}": spec.options for number, spec in enumerate(experiment.models, 1)}


def _changed(values: Mapping[str, Any], default: Any, *names: str) -> dict[str, Any]:
    """Return what is neither the default nor among `names`."""
    plain = default.model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in names and value != plain.get(key)}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}
