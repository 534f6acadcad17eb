"""Which parameters are the classifier: those of the submodule `head`, in every network of `models`."""

from __future__ import annotations

from federation.errors import SettingsError
from gaitway.input_spec import HEAD


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the classifier; its input is the feature."""
    return name.startswith(HEAD)


def is_base(name: str) -> bool:
    """Whether a parameter belongs to the feature extractor E."""
    return not is_head(name)


def check_head_lr_factor(method: str, factor: float) -> None:
    """Refuse a factor that is no learning rate's.

    Raises:
        SettingsError: unless it is above 0 and finite.
    """
    if not 0 < factor < float("inf"):
        raise SettingsError(
            f"{method}: head_lr_factor={factor}: expected a number above 0, by which the learning rate is multiplied "
            "while the head trains alone; 1 trains it at the base's"
        )
