"""ALP against the numpy reference, where blocks have it, under padding, under vmap, and its gradients."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from models import OptionError, build
from models.hart import Block
from models.image.vit import VitBlock
from models.layers.alp import ALP, UPDATES, AlpOptions, BlockOptions, set_inference
from models.layers.matching import assign, similarity, top_entries, transport_plan
from tests.models import alp_reference as reference
from tests.models.small_models import small

# (B, Z, d, G): N = B·Z a multiple of G, not a multiple, smaller than G, and one prototype only.
SIZES = [(4, 8, 6, 8), (5, 7, 6, 8), (3, 4, 5, 20), (3, 8, 4, 1)]
UPDATES_AND_MATCHES = [*product(["soft", "single"], ["plan", "cosine", "euclidean"]), ("appendix", "plan")]
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def layer_and_tokens(size: tuple[int, int, int, int], dtype: torch.dtype, **options: object) -> tuple[ALP, Tensor]:
    torch.manual_seed(sum(size))
    batch, tokens, dim, count = size
    layer = ALP(dim, count, AlpOptions(**options)).to(dtype)
    return layer, 3.0 * torch.randn(batch, tokens, dim).to(dtype)


def expected(layer: ALP, x: Tensor, **options: object) -> reference.Reference:
    glu = None
    if layer.glu is not None:
        glu = (layer.glu.weight.detach().double().numpy(), layer.glu.bias.detach().double().numpy())
    return reference.alp(
        x.double().numpy(),
        layer.local_prototypes.double().numpy(),
        layer.global_prototypes.double().numpy(),
        glu,
        training=layer.training,
        prototypes=layer.prototypes,
        match=layer.match,
        update=layer.update,
        row=layer.inference == "row",
        **options,
    )


def close(actual: Tensor, desired: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), desired, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("training", [True, False])
def test_plan_assignment_update_and_output(
    size: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float, training: bool
) -> None:
    layer, x = layer_and_tokens(size, dtype)
    layer.train(training)
    want = expected(layer, x)
    flat = x.reshape(-1, size[2])
    active = torch.cat([layer.local_prototypes, layer.global_prototypes]) if training else layer.local_prototypes
    plan = transport_plan(similarity(flat, active, "plan"), 0.05, 3, None)
    close(plan, want.plan, tolerance)
    close(plan.sum(dim=0), np.ones(len(active)), tolerance)
    half = plan[:, size[3] :] if training else plan
    np.testing.assert_array_equal(assign(half).numpy(), want.assignment)
    close(layer(x), want.output, tolerance)
    close(layer.local_prototypes, want.moved, tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_single_updates(size: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float) -> None:
    layer, x = layer_and_tokens(size, dtype, update="single", gamma=0.5)
    before, want = layer.local_prototypes.clone(), expected(layer, x, gamma=0.5)
    close(layer(x), want.output, tolerance)
    close(layer.local_prototypes, want.moved, tolerance)
    moved = (layer.local_prototypes != before).any(dim=1)
    matched = set(want.plan[:, : size[3]].argmax(axis=1).tolist())
    assert set(moved.nonzero().flatten().tolist()) == matched, "a prototype that no token matches stays where it was"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_updates_of_appendix_a(size: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float) -> None:
    """Sums of normalized tokens under the plan's own entries, which add up to 1 only where one prototype has all."""
    layer, x = layer_and_tokens(size, dtype, update="appendix", gamma=0.5)
    want = expected(layer, x, gamma=0.5)
    close(layer(x), want.output, tolerance)
    close(layer.local_prototypes, want.moved, tolerance)


def test_appendix_a_by_hand() -> None:
    """Two tokens and two prototypes without global ones, so T is 1."""
    axis = torch.eye(2, dtype=torch.float64)
    options = AlpOptions(glu=False, gamma=0.5, epsilon=1.0, update="appendix", prototypes="local")
    layer = ALP(2, 2, options).double()
    layer.local_prototypes = axis.clone()
    layer((axis * torch.tensor([[3.0], [0.5]], dtype=torch.float64))[None])  # lengths don't count
    entry = np.e / (np.e + 1)  # of exp([[1, 0], [0, 1]]) each row and column has this sum
    close(layer.local_prototypes, 0.5 * np.eye(2) + 0.5 * entry * np.eye(2), 1e-12)


