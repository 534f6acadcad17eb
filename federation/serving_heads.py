"""The heads that a device can serve with of one exchange of sums, and which of them it takes without labels."""

from __future__ import annotations

from collections.abc import Collection

SHARED, PERSONALIZED = "shared", "personalized"
SHARED_ANY_ORIENTATION, PERSONALIZED_ANY_ORIENTATION = "shared_any_orientation", "personalized_any_orientation"
"""The names that `Method.serving_models` gives them; the last two know nothing of how the phone lies."""


def head_without_labels(names: Collection[str], is_far: bool) -> str:
    """Return the head that serves where nobody has said what its windows are.

    The shared one, or, where gravity lies far from the others', the shared one that does not know how the phone lies.
    """
    return SHARED_ANY_ORIENTATION if is_far and SHARED_ANY_ORIENTATION in names else SHARED
