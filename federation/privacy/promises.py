"""A plan's privacy promises, and a device's check that they meet its requirements.

Only what a device can see kept is here: whether its update is masked, among how many devices, and the noise that it
adds itself. Noise that the server adds (`rounds.noise_multiplier`) rests on the server's word alone.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from federation.plan import Plan
from federation.plan.strict import Strict


class PrivacyPromises(Strict):
    """What a plan promises or a device requires; a field that isn't given requires nothing of its own."""

    mode: Literal["off", "masked"] = Field(default="off", description="masked: the server learns only sums")
    min_devices: int = Field(default=0, ge=0, le=1 << 14, description="minimum number of devices in a sum")
    min_colluding_share: float = Field(
        default=0.0,
        ge=0,
        le=1 / 3,
        description="share of devices that may collude with the server without exposing the others",
    )
    min_noise: float = Field(
        default=0.0, ge=0, le=1e3, description="minimum noise of devices on a sum (secure.noise_multiplier)"
    )
    min_example_noise: float = Field(
        default=0.0, ge=0, le=1e6, description="minimum noise on each training step (training.example_noise_multiplier)"
    )
    voucher: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9+/]{43}=)?$",
        description="public key that vouches for every member of a sum (secure.voucher)",
    )


NO_PROMISES = PrivacyPromises()


def promises_of(plan: Plan) -> PrivacyPromises:
    """Return what a plan promises; without masks, a sum's size and noise protect nobody."""
    secure, training = plan.secure, plan.training
    clips = training.example_clip_norm is not None
    example_noise = training.example_noise_multiplier if clips else 0.0
    if secure.mode != "masked":
        return PrivacyPromises(min_example_noise=example_noise)
    return PrivacyPromises(
        mode="masked",
        min_devices=secure.min_devices,
        min_colluding_share=secure.colluding_share,
        min_noise=secure.noise_multiplier if secure.clip_norm is not None else 0.0,
        min_example_noise=example_noise,
        voucher=secure.voucher or "",
    )


def required(pinned: PrivacyPromises | None, settings: PrivacyPromises) -> PrivacyPromises:
    """Return what a device requires: each field as its settings give it, else as it was pinned.

    A bound on sums requires sums; settings that say "off" ask for none of them.
    """
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    found = (pinned or NO_PROMISES).model_copy(update=given)
    if given.get("mode") == "off":
        return PrivacyPromises(min_example_noise=found.min_example_noise)
    of_sums = (found.min_devices, found.min_colluding_share, found.min_noise, found.voucher)
    return found.model_copy(update={"mode": "masked"}) if any(of_sums) else found


def shortfall(promised: PrivacyPromises, requires: PrivacyPromises) -> str:
    """Say where less is promised than a device requires; empty where it isn't."""
    if requires.mode == "masked" and promised.mode != "masked":
        return (
            "the server would see this device's own updates, because secure.mode is not masked, and this device "
            "requires secure sums"
        )
    found = [
        f"{words} {_number(having)}, and this device requires {_number(needed)} or more"
        for words, having, needed in (
            ("secure.min_devices is", promised.min_devices, requires.min_devices),
            ("secure.colluding_share is", promised.min_colluding_share, requires.min_colluding_share),
            ("secure.noise_multiplier is", promised.min_noise, requires.min_noise),
            ("training.example_noise_multiplier is", promised.min_example_noise, requires.min_example_noise),
        )
        if having < needed
    ]
    if requires.voucher and promised.voucher != requires.voucher:
        found.append("secure.voucher is not the key that vouches for members, as this device requires")
    return "; ".join(found)


def describe_promises(promises: PrivacyPromises) -> str:
    """Say in a sentence for a person what is required or promised."""
    noise = f", with noise {_number(promises.min_example_noise)} in training" if promises.min_example_noise else ""
    if promises.mode == "off":
        return f"The server may see what this device sends{noise}."
    sums = f", with noise {_number(promises.min_noise)} on each sum" if promises.min_noise else ""
    vouched = f", all of them vouched for by the key {promises.voucher[:12]}…" if promises.voucher else ""
    return (
        f"The server learns only sums over at least {promises.min_devices:,} devices, even if "
        f"{100 * promises.min_colluding_share:.3g}% of them work for it{sums}{noise}{vouched}."
    )


def _number(value: float) -> str:
    return f"{value:.6g}"
