"""Augmentation against patterns worked out by hand and torch's own resampling; a mask goes where its image goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import interpolate

from federation.errors import SettingsError
from federation.methods import METHODS
from federation.plan import Augmentation, TrainingConfig
from federation.training.augmentation import augmented, changed_images, changes
from federation.training.client_round import train_one
from federation.training.schedule import DRAWS, RoundStream, schedule, stack_schedules
from tests.federation.federated import Federation, federation
from tests.federation.training.test_callbacks import Notes, assert_equal, through_bytes

NEVER, ALMOST_ONE = 0.75, 0.999
"""Draws: above a probability of a half, and the last place of a range."""
ALL = Augmentation(flip=0.5, padding=2, scale=(0.5, 2), brightness=0.3, contrast=0.2, saturation=0.4)


def draws(flip: float = NEVER, scale: float = 0.0, row: float = 0.0, column: float = 0.0) -> np.ndarray:
    """One image's, whose colours stay."""
    return np.array([[flip, scale, row, column, 0.5, 0.5, 0.5]], np.float32)


def numbered(height: int = 3, width: int = 4) -> tuple[Tensor, Tensor]:
    """An image (1, 1, H, W) whose pixels are 1, 2, 3, …, and the mask of the same numbers."""
    mask = torch.arange(1, height * width + 1).view(1, height, width)
    return mask.float()[:, None], mask


def changed(settings: Augmentation, drawn: np.ndarray) -> tuple[list[list[float]], list[list[int]]]:
    x, y = augmented(settings, drawn, *numbered(), outside=255)
    return x[0, 0].tolist(), y[0].tolist()


def test_a_flip_changes_left_and_right_of_image_and_mask() -> None:
    flipped = [[4, 3, 2, 1], [8, 7, 6, 5], [12, 11, 10, 9]]
    assert changed(Augmentation(flip=0.5), draws(flip=0.49)) == (flipped, flipped)
    kept = numbered()[1][0].tolist()
    assert changed(Augmentation(flip=0.5), draws(flip=0.5)) == (kept, kept)


def test_a_crop_of_the_padded_image_has_nothing_outside_and_the_mask_is_ignored_there() -> None:
    # the first place of five is two pixels above the image, the last one two pixels right of it
    x, y = changed(Augmentation(padding=2), draws(row=0.0, column=ALMOST_ONE))
    assert x == [[0, 0, 0, 0], [0, 0, 0, 0], [3, 4, 0, 0]]
    assert y == [[255, 255, 255, 255], [255, 255, 255, 255], [3, 4, 255, 255]]
    middle = changed(Augmentation(padding=2), draws(row=0.5, column=0.5))
    assert middle == (numbered()[1][0].tolist(),) * 2


def test_every_place_of_a_crop_is_as_likely() -> None:
    random = np.random.default_rng(0).random((6000, DRAWS), np.float32)
    found = changes(Augmentation(padding=2), random, 8, 8, torch.device("cpu")).rows
    places = torch.where(found.inside[:, 0], found.nearest[:, 0], -(~found.inside).sum(1))
    assert sorted(set(places.tolist())) == [-2, -1, 0, 1, 2]
    assert np.abs(np.bincount(places.numpy() + 2) / 6000 - 0.2).max() < 0.03


@pytest.mark.parametrize("factor", [0.5, 2.0, 1.5])
def test_scaling_is_torchs_bilinear_and_nearest(factor: float) -> None:
    x = torch.randn(1, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    y = torch.arange(96).view(1, 8, 12)
    # a smaller image lies at the window's beginning, of a larger one the beginning is seen
    drawn = draws(row=ALMOST_ONE if factor < 1 else 0.0, column=ALMOST_ONE if factor < 1 else 0.0)
    found, mask = augmented(Augmentation(scale=(factor, factor)), drawn, x, y, outside=255)
    wanted = interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)[..., :8, :12]
    nearest = interpolate(y[:, None].float(), scale_factor=factor, mode="nearest-exact")[:, 0, :8, :12]
    height, width = wanted.shape[2:]
    torch.testing.assert_close(found[..., :height, :width], wanted, rtol=0, atol=1e-5)
    assert torch.equal(mask[:, :height, :width], nearest.long())
    assert not found[..., height:, :].any()
    assert (mask[:, :, width:] == 255).all()


