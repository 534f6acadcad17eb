"""The table of partitions, which divide examples among clients, and their JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from federation.errors import unknown_name
from gaitway.errors import first_problem
from gaitway.plugins import EntryTable, PluginError, hint, named_subclass
from sim.data.partitions.partition import Counts, Equal, Natural, Partition, Pool, Share, class_counts, with_validation
from sim.data.partitions.shards import NWay, Shards
from sim.data.partitions.skewed import Dirichlet, PowerLaw
from sim.errors import SettingsError

__all__ = [
    "PARTITIONS",
    "Counts",
    "Dirichlet",
    "Equal",
    "NWay",
    "Natural",
    "Partition",
    "Pool",
    "PowerLaw",
    "Shards",
    "Share",
    "class_counts",
    "partition_from_json",
    "partition_to_json",
    "with_validation",
]

PARTITIONS: EntryTable[type[Partition]] = EntryTable(
    "partitions",
    {partition.kind: partition for partition in (Natural, Dirichlet, NWay, Shards, PowerLaw, Equal)},
    check=named_subclass(Partition, "kind"),
)


def partition_to_json(partition: Partition) -> dict[str, Any]:
    """Return {"kind": …, every option}."""
    return {"kind": partition.kind, **dataclasses.asdict(partition)}


def partition_from_json(description: Mapping[str, Any]) -> Partition:
    """Build a partition from its kind and (some of) its options; numbers may come as text.

    Raises:
        SettingsError: for an unknown kind or option, naming the nearest, or a value that does not fit.
    """
    options = dict(description)
    kind = str(options.pop("kind", ""))
    if kind not in PARTITIONS:
        raise SettingsError(f"{unknown_name('partition', kind, PARTITIONS)}{hint('partitions', kind)}")
    try:
        partition = PARTITIONS[kind]
    except PluginError as error:
        raise SettingsError(str(error)) from error
    known = {field.name for field in dataclasses.fields(partition)}
    for key in options:
        if key not in known:
            raise SettingsError(str(unknown_name(f"option of the partition {kind}", key, known)))
    try:
        return TypeAdapter(partition).validate_python(options)
    except ValidationError as error:
        raise SettingsError(f"{kind}: {first_problem(error, input_shown=True, model=partition)}") from error
