"""Which settings tell runs apart, and which of these differences forbid or qualify a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.experiment.settings import OPTIONS
from sim.results.run_directory import RunDirectory

_DERIVED = frozenset(
    {"parameters", "split_leaks", "findings", "versions", "hardware", "schema_version", "preset", "rollout"}
)
# What changes neither the data, nor the training, nor the scores beyond float order.
_ENVIRONMENT = frozenset(name for name, option in OPTIONS.items() if option.affects in ("environment", "measurement"))
# Runs that differ here were tested on other examples, so no rank between them means anything.
_TESTED_ON = frozenset(option.path[-1] for option in OPTIONS.values() if option.affects == "data") - {"dataset"} | {
    *("dataset_options", "pipeline", "test_share", "labels", "task")
}
# What a row is: runs that differ elsewhere, in how they were trained, can be ranked, but not by their method alone.
_ROW = frozenset({"dataset", "method", "model", "alternatives"})

Settings = dict[str, Any]
Runs = Sequence[RunDirectory]


def settings_of(run: RunDirectory) -> Settings:
    """Return all settings but the seed and the environment, as `section.key`."""
    settings = {key: value for key, value in run.config.by_section().items() if key not in _ENVIRONMENT | _DERIVED}
    settings["init"] = _starting_point(settings.get("init"), run.config.seed)
    model = settings.pop("model")
    flat = _flat({**settings, "model": model["name"], "model_options": model["options"]})
    flat.pop("training.seed", None)
    return flat


def _starting_point(init: Mapping[str, Any] | None, seed: int) -> str | None:
    """Name the weights that a run starts from; those that its own seed made are one starting point for all seeds.

    They are where the file's path says the seed: of runs/masked-0 and runs/masked-1 both are runs/masked-SEED.
    """
    if init is None:
        return None
    before, found, after = str(init["path"]).rpartition(str(seed))
    stands_alone = found and not before[-1:].isdigit() and not after[:1].isdigit()
    return f"{before}SEED{after}" if stands_alone else f"{init['path']} (sha256 {init['sha256'][:12]})"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


def _section(key: str) -> str:
    return key.split(".")[0]


def tested_on(run: RunDirectory) -> Settings:
    """Return the settings that decide which examples are tested on."""
    return {key: value for key, value in sorted(settings_of(run).items()) if _section(key) in _TESTED_ON}


def training_differences(first: RunDirectory, second: RunDirectory) -> list[str]:
    """Name the settings of the training, apart from method and model, in which two runs differ."""
    ours, theirs = settings_of(first), settings_of(second)
    return [key for key in _training_keys([first, second]) if repr(ours.get(key)) != repr(theirs.get(key))]


def _training_keys(runs: Iterable[RunDirectory]) -> list[str]:
    keys = {key for run in runs for key in settings_of(run)}
    keys = {key for key in keys if _section(key) not in _TESTED_ON | _ROW}
    # a network without ALP has none of its options
    return sorted(key for key in keys if not key.startswith(("model_options.alp", "model_options.placement")))


def written(settings: Settings, keys: Iterable[str]) -> str:
    """Write some settings as `key=value, …`, each key without its section."""
    return ", ".join(f"{key.rpartition('.')[2]}={settings.get(key)}" for key in keys)


def labels_of(runs: Runs) -> list[str]:
    """Name rows by method, and by the settings that tell the rows of one method apart."""
    labels = []
    for run in runs:
        own = settings_of(run)
        twins = [settings_of(other) for other in runs if other.config.method_name == run.config.method_name]
        keys = {key: None for twin in [own, *twins] for key in twin}
        apart = [key for key in keys if key != "model" and len({repr(twin.get(key)) for twin in twins}) > 1]
        distinct = written(own, apart)
        labels.append(f"{run.config.method_name} ({distinct})" if distinct else run.config.method_name)
    return labels


def refusals(members: Sequence[Runs]) -> tuple[str, ...]:
    """Return why these rows cannot be ranked at all."""
    runs = [run for same in members for run in same]
    reasons = []
    for seed in sorted({run.config.seed for run in runs}):
        tested = {repr(_test_examples(run)) for run in runs if run.config.seed == seed}
        if len(tested) > 1:
            reasons.append(f"the clients or their test examples differ between runs of seed {seed}")
    return tuple(reasons)


def _test_examples(run: RunDirectory) -> dict[str, tuple[int, ...]]:
    """Count by client and class, without clients that only train, such as the one that pools all data."""
    return {name: client.test_per_class for name, client in sorted(run.clients.items()) if client.test}


def warnings_of(labels: Sequence[str], members: Sequence[Runs]) -> tuple[str, ...]:
    """Return what a reader must know before believing a rank."""
    pairs = [(label, runs[0]) for label, runs in zip(labels, members, strict=True)]
    notes = [_differs(key, pairs) for key in _training_keys(run for _, run in pairs)]
    seeds = {label: tuple(run.config.seed for run in runs) for label, runs in zip(labels, members, strict=True)}
    if len(set(seeds.values())) > 1:
        notes.append("seeds differ: " + "; ".join(f"{label}: {_listed(seed)}" for label, seed in seeds.items()))
    if len({(run.config.hardware, run.config.engine) for runs in members for run in runs}) > 1:
        notes.append("seconds come from different hardware or engines and must not be compared")
    for split in sorted({run.config.data.split for runs in members for run in runs if run.config.split_leaks}):
        notes.append(f"the split {split!r} leaks: overlapping windows are in training and test")
    return tuple(note for note in notes if note)


def _differs(key: str, pairs: Iterable[tuple[str, RunDirectory]]) -> str:
    """Say which rows have which value of a setting, or nothing where all agree."""
    rows: dict[str, list[str]] = defaultdict(list)
    for label, run in pairs:
        rows[str(settings_of(run).get(key))].append(label)
    if len(rows) < 2:
        return ""
    return f"{key} differs: " + "; ".join(f"{value} ({_listed(dict.fromkeys(who))})" for value, who in rows.items())


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
