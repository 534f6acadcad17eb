"""When the server collects clients' updates, and what it can see of them."""

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

    rounds: int = Field(default=10, ge=1, le=1_000_000, description="rounds to publish; failed ones don't count")
    clients_per_round: int | None = Field(default=None, ge=1, le=MAX_CLIENTS, description="none: every client")
    sampling: Literal["uniform", "examples"] = Field(
        default="uniform",
        description="examples: clients are drawn in proportion to their examples; use equal weights then",
    )
    cohort_tags: tuple[Name, ...] = Field(
        default=(), max_length=32, description="only draw devices in one of these groups; none: all devices"
    )
    over_selection: float = Field(default=1.0, ge=1, le=10, description="factor of additional invitations")
    minimum_clients: int = Field(default=1, ge=1, le=MAX_CLIENTS, description="updates needed at the deadline")
    deadline_s: float | None = Field(default=None, gt=0, description="none: wait for every client")
    interval_s: float = Field(
        default=0.0,
        ge=0,
        le=366 * 86_400,
        # left out where it is 0, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="minimum time between the openings of two rounds",
    )
    late: Literal["drop", "next"] = Field(default="drop", description="next: use in the next round, discounted")
    partial_work: Literal["method", "drop", "use"] = Field(
        default="method", description="a straggler's partial work at the deadline; method: as in its paper"
    )
    staleness_exponent: float = Field(default=0.5, ge=0, description="discount = (1 + rounds late)^-exponent")
    max_weight_ratio: float | None = Field(
        default=2.0,
        ge=1,
        le=1e6,
        description="maximum weight of an update, in medians of its round's examples; none: unlimited",
    )
    norm_factor: float | None = Field(
        default=10.0, gt=1, description="leave out updates whose norm exceeds this many medians; none: no limit"
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
        description="number of published rounds with correlated noise, which partly cancels; a client takes part "
        "in one of so many at most",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="the δ of the stated ε")
    norm_after: int = Field(
        default=8,
        ge=1,
        le=10**9,
        description="number of earlier updates before their median is used to refuse updates on arrival",
    )
    max_refused_updates: int | None = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="suspend a client after this many of its updates in a row were refused, quarantined or left out "
        "for "
        "what they hold; none: never",
    )
    max_failed_rounds: int = Field(
        default=5, ge=1, le=1_000_000, description="pause the federation after this many failed rounds in a row"
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
        description="minimum time between two published versions; before the twelfth, a twelfth of it for each "
        "version that there is",
    )
    min_changes: int = Field(
        default=1,
        ge=1,
        le=MAX_CLIENTS,
        description="number of devices with new, changed or removed sums before a version is published",
    )
    max_wait_s: float = Field(
        default=3600.0, ge=0, le=366 * 86_400, description="maximum time that a change waits, regardless of min_changes"
    )
    send_after_windows: int = Field(
        default=20,
        ge=1,
        le=10**9,
        description="a device sends its sums again after this many of its training windows were added or removed",
    )


class SecureSettings(Strict):
    """Whether the server learns the clients' updates one by one, or their sum alone (`federation.secure_sums`).

    What clients send to be added are whole numbers: `steps` to 1, cut off where a sum of all could leave its range.
    """

    mode: Literal["off", "masked", "clear"] = Field(
        default="off",
        description="masked: the server learns only sums; clear: the same whole numbers without masks, which a "
        "simulation compares with",
    )
    min_devices: int = Field(default=3, ge=3, le=1 << 14, description="minimum number of devices in a sum")
    groups: int = Field(
        default=1,
        ge=1,
        le=64,
        # left out where it is 1, so that devices of a version without it go on
        exclude_if=lambda groups: groups == 1,
        description="number of random groups; the server learns each one's sum, and a robust aggregation "
        "combines them; a device sends so many times as many numbers",
    )
    colluding_share: float = Field(
        default=0.2,
        ge=0,
        le=1 / 3,
        description="share of devices that may collude with the server without exposing the others",
    )
    lost_share: float = Field(
        default=0.2, ge=0, le=1 / 3, description="share of devices that may drop out of a round without losing the sum"
    )
    steps: int = Field(default=1024, ge=1, le=1 << 20, description="whole numbers per unit of the summed values")
    max_change: float = Field(default=4.0, gt=0, le=1e6, description="limit at which a parameter's change is cut off")
    max_value: float = Field(
        default=64.0, gt=0, le=1e6, description="limit at which a prototype's or variate's number is cut off"
    )
    max_weight: int = Field(default=4096, ge=1, le=1 << 24, description="maximum weight of a client, in examples")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda norm: norm is None,
        description="maximum L2 norm of a client's vector, in the whole numbers that it adds (analytic: 2¹⁵ per unit)",
    )
    noise_multiplier: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        exclude_if=operator.not_,
        description="deviation of the noise in the sum, in units of clip_norm; each client adds its share",
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
        description="time that the server waits for each answer after a device's keys; then it drops the device",
    )

    @property
    def is_on(self) -> bool:
        """Whether updates are added as whole numbers."""
        return self.mode != "off"
