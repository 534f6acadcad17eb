"""Folders of one package import each other one way."""

from __future__ import annotations

from collections.abc import Iterable

from tests.repository.imports import REPOSITORY, Import, all_imports, modules

# Folders of one package that import each other, and why each pair is left.
BOTH_WAYS = {
    ("aggregator_api.federations", "aggregator_api.rollouts"): "a rollout's service finds its federation",
    (
        "har_pipeline.apps",
        "har_pipeline.readers",
    ): "exports of apps are tables and archives, and have readers",
    ("har_pipeline.description", "har_pipeline.readers"): "described files are tables and archives, and have a reader",
}


def both_ways(entries: Iterable[Import]) -> set[tuple[str, str]]:
    """Return the pairs of folders side by side, with all that lies below them, that import each other."""
    pairs = {pair for entry in entries if (pair := siblings(entry.module, entry.target))}
    return {(one, other) for one, other in pairs if (other, one) in pairs and one < other}


def siblings(module: str, target: str) -> tuple[str, str] | None:
    """Return the folders in which two modules of a package part; None where one folder is the other's parent."""
    if target not in modules():
        return None
    ours, theirs = (list(modules()[name].relative_to(REPOSITORY).parent.parts) for name in (module, target))
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    return (".".join(ours[: shared + 1]), ".".join(theirs[: shared + 1])) if shared else None


def test_folders_import_each_other_one_way() -> None:
    assert both_ways(all_imports()) == set(BOTH_WAYS)


def test_an_import_back_is_found() -> None:
    back = Import("aggregator_api.storage.blobs", "aggregator_api.rounds.coordinator", 1)
    pair = ("aggregator_api.rounds", "aggregator_api.storage")
    assert both_ways([*all_imports(), back]) == {*BOTH_WAYS, pair}
