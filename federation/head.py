"""Which parameters are the classifier: those of the submodule `head`, in every network of `models`."""

from __future__ import annotations

_HEAD = "head."


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the classifier; its input is the feature."""
    return name.startswith(_HEAD)


def is_base(name: str) -> bool:
    """Whether a parameter belongs to the feature extractor E."""
    return not is_head(name)
