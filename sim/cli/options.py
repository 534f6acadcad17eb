"""From the options of the command line to the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from federation.methods import method_from_json, method_to_json
from federation.plan import RoundSettings, Task
from sim.data.holdout import holdout
from sim.data.partitions import partition_from_json, partition_to_json
from sim.data.sources import source_named
from sim.errors import SettingsError
from sim.experiment import UNSCREENED, RunSettings
from sim.networks.initialization import initialization
from sim.networks.specs import chosen_networks, common_feature_dim

SAME_NAME = (
    *("data", "split", "validation_share", "normalization", "clients_by", "scale"),
    *("stragglers", "autocast", "precision"),
    *(
        "engine",
        "workers",
        "chunk",
        "compile",
        "client_store",
        "eval_every",
        "generalization_examples",
        "device",
        "threads",
    ),
    "gradient_dissimilarity",
)
"""Options whose values go into the settings as they are."""
SECTIONS = ("method", "model", "data", "pipeline", "partition", "holdout", "rounds")


def run_settings(options: Mapping[str, Any], labels: Sequence[str], preset: str | None) -> RunSettings:
    """Build and validate the settings of a run.

    Raises:
        SettingsError: for a value that does not fit, naming it.
    """
    extra = assignments(options["set"])
    method = method_from_json({"name": options["method"], **extra["method"]})
    own_options = ("rounds", "clients_per_round", "sampling")
    rounds = {**UNSCREENED, **{name: options[name] for name in own_options}, **extra["rounds"]}
    networks = chosen_networks(
        options["model"], extra["model"], source_named(options["data"]).shape(extra["data"]), len(labels)
    )
    task = {
        "classes": len(labels),
        "feature_dim": common_feature_dim(networks, len(labels)),
        "batch_size": options["batch"],
        **{name: options[name] for name in ("epochs", "lr", "optimizer", "momentum", "weight_decay", "seed")},
    }
    try:
        return RunSettings(
            data_options=extra["data"],
            pipeline=extra["pipeline"],
            partition=_partition(options["partition"], extra["partition"]),
            holdout=holdout(options["holdout"], extra["holdout"]),
            init=initialization(options["init"]),
            model=networks[0],
            alternatives=tuple(networks[1:]),
            method=method_to_json(method),
            task=Task(**task),
            rounds=RoundSettings(**rounds),
            preset=preset,
            **{name: options[name] for name in SAME_NAME},
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}") from error


def _partition(kind: str | None, options: Mapping[str, Any]) -> dict[str, Any] | None:
    if kind is not None:
        return partition_to_json(partition_from_json({"kind": kind, **options}))
    if options:
        raise SettingsError(f"--set partition.{next(iter(options))}: there is no --partition to set it of")
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
