"""The base of all sections of the agent's settings, their value types, and the smallest sections."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from federation.privacy.promises import PrivacyPromises
from gaitway.secret_fields import SecretFields
from gaitway.strict_numbers import TypedNumbers


class Section(SecretFields, TypedNumbers, BaseModel):
    """A frozen section that rejects unknown keys and booleans for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


PASSWORD_HASH = r"scrypt:[0-9]{1,7}:[0-9]{1,2}:[0-9]{1,2}:[A-Za-z0-9_=-]{22,64}:[A-Za-z0-9_=-]{43,128}"
"""scrypt, its N, r and p, salt and key in URL-safe base64."""
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):(\d{1,5})")


def host_and_port(address: str) -> tuple[str, int]:
    """Read "127.0.0.1:8090", "[::1]:8090" or "localhost:8090".

    Raises:
        ValueError: for any other text.
    """
    found = _ADDRESS.fullmatch(address)
    port = int(found[3]) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ValueError(f"{address!r} isn't an address to listen on; expected one such as 127.0.0.1:8090 or [::]:8090")
    host = found[1] or found[2]
    if host == "localhost":
        return "127.0.0.1", port
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(f"{host!r} isn't an address of this device; expected 127.0.0.1, 0.0.0.0 or its own") from error
    return host, port


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    return ipaddress.ip_address(host_and_port(address)[0]).is_loopback


def _checked(address: str) -> str:
    host_and_port(address)
    return address


def _hash(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(PASSWORD_HASH, secret.get_secret_value()):
        raise ValueError("expected scrypt:… as `python -m edge_agent page-password` prints it")
    return secret


Address = Annotated[str, AfterValidator(_checked)]
PasswordHash = Annotated[SecretStr, AfterValidator(_hash)]


class PrivacySection(Section):
    """What the server's plan must promise; unset values stay as promised at enrolment."""

    require: PrivacyPromises = Field(
        default=PrivacyPromises(),
        description='such as { mode = "masked", min_devices = 50, min_colluding_share = 0.3, min_noise = 1.1 }; '
        "also min_example_noise",
    )