def test_of_several_tokens_that_match_one_prototype_the_last_one_moves_it() -> None:
    """As the authors' scatter does on a CPU; on a GPU theirs is whichever comes last."""
    axis = torch.eye(3, dtype=torch.float64)
    layer = ALP(3, 2, AlpOptions(glu=False, gamma=0.5, match="cosine", update="single")).double()
    layer.local_prototypes, layer.global_prototypes = axis[:2].clone(), axis[:2].clone()
    length = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None]
    layer((axis[[0, 0, 0]] * length)[None])
    close(layer.local_prototypes, (axis[:2] * torch.tensor([[2.5], [1.0]])).numpy(), 1e-12)


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_answered_in_evaluation_does_not_depend_on_how_prototypes_move(update: str) -> None:
    """So neither does what is exported."""
    layer, x = layer_and_tokens(SIZES[1], torch.float64)
    other = ALP(6, 8, AlpOptions(update=update)).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(x), layer.eval()(x))


@pytest.mark.parametrize("update", UPDATES)
def test_the_update_is_large_enough_to_be_tested(update: str) -> None:
    layer, x = layer_and_tokens(SIZES[1], torch.float64, gamma=0.5, update=update)
    before = layer.local_prototypes.clone()
    want = expected(layer, x, gamma=0.5)
    layer(x)
    assert (want.moved - before.numpy()).std() > 0.3
    close(layer.local_prototypes, want.moved, 1e-10)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"glu": False},
        {"prototypes": "local"},
        {"prototypes": "global"},
        {"match": "cosine"},
        {"match": "euclidean"},
        {"inference": "row"},
        {"update": "single"},
        {"update": "single", "match": "cosine"},
        {"update": "single", "match": "euclidean"},
        {"update": "single", "prototypes": "local"},
        {"update": "single", "prototypes": "global"},
        {"update": "appendix"},
        {"update": "appendix", "prototypes": "local"},
        {"update": "appendix", "prototypes": "global"},
    ],
)
def test_ablations(options: dict[str, object], training: bool) -> None:
    layer, x = layer_and_tokens((5, 7, 6, 8), torch.float64, **options)
    layer.train(training)
    want = expected(layer, x)
    close(layer(x), want.output, 1e-10)
    close(layer.local_prototypes, want.moved, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_go_to_the_lowest_index(dtype: torch.dtype) -> None:
    """Axis vectors make the cosines exact, so the ties are real: tokens 0, 2, 4 are alike, as are prototypes 1, 2."""
    axis = torch.eye(3, dtype=dtype)
    layer = ALP(3, 3, AlpOptions(glu=False, gamma=0.0)).to(dtype)
    layer.local_prototypes = axis[[1, 0, 0]].clone()
    layer.global_prototypes = axis[[1, 0, 0]].clone()
    # Of equal direction and different length: which token was taken shows in the moved prototype.
    length = torch.tensor([1.0, 1.0, 2.0, 2.0, 4.0, 4.0], dtype=dtype)[:, None]
    x = (axis[[0, 1, 0, 1, 0, 1]] * length)[None]
    want = expected(layer, x, gamma=0.0)
    layer.train()
    close(layer(x), want.output, 1e-6)
    np.testing.assert_array_equal(want.assignment, [1, 0, 1, 0, 1, 0])
    close(layer.local_prototypes, want.moved, 1e-6)
    # T = ⌈6/3⌉ = 2: the first two of three equal tokens, of lengths 1 and 2.
    close(layer.local_prototypes, 1.5 * axis[[1, 0, 0]].numpy(), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [1, 3])
def test_top_entries_break_ties_by_row_and_order_negatives(dtype: torch.dtype, largest: int) -> None:
    scores = torch.tensor([[-1.0, 0.0], [2.0, -3.0], [2.0, -torch.inf], [-1.0, 0.0], [0.5, 1e-40]], dtype=dtype)
    entries, index = top_entries(scores, largest)
    assert index.tolist() == [[1, 2, 4][:largest], [4, 0, 3][:largest]]
    assert torch.equal(entries, scores.T.gather(1, index))


@pytest.mark.parametrize(("update", "match"), UPDATES_AND_MATCHES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("count", [3, 8, 50])
def test_a_padded_batch_gives_what_the_short_one_gives(match: str, training: bool, count: int, update: str) -> None:
    short, x = layer_and_tokens((5, 4, 6, count), torch.float64, match=match, gamma=0.5, update=update)
    padded = ALP(6, count, AlpOptions(match=match, gamma=0.5, update=update)).double()
    padded.load_state_dict(short.state_dict())
    junk = torch.cat([x, 100.0 * x[:3]])
    mask = torch.tensor([1.0] * 5 + [0.0] * 3)
    short.train(training), padded.train(training)
    close(padded(junk, mask)[:5], short(x).detach().numpy(), 1e-12)
    close(padded.local_prototypes, short.local_prototypes.numpy(), 1e-12)


@pytest.mark.parametrize(("update", "match"), UPDATES_AND_MATCHES)
def test_an_all_padding_batch_moves_nothing_and_stays_finite(match: str, update: str) -> None:
    layer, x = layer_and_tokens((2, 4, 6, 3), torch.float32, match=match, update=update)
    before = layer.local_prototypes.clone()
    assert torch.isfinite(layer(x, torch.zeros(2))).all()
    assert torch.equal(layer.local_prototypes, before)


def test_underflow_keeps_the_prototype_and_gives_no_nan() -> None:
    layer, x = layer_and_tokens((2, 4, 6, 3), torch.float32, epsilon=1e-3)
    assert torch.isfinite(layer(x)).all()
    assert torch.isfinite(layer.local_prototypes).all()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacked_under_vmap_equals_one_by_one(dtype: torch.dtype, update: str) -> None:
    clients = 3
    layer, _ = layer_and_tokens((4, 5, 6, 7), dtype, update=update)
    x = torch.randn(clients, 4, 5, 6, dtype=dtype)
    mask = torch.ones(clients, 4, dtype=dtype)
    mask[1, 2:] = 0
    weights = {k: torch.randn(clients, *p.shape, dtype=dtype) for k, p in layer.named_parameters()}
    state = {k: torch.randn(clients, *b.shape, dtype=dtype) for k, b in layer.named_buffers()}

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        moved: list[Tensor] = []
        hook = layer.register_forward_hook(lambda module, *_: moved.append(module.local_prototypes))
        out = functional_call(layer, (params, buffers), (x, mask))
        hook.remove()
        return (out * mask[:, None, None]).sum(), moved[0]

    step = grad(loss, has_aux=True)
    stacked, moved = vmap(step)(weights, state, x, mask)
    for k in range(clients):
        client = ({n: p[k] for n, p in weights.items()}, {n: b[k] for n, b in state.items()})
        one, one_moved = step(*client, x[k], mask[k])
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        close(moved[k], one_moved.numpy(), tolerance)
        for name in weights:
            close(stacked[name][k], one[name].numpy(), 10 * tolerance)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_reach_tokens_only_past_the_plan_and_never_the_prototypes(training: bool) -> None:
    layer, x = layer_and_tokens((4, 5, 6, 7), torch.float64, glu=False)
    layer.train(training)
    buffers = (layer.local_prototypes, layer.global_prototypes)
    matched = buffers[training][torch.from_numpy(expected(layer, x).assignment)].view_as(x).clone()
    for tensor in (x, *buffers):
        tensor.requires_grad_()
    weight = torch.randn(4, 5, 6, dtype=torch.float64)
    found, *to_prototypes = torch.autograd.grad((layer(x) * weight).sum(), (x, *buffers), allow_unused=True)
    # The alignment alone, with the matched prototypes as a constant.
    alone = torch.nn.functional.normalize(0.2 * matched + 0.8 * x, dim=-1)
    wanted = torch.autograd.grad((alone * weight).sum(), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert to_prototypes == [None, None]


def test_training_rebinds_the_local_prototypes_and_leaves_the_old_tensor() -> None:
    layer, x = layer_and_tokens((4, 5, 6, 7), torch.float32)
    old, kept, tokens = layer.local_prototypes, layer.local_prototypes.clone(), x.clone()
    shared = layer.global_prototypes.clone()
    layer(x)
    assert layer.local_prototypes is not old
    assert torch.equal(old, kept)
    assert torch.equal(x, tokens)
    assert not torch.equal(layer.local_prototypes, old)
    assert torch.equal(layer.global_prototypes, shared)
    layer.eval()
    moved = layer.local_prototypes
    layer(x)
    assert layer.local_prototypes is moved


def test_row_inference_does_not_depend_on_the_batch_and_plan_inference_does() -> None:
    model = torch.nn.Sequential(ALP(6, 7), ALP(6, 7)).double().eval()
    x = torch.randn(32, 5, 6, dtype=torch.float64)
    assert not torch.allclose(torch.cat([model(row[None]) for row in x]), model(x))
    assert set_inference(model, "row") == 2
    torch.testing.assert_close(torch.cat([model(row[None]) for row in x]), model(x))


@pytest.mark.parametrize(
    "options",
    [
        {"update": "hard"},
        {"update": "appendix", "match": "cosine"},
        {"match": "wasserstein"},
        {"prototypes": "none"},
        {"inference": "col"},
        {"epsilon": 0.0},
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        ALP(4, 2, AlpOptions(**options))


def test_wrong_number_of_prototypes_is_refused() -> None:
    with pytest.raises(OptionError, match="num_prototypes"):
        ALP(4, 0)
    with pytest.raises(OptionError, match="plan, row"):
        set_inference(ALP(4, 2), "rows")


# ---- β = 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"glu": False}, {"prototypes": "global"}, {"match": "cosine"}])
def test_without_beta_tokens_are_only_normalised_while_prototypes_move(
    options: dict[str, object], training: bool
) -> None:
    layer, x = layer_and_tokens((5, 7, 6, 8), torch.float64, gamma=0.5, **options)
    layer.train(training)
    layer.beta_scale = torch.zeros((), dtype=torch.float64)
    before = layer.local_prototypes.clone()
    want = expected(layer, x, beta=0.0, gamma=0.5)
    out = layer(x)
    close(out, reference.unit(x.numpy()), 1e-12)
    close(out, want.output, 1e-12)
    close(layer.local_prototypes, want.moved, 1e-10)
    assert torch.equal(layer.local_prototypes, before) != training


def test_the_scale_multiplies_beta() -> None:
    layer, x = layer_and_tokens((5, 7, 6, 8), torch.float64, beta=0.4)
    layer.eval()
    layer.beta_scale = torch.full((), 0.5, dtype=torch.float64)
    close(layer(x), expected(layer, x, beta=0.2).output, 1e-10)


# ---- as an option of the models


@pytest.mark.parametrize("name", ["hart_alp", "vit_tiny_alp", "har_cnn_alp"])
def test_how_prototypes_move_is_an_option_of_the_models(name: str) -> None:
    assert small(name).options["alp_update"] == "soft"
    for update in UPDATES:
        model = small(name, alp_update=update)
        assert model.options["alp_update"] == update
        for one in (model, build(name, classes=5, **model.options)):
            assert {layer.update for layer in one.modules() if isinstance(layer, ALP)} == {update}
    with pytest.raises(OptionError, match="alp_update='hard': expected one of soft, single, appendix"):
        small(name, alp_update="hard")
    with pytest.raises(OptionError, match="option 'alp' has no option 'update'"):
        small(name, alp={"update": "single"})


# ---- where a block has its layer


def hart_mix(block: Any, tokens: Tensor) -> Tensor:
    quarter = tokens.shape[-1] // 4
    first, middle, last = tokens.split([quarter, 2 * quarter, quarter], dim=-1)
    return torch.cat([block.accelerometer(first), block.both(middle), block.gyroscope(last)], dim=-1)


def vit_mix(block: Any, tokens: Tensor) -> Tensor:
    mixed: Tensor = block.attention(tokens)
    return mixed


def on_arrays(function: Any) -> Any:
    return lambda x: function(torch.from_numpy(x)).detach().numpy()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("placement", ["branch", "residual"])
@pytest.mark.parametrize("kind", ["hart", "vit"])
def test_the_residual_goes_round_alp_but_for_the_ablation(kind: str, placement: str, training: bool) -> None:
    """x + branches(ALP(LayerNorm(x))) token by token; the branches and the MLP are torch's, tested elsewhere."""
    torch.manual_seed(5)
    layer = ALP(32, 9, AlpOptions(gamma=0.5))
    block = Block(32, 3, 3, 24, BlockOptions(0.0, 0.0, layer, placement)) if kind == "hart" else (
        VitBlock(32, 4, 24, BlockOptions(0.0, 0.0, layer, placement))
    )  # fmt: skip
    block.double().train(training)
    x = 3.0 * torch.randn(5, 8, 32, dtype=torch.float64)
    mix = hart_mix if kind == "hart" else vit_mix
    seen: list[reference.Reference] = []

    def align(tokens: reference.Array) -> reference.Array:
        seen.append(expected(layer, torch.from_numpy(tokens), gamma=0.5))
        return seen[0].output

    wanted = reference.block(x.numpy(), align, on_arrays(lambda t: mix(block, t)), on_arrays(block.mlp), placement)
    close(block(x, None), wanted, 1e-9)
    close(layer.local_prototypes, seen[0].moved, 1e-9)


@pytest.mark.parametrize("name", ["hart_alp", "vit_tiny_alp"])
def test_placement_is_an_option_of_the_transformers(name: str) -> None:
    branch, residual = small(name), small(name, placement="residual")
    assert (branch.options["placement"], residual.options["placement"]) == ("branch", "residual")
    residual.load_state_dict(branch.state_dict())
    x = torch.randn(4, *branch.input_shape, dtype=torch.float64)
    assert not torch.allclose(branch.eval()(x).features, residual.eval()(x).features, rtol=0.1)
    with pytest.raises(OptionError, match="placement='both': expected one of branch, residual"):
        small(name, placement="both")


@pytest.mark.parametrize("name", ["hart", "vit_tiny", "har_cnn_alp"])
def test_placement_is_refused_where_no_block_has_alp(name: str) -> None:
    with pytest.raises(OptionError, match="has no option 'placement'"):
        build(name, classes=4, placement="branch")
