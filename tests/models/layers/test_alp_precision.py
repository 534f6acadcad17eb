"""ALP under bfloat16 autocast: plan, assignment and prototypes are those of float32 on the same tokens."""

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from models.layers.alp import ALP, AlpOptions
from models.layers.matching import similarity, top_entries, transport_plan

DIM, COUNT = 32, 24


def layer_and_tokens(*, training: bool = True, glu: bool = False) -> tuple[ALP, Tensor]:
    """A layer, and tokens (8, 9, 32) as bfloat16 rounds them, near enough to prototypes that ε = 0.05 underflows."""
    torch.manual_seed(5)
    layer = ALP(DIM, COUNT, AlpOptions(glu=glu)).train(training)
    near = layer.global_prototypes[torch.randint(COUNT, (8, 9))]
    return layer, (near + 0.3 * torch.randn(8, 9, DIM)).bfloat16()


def autocast(device: str = "cpu") -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)


@pytest.mark.parametrize("training", [True, False])
def test_autocast_leaves_matching_and_moving_as_they_are_in_float32(training: bool) -> None:
    cast, x = layer_and_tokens(training=training)
    plain = copy.deepcopy(cast)
    with autocast():
        output = cast(x)
    wanted = plain(x.float())
    assert cast.local_prototypes.dtype == torch.float32
    assert torch.equal(cast.local_prototypes, plain.local_prototypes)
    # another prototype for a single token would move its output by more than rounding does
    torch.testing.assert_close(output.float(), wanted, rtol=0.02, atol=2e-3)


def test_scores_within_autocast_are_the_float32_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_and_tokens()
    seen: list[Tensor] = []
    scores = layer.scores

    def noted(*given: Any) -> Tensor:
        seen.append(scores(*given).clone())
        return seen[-1]

    monkeypatch.setattr(layer, "scores", noted)
    active = torch.cat([layer.local_prototypes, layer.global_prototypes])
    with autocast():
        layer(x)
    cosine = similarity(x.float().reshape(-1, DIM), active, "plan")
    assert torch.equal(seen[0], transport_plan(cosine, layer.epsilon, layer.iterations, None))


def test_stacked_under_autocast_moves_as_each_alone() -> None:
    layer, x = layer_and_tokens()
    local = layer.local_prototypes
    together = torch.stack([x, 2 * x.flip(0)])

    def moved(tokens: Tensor) -> Tensor:
        layer.local_prototypes = local
        with autocast():
            layer(tokens)
        return layer.local_prototypes

    torch.testing.assert_close(vmap(moved)(together), torch.stack([moved(one) for one in together]))


def test_a_step_under_autocast_is_finite_and_trains_in_float32() -> None:
    layer, x = layer_and_tokens(glu=True)
    x = (50 * x).requires_grad_()
    with autocast():
        loss = layer(x, torch.tensor([1.0] * 6 + [0.0] * 2)).float().square().sum(dim=-1).sub(0.5).abs().mean()
    loss.backward()
    assert all(torch.isfinite(part.grad).all() for part in (x, *layer.parameters()) if part.grad is not None)
    assert torch.isfinite(layer.local_prototypes).all()
    assert {part.grad.dtype for part in layer.parameters() if part.grad is not None} == {torch.float32}


def test_the_plan_takes_no_second_matrix() -> None:
    cosine = similarity(torch.randn(6, 4), torch.randn(5, 4), "plan")
    assert transport_plan(cosine, 0.05, 3, None).data_ptr() == cosine.data_ptr()


@pytest.mark.parametrize("signs", [1.0, -1.0])
def test_top_entries_of_many_columns_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch, signs: float) -> None:
    """Columns are sorted some at a time; equal entries, which the row decides, lie in each of them."""
    scores = signs * torch.randint(4, (12, 50)).float()[:, :23]
    alone = [top_entries(scores[:, g : g + 1], 5) for g in range(23)]
    monkeypatch.setattr(sys.modules[top_entries.__module__], "KEYS", {True: 48, False: 48})
    before = scores.clone()
    entries, index = top_entries(scores, 5)
    assert torch.equal(scores, before)
    assert torch.equal(entries, torch.cat([one[0] for one in alone]))
    assert torch.equal(index, torch.cat([one[1] for one in alone]))
