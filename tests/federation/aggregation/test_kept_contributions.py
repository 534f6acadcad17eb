"""What a driver without rows keeps of its clients."""

from __future__ import annotations

import torch

from federation.aggregation.present_sums import KeptContributions
from federation.records import Update


def test_what_a_client_has_in_the_sums_is_kept_until_it_withdraws() -> None:
    kept, tensors = KeptContributions(), {"gram": torch.tensor([1, 2])}
    first = kept.replacing(Update("ada", 3, 0, tensors))
    assert first.replaces is None
    kept.note([first])
    tensors["gram"].zero_()  # an engine's memory is used again
    again = kept.replacing(Update("ada", 4, 0, {"gram": torch.tensor([5, 6])}))
    assert again.replaces is not None
    assert again.replaces["gram"].tolist() == [1, 2]
    kept.note([again, kept.replacing(Update("bob", 1, 0, {"gram": torch.tensor([1, 1])}))])
    gone = kept.withdrawal("ada")
    assert gone.tensors == {}
    assert gone.replaces is not None
    assert gone.replaces["gram"].tolist() == [5, 6]
    kept.note([gone])
    assert set(kept.trees) == {"bob"}
