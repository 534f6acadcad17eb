"""The command line that repeats a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from federation.plan import RoundSettings
from sim.experiment import UNSCREENED
from sim.results.records import Config


def repeat_command(config: Config) -> str:
    """Return the command line that repeats a run; the folder of the data and DIR are the reader's."""
    words = ["python", "-m", "sim", "run"]
    words += [] if config.data == "synthetic" else ["--data-root", "FOLDER"]
    for name, value in _options(config).items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    words += ["--compile"] if config.compile else []
    words += ["--gradient-dissimilarity"] if config.gradient_dissimilarity else []
    for assignment in _assignments(config):
        words += ["--set", assignment]
    return shlex.join([*words, "--out", "DIR"])


def _options(config: Config) -> dict[str, Any]:
    same_name = (
        "data",
        "clients_by",
        "split",
        "validation_share",
        "normalization",
        "generalization_examples",
        "eval_every",
    )
    running = ("engine", "workers", "chunk", "device", "threads")
    networks = (config.model, *(str(other["name"]) for other in config.alternatives))
    return {
        **{name: getattr(config, name) for name in same_name},
        "partition": config.partition["kind"] if config.partition else None,
        "holdout": _held_out(config.holdout) if config.holdout else None,
        "scale": None if config.scale == 1 else config.scale,
        "model": "+".join(networks),
        "init": config.init["path"] if config.init else None,
        "method": config.method_name,
        "rounds": config.planned_rounds,
        "clients_per_round": config.rounds.get("clients_per_round"),
        "batch": config.task.get("batch_size"),
        **{name: config.task.get(name) for name in ("epochs", "lr", "optimizer", "momentum", "weight_decay", "seed")},
        "stragglers": config.stragglers or None,
        "autocast": None if config.autocast == "float32" else config.autocast,
        "precision": None if config.precision == "lossless" else config.precision,
        **{name: getattr(config, name) for name in running},
    }


def _held_out(holdout: Mapping[str, Any]) -> str:
    out = holdout["out"]
    return f"{holdout['kind']}:{out if isinstance(out, int) else ','.join(out)}"


def _assignments(config: Config) -> Iterator[str]:
    """Yield what `--set` takes: every hyper-parameter, and of the rounds what is not the default."""
    defaults = RoundSettings(**UNSCREENED).model_dump(mode="json")
    rounds = {key: value for key, value in config.rounds.items() if value != defaults.get(key)}
    sections = {
        "method": _without(config.method, "name"),
        **_model_options(config),
        "data": config.data_options,
        "pipeline": config.pipeline,
        "partition": _without(config.partition or {}, "kind"),
        "holdout": _without(config.holdout or {}, "kind", "out"),
        "rounds": _without(rounds, "rounds", "clients_per_round"),
    }
    for section, values in sections.items():
        for key, value in values.items():
            yield f"{section}.{key}={json.dumps(value)}"


def _model_options(config: Config) -> dict[str, Mapping[str, Any]]:
    """Number the networks where there are several."""
    if not config.alternatives:
        return {"model": config.model_options}
    options = (config.model_options, *(other["options"] for other in config.alternatives))
    return {f"model.{number}": mine for number, mine in enumerate(options, 1)}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}
