"""Nested dicts as flat ones: the paths of tensors and arrays, as they stand on the wire and in programs; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.errors import WireError


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested dict into a flat one with names joined by '/'; empty dicts vanish."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{_escape(name)}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{path}/"))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `flatten`.

    Raises:
        WireError: if a path runs through another tensor.
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = (_unescape(part) for part in path.split("/"))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise WireError(f"tensor {path!r} lies inside another tensor")
        if last in node:
            raise WireError(f"tensor {path!r} is also the name of a group")
        node[last] = value
    return tree


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def _unescape(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")
