"""The heads that a device can serve with of one exchange of sums, and which of them it takes without labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

Head = TypeVar("Head")
SHARED, PERSONALIZED = "shared", "personalized"
SHARED_ANY_ORIENTATION, PERSONALIZED_ANY_ORIENTATION = "shared_any_orientation", "personalized_any_orientation"
"""The names that `SumMethod.serving_models` gives them; the last two know nothing of how the phone lies."""
ADAPTED = "adapted"
"""Of a device without labels, whose windows count as what the shared head names them (`aggregation.pseudo_labels`)."""


def usable_heads(heads: Mapping[str, Head], *, is_trained: bool, is_labelled: bool) -> dict[str, Head]:
    """Return those of a device's heads that mean something.

    Before anybody's sums are in the broadcast these are the ones that need no sums of others. A device that has none of
    its own has the shared ones.
    """
    return {name: head for name, head in heads.items() if (is_trained if name.startswith(SHARED) else is_labelled)}


def head_without_labels(names: Collection[str], is_far: bool) -> str:
    """Return the head that serves where nobody has said what its windows are.

    Where gravity lies far from the others', the shared one that does not know how the phone lies; else the one adapted
    to its own windows, if there is one, or the shared one.
    """
    if is_far and SHARED_ANY_ORIENTATION in names:
        return SHARED_ANY_ORIENTATION
    return ADAPTED if ADAPTED in names and not is_far else SHARED
