"""When the server collects what clients have learnt, and what it may see of it."""

from __future__ import annotations

import operator
from typing import Annotated, Literal

from pydantic import Field

from federation.plan.strict import Name, Strict

MAX_CLIENTS = 10**9
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")]
"""Base64 of a raw ed25519 key."""


class RoundSettings(Strict):
    """How the cohort of a round is selected and when the round closes."""

    rounds: int = Field(default=10, ge=1, le=1_000_000, description="to publish; those that fail do not count")
    clients_per_round: int | None = Field(default=None, ge=1, le=MAX_CLIENTS, description="none: every client")
    sampling: Literal["uniform", "examples"] = Field(
        default="uniform",
        description="examples: a client is drawn in proportion to how many it has; let clients weigh alike then",
    )
    cohort_tags: tuple[Name, ...] = Field(
        default=(), max_length=32, description="draw only from devices in one of these groups; none: from all"
    )
    over_selection: float = Field(default=1.0, ge=1, le=10, description="invite this many times more")
    minimum_clients: int = Field(default=1, ge=1, le=MAX_CLIENTS, description="updates needed at the deadline")
    deadline_s: float | None = Field(default=None, gt=0, description="none: wait for every client")
    interval_s: float = Field(
        default=0.0,
        ge=0,
        le=366 * 86_400,
        # left out where it is 0, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="from the opening of a round to that of the next, at least",
    )
    late: Literal["drop", "next"] = Field(default="drop", description="next: use in the next round, discounted")
    partial_work: Literal["method", "drop", "use"] = Field(
        default="method", description="what a straggler did before the deadline; method: as its paper does"
    )
    staleness_exponent: float = Field(default=0.5, ge=0, description="discount = (1 + rounds late)^-exponent")
    max_weight_ratio: float | None = Field(
        default=2.0,
        ge=1,
        le=1e6,
        description="an update weighs at most this many times the median of its round's examples; none: as it says",
    )
    norm_factor: float | None = Field(
        default=10.0, gt=1, description="leave out what moves the model by this many times the median; none: nothing"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="clip each client's change to this L2 norm, and weigh clients equally"
    )
    noise_multiplier: float = Field(
        default=0.0, ge=0, le=1e6, description="Gaussian noise on the sum of the changes, in units of clip_norm"
    )
    noise_bands: int = Field(
        default=1,
        ge=1,
        le=1024,
        # left out where it is 1, so that devices of a version without it go on
        exclude_if=lambda bands: bands == 1,
        description="noise of so many published rounds is correlated, so that it cancels in part; a client takes part "
        "in one of so many at most",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="the δ at which ε is stated")
    norm_after: int = Field(
        default=8,
        ge=1,
        le=10**9,
        description="updates of earlier rounds before their median refuses others as they arrive",
    )
    max_refused_updates: int | None = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="suspend a client after so many of its updates in a row were refused, quarantined or left out for "
        "what they hold; none: never",
    )
    max_failed_rounds: int = Field(
        default=5, ge=1, le=1_000_000, description="pause the federation after so many failed rounds in a row"
    )

    def keeps_partial_work(self, method_does: bool) -> bool:
        """Whether an update of a client that did not do all of its steps is aggregated; or what the method does."""
        return method_does if self.partial_work == "method" else self.partial_work == "use"


class PublicationSettings(Strict):
    """When a continuous federation publishes a version, and when its devices send their sums again."""

    interval_s: float = Field(
        default=60.0,
        ge=0,
        le=366 * 86_400,
        description="from one published version to the next, at least; before the twelfth a twelfth of it for each "
        "version that there is",
    )
    min_changes: int = Field(
        default=1,
        ge=1,
        le=MAX_CLIENTS,
        description="devices whose sums came, changed or went before a version is published",
    )
    max_wait_s: float = Field(
        default=3600.0, ge=0, le=366 * 86_400, description="a change waits no longer, whatever min_changes says"
    )
    send_after_windows: int = Field(
        default=20,
        ge=1,
        le=10**9,
        description="a device sends its sums again once so many of its training windows came or went since it last did",
    )


class SecureSettings(Strict):
    """Whether the server learns the clients' updates one by one, or their sum alone (`federation.secure_sums`).

    What clients send to be added are whole numbers: `steps` to 1, cut off where a sum of all could leave its range.
    """

    mode: Literal["off", "masked", "clear"] = Field(
        default="off",
        description="masked: the server learns sums alone; clear: the same whole numbers without masks, which a "
        "simulation compares with",
    )
    min_devices: int = Field(default=3, ge=3, le=1 << 14, description="no sum is of fewer")
    groups: int = Field(
        default=1,
        ge=1,
        le=64,
        # left out where it is 1, so that devices of a version without it go on
        exclude_if=lambda groups: groups == 1,
        description="devices are dealt into so many, the server learns each one's sum, and a robust aggregation "
        "combines them; a device sends so many times as many numbers",
    )
    colluding_share: float = Field(
        default=0.2, ge=0, le=1 / 3, description="of the devices may work for the server, and the others stay hidden"
    )
    lost_share: float = Field(
        default=0.2, ge=0, le=1 / 3, description="of the devices may be lost in a round, and it still has a sum"
    )
    steps: int = Field(default=1024, ge=1, le=1 << 20, description="whole numbers to 1 of what is added up")
    max_change: float = Field(default=4.0, gt=0, le=1e6, description="a parameter's change is cut off beyond")
    max_value: float = Field(
        default=64.0, gt=0, le=1e6, description="a prototype's or variate's number is cut off beyond"
    )
    max_weight: int = Field(default=4096, ge=1, le=1 << 24, description="a client weighs at most so many examples")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda norm: norm is None,
        description="L2 norm of a client's vector at most, in the whole numbers that it adds (analytic: 2¹⁵ to 1)",
    )
    noise_multiplier: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        exclude_if=operator.not_,
        description="deviation of the noise in the sum, in units of clip_norm; each client adds its share of it",
    )
    voucher: PublicKey | None = Field(
        default=None,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda key: key is None,
        description="public key that vouches for devices, offline (`gaitway server vouch`); devices refuse a sum with "
        "a member that it has not signed; none: the server alone says who is a device",
    )
    stage_s: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="a server waits so long for each of the answers that follow a device's keys; then it is lost",
    )

    @property
    def is_on(self) -> bool:
        """Whether updates are added as whole numbers."""
        return self.mode != "off"
