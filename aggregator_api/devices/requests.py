"""What a device asks at its enrolment, validated, and what it is given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from federation.plan import Name, Strict, Text
from federation.privacy.promises import PrivacyPromises

PublicKey = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$", description="base64 of the raw ed25519 key, 32 bytes")
]
Signature = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9+/]{86}==$", description="base64 of the ed25519 signature, 64 bytes")
]

Tags = Annotated[list[Name], Field(max_length=32)]
Moment = Annotated[int, Field(ge=0, le=2**53)]


class Enrol(Strict):
    """A device that shows a token, and proves that it holds the private half of its key."""

    token: Text = Field(min_length=1, max_length=128)
    federation: Name
    device: Name
    public_key: PublicKey
    signature: Signature = Field(description=r'over UTF-8 "gaitway-signed/1\nenrol\n{federation}\n{device}\n{token}"')


class _SignedRequest(Strict):
    """A device that has enrolled, and asks for something by its name and its key pair."""

    federation: Name
    device: Name


class Claim(_SignedRequest):
    """A device that asks for new credentials with the key that it enrolled with."""

    issued_at: Moment = Field(description="Unix seconds; within 300 s, and greater each time")
    signature: Signature = Field(
        description=r'over UTF-8 "gaitway-signed/1\nclaim\n{federation}\n{device}\n{issued_at}"'
    )


class TokenRequest(_SignedRequest):
    """A device that asks for a key for some minutes, with the key pair that it enrolled with."""

    issued_at_ms: Moment = Field(description="Unix milliseconds; within 300 s, and never the same twice")
    signature: Signature = Field(
        description=r'over UTF-8 "gaitway-signed/1\ntoken\n{federation}\n{device}\n{issued_at_ms}"'
    )


class DeviceToken(BaseModel):
    """A device's key for some minutes."""

    token: str = Field(description="for `Authorization: Bearer …`, wherever the device's API key opens")
    expires_in_s: int


class BrokerAddress(BaseModel):
    """Where devices reach the broker: the setting `public_broker_url`, or a broker on loopback."""

    host: str
    port: int
    tls: bool


class BrokerLogin(BaseModel):
    """A device's account at the broker, and where that is."""

    username: str
    password: str
    address: BrokerAddress | None = Field(default=None, description="none: the server was not told what devices reach")


class Credentials(BaseModel):
    """What a device needs from now on; the ones before are void."""

    api_key: str
    broker: BrokerLogin
    server_key: PublicKey = Field(description="base64 of the server's raw ed25519 public key")


class Enrolment(BaseModel):
    """Where a device's enrolment stands."""

    state: Literal["pending", "approved"]
    device: str
    promises: PrivacyPromises = Field(description="what the plan promises now; the device requires it from then on")
    credentials: Credentials | None = Field(default=None, description="once, in the answer that makes them")