def test_a_mask_shows_the_class_that_its_image_shows() -> None:
    made = torch.Generator().manual_seed(2)
    squares = torch.randint(0, 2, (64, 4, 4), generator=made).repeat_interleave(6, 1).repeat_interleave(6, 2)
    classes = torch.where(squares == 1, 200, 7)
    random = np.random.default_rng(3).random((64, DRAWS), np.float32)
    settings = Augmentation(flip=0.5, padding=5, scale=(0.5, 2))
    x, y = augmented(settings, random, classes[:, None].float(), classes.to(torch.uint8), outside=255)
    assert y.dtype == torch.uint8
    alone = (x[:, 0] == 7) | (x[:, 0] == 200)  # bilinear mixes both at the edges of squares only
    assert torch.equal(y[alone].float(), x[:, 0][alone])
    assert torch.equal(y == 255, x[:, 0] == 0)
    assert 0.5 < alone.float().mean() < 1
    assert (y == 255).any()


def test_what_is_not_scaled_is_moved_pixel_by_pixel() -> None:
    x = torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(9))
    y = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(augmented(Augmentation(flip=0.5), draws(flip=0.1), x, y, None)[0], x.flip(3))
    assert torch.equal(augmented(Augmentation(padding=1), draws(), x, y, None)[0][..., 1:, 1:], x[..., :-1, :-1])
    assert torch.equal(augmented(Augmentation(flip=0.5), draws(), x, y, None)[0], x)


def test_colours_are_the_formulas() -> None:
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(4))
    random = np.random.default_rng(5).random((5, DRAWS), np.float32)
    settings = Augmentation(brightness=0.3, contrast=0.2, saturation=0.4)
    found, y = augmented(settings, random, x, torch.arange(5), outside=None)
    b, c, s = (random[:, 4 + k].astype(float)[:, None, None, None] * 2 - 1 for k in range(3))
    lit = x.double().numpy() * (1 + 0.2 * c) + 0.3 * b
    grey = lit.mean(1, keepdims=True)
    assert np.abs(found.numpy() - (grey + (lit - grey) * (1 + 0.4 * s))).max() < 1e-5
    assert y.tolist() == [0, 1, 2, 3, 4]


def test_the_images_have_the_same_bits_in_any_batch_and_under_vmap() -> None:
    x = torch.randn(6, 3, 17, 13, generator=torch.Generator().manual_seed(6))
    y = torch.randint(0, 9, (6, 17, 13), generator=torch.Generator().manual_seed(7))
    random = np.random.default_rng(8).random((6, DRAWS), np.float32)
    together = augmented(ALL, random, x, y, outside=255)
    assert not torch.equal(together[0], x)
    for k in range(6):
        alone = augmented(ALL, random[k : k + 1], x[k : k + 1], y[k : k + 1], outside=255)
        assert all(torch.equal(one[0], many[k]) for one, many in zip(alone, together, strict=True))
    stacked = augmented(ALL, random.reshape(2, 3, -1), x.view(2, 3, 3, 17, 13), y.view(2, 3, 17, 13), outside=255)
    assert all(torch.equal(one.flatten(0, 1), many) for one, many in zip(stacked, together, strict=True))
    clients = [changes(ALL, part, 17, 13, torch.device("cpu")) for part in np.split(random, 2)]
    lifted = torch.utils._pytree.tree_map(lambda *parts: torch.stack(parts), *clients)
    assert torch.equal(vmap(changed_images)(lifted, x.view(2, 3, 3, 17, 13)).flatten(0, 1), together[0])


