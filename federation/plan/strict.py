"""What the models of a plan share: names that are safe anywhere, text for people, and unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gaitway.plain_text import MAX_LABEL, checked, checked_values, cleaned
from gaitway.strict_numbers import StrictNumbers

Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="letters, digits, '_', '.' and '-'")
]
"""A federation's, device's or model's name: safe in a topic, a path and a URL."""

Text = Annotated[str, AfterValidator(checked)]
"""What a person writes or a file says, in NFC; control characters and invalid Unicode are refused."""

Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), AfterValidator(checked)]
"""A class's name, or a number's."""

Words = Annotated[str, BeforeValidator(lambda given: cleaned(given) if isinstance(given, str) else given)]
"""What a program says, such as why it failed, in NFC; control characters become blanks."""

Options = Annotated[dict[str, Any], AfterValidator(checked_values)]
"""Settings that others validate; every text in them is as in `Text`."""


class Strict(StrictNumbers, BaseModel):
    """Frozen, and refuses unknown keys, truth values for numbers and text for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")