def test_draws_are_by_seed_client_round_epoch_and_example_whatever_the_batch() -> None:
    def drawn(batch: int = 4, **changed: int | str) -> np.ndarray:
        stream = RoundStream(1, "ada", 3)._replace(**changed)
        found = schedule(10, batch, 2, stream, draws=DRAWS).draws
        assert found is not None
        return found.reshape(2, -1, DRAWS)[:, :10]

    assert np.array_equal(drawn(), drawn(batch=7))
    assert not np.array_equal(drawn()[0], drawn()[1])
    for other in ({"seed": 2}, {"client_id": "bob"}, {"round_number": 4}):
        assert not np.array_equal(drawn(), drawn(**other))
    short = schedule(10, 4, 2, RoundStream(1, "ada", 3), draws=DRAWS, max_steps=1)
    assert np.array_equal(short.draws.reshape(2, -1, DRAWS)[:, :10], drawn())
    stacked = stack_schedules([short, schedule(3, 4, 2, RoundStream(1, "bob", 3), draws=DRAWS)])
    assert stacked.draws is not None
    assert stacked.draws.shape == (2, 2, 3, 4, DRAWS)


def scene(settings: Augmentation, method: str = "fedavg", epochs: int = 3) -> Federation:
    made = federation(METHODS[method](), task="segmentation", epochs=epochs)
    training = made.setup.training.model_copy(update={"augmentation": settings})
    return made._replace(setup=replace(made.setup, training=training))


def test_a_round_that_is_resumed_sees_the_same_images() -> None:
    fed = scene(ALL)

    def played(callback: Notes | None = None) -> object:
        return train_one(
            fed.setup, fed.initial, fed.state, fed.examples["ada"],
            client_id="ada", round_number=1, callback=callback,
        )  # fmt: skip

    notes = Notes()
    whole = played(notes)
    for checkpoint in notes.seen:
        assert_equal(played(Notes(through_bytes(checkpoint))), whole)


def test_off_is_no_draw_and_not_a_bit() -> None:
    assert schedule(4, 2, 1, RoundStream(0, "ada", 1)).draws is None
    assert TrainingConfig(classes=2).augmentation.is_off
    plain = federation(METHODS["fedavg"](), task="segmentation", epochs=3).train("ada")
    assert_equal(scene(Augmentation()).train("ada"), plain)
    assert not torch.equal(scene(ALL).train("ada").loss, plain.loss)


def test_what_is_no_image_is_refused_in_words() -> None:
    fed = federation(METHODS["fedavg"]())
    setup = replace(fed.setup, training=fed.setup.training.model_copy(update={"augmentation": ALL}))
    with pytest.raises(SettingsError, match=r"augmentation = flip=0.5,padding=2,scale=0.5:2.0.*is for images.*128, 6"):
        train_one(setup, fed.initial, fed.state, fed.examples["ada"], client_id="ada", round_number=1)
    random = np.zeros((2, DRAWS), np.float32)
    with pytest.raises(SettingsError, match=r"masks of \(4, 4\) do not fit images of \(8, 8\)"):
        augmented(ALL, random, torch.zeros(2, 3, 8, 8), torch.zeros(2, 4, 4), outside=255)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flip", "expected none or some of flip, padding"),
        ("flip=2", "less than or equal to 1"),
        ("flop=0.5", "Extra inputs"),
        ("scale=2:1", "put the smaller factor first"),
        ("scale=1", "Field required"),
        ("padding=1.5", "valid integer"),
    ],
)
def test_texts_that_do_not_fit_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainingConfig.model_validate({"classes": 2, "augmentation": text})


def test_it_is_written_as_the_command_line_takes_it() -> None:
    for settings in (Augmentation(), ALL, Augmentation(flip=0.5)):
        assert Augmentation.model_validate(str(settings)) == settings
        assert Augmentation.model_validate_json(settings.model_dump_json()) == settings
    assert Augmentation.model_validate("flip=0.5 padding=4") == Augmentation(flip=0.5, padding=4)
