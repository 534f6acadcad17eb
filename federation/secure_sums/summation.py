"""Converts a client's summand to whole numbers, and their sum to the server's next state.

Between `encoded` on the device and `next_state` on the server nothing but a sum passes: the server's half of a method
is given that sum and the names of the clients in it (`Method.accumulated`, `Method.finish`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from federation.aggregation.averaging import MeanSums, mean_of, sums_of_changes
from federation.errors import RoundError, SettingsError
from federation.method import Method, SumMethod
from federation.plan import RoundSettings, SecureSettings, TrainingConfig
from federation.privacy import discrete_gaussian
from federation.privacy.differential_privacy import check_mean
from federation.privacy.discrete_gaussian import Draw
from federation.records import Broadcast, Client, SumKind, Tree, Update
from federation.records.tree import flatten, unflatten
from federation.rounds import gains as gain_sums
from federation.rounds.gains import Gains
from federation.secure_sums.masks import Bits
from federation.secure_sums.messages import MAX_LENGTH
from federation.wire.schema import empty_upload

MAX_WHOLE = 1 << 32
"""Of whole numbers of 32 bits and their noise."""
GAINS = "gains/"
"""What the names of segments begin with that aren't the method's: a device's report for each candidate."""


class Segment(NamedTuple):
    """One tensor's place among the numbers that are added."""

    name: str
    shape: tuple[int, ...]
    steps: int  # whole numbers to 1
    bound: int  # no number is larger, in steps


class SumLayout(NamedTuple):
    """What the whole numbers of a vector mean; both ends derive it from the plan."""

    segments: tuple[Segment, ...]

    @property
    def length(self) -> int:
        """How many numbers a vector has."""
        return sum(math.prod(segment.shape) for segment in self.segments)

    @property
    def bound(self) -> int:
        """The largest number that a client may add."""
        return max(segment.bound for segment in self.segments)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of names, shapes and scales, which a device holds against that of the request."""
        return hashlib.sha256(json.dumps(self.segments).encode()).digest()

    def bits_for(self, clients: int) -> Bits:
        """Return the smaller ring in which no sum of so many clients can wrap.

        Raises:
            SettingsError: if there is none.
        """
        if clients * self.bound < 1 << 31:
            return 32
        if clients * self.bound < 1 << 63:
            return 64
        raise SettingsError(
            f"a sum of {clients:,} clients' numbers of up to {self.bound:,} steps does not fit 64 bits: lower "
            "secure.steps, secure.max_change, secure.max_value or secure.max_weight"
        )


def vector_length(layout: SumLayout, settings: SecureSettings) -> int:
    """Return how many numbers a device sends: those of the layout, once for each group.

    Raises:
        SettingsError: if they are more than a sum can have.
    """
    length = layout.length * settings.groups
    if length > MAX_LENGTH:
        raise SettingsError(
            f"secure.groups={settings.groups}: a device would send {length:,} numbers, at most {MAX_LENGTH:,} are "
            "added; ask for fewer groups, or a smaller network"
        )
    return length


def layout_from_json(columns: Sequence[Sequence[Any]]) -> SumLayout:
    """Read a layout from JSON, which writes a segment as a list."""
    return SumLayout(
        tuple(Segment(str(name), tuple(shape), int(steps), int(bound)) for name, shape, steps, bound in columns)
    )


def check_secure(method: Method, rounds: RoundSettings, settings: SecureSettings) -> None:
    """Refuse what must see single clients.

    Raises:
        SettingsError: naming the option, and what to do.
    """
    if not settings.is_on:
        return
    # of groups the sums are as of all; the robust rule comes after them
    plain = method if settings.groups == 1 else replace(method, aggregation="mean")
    if obstacle := plain.sum_incompatibility:
        raise SettingsError(f"secure.mode={settings.mode}: {obstacle}; choose a method such as fedavg or analytic")
    judging = {
        "norm_factor": rounds.norm_factor,
        "max_weight_ratio": rounds.max_weight_ratio,
        "clip_norm": rounds.clip_norm,
    }
    for name, value in judging.items():
        if value is not None:
            raise SettingsError(
                f"secure.mode={settings.mode}: rounds.{name}={value:g} judges single updates, which the server does "
                f"not see; set rounds.{name}=null"
            )
    if settings.noise_multiplier and settings.clip_norm is None:
        raise SettingsError("secure.noise_multiplier needs secure.clip_norm: without a bound, no noise is enough")
    if isinstance(method, SumMethod):
        _check_sums(method, settings)
    else:
        _check_means(method, plain, settings)
    if rounds.late != "drop":
        raise SettingsError(f"secure.mode={settings.mode}: a late update fits no sum any more; set rounds.late=drop")


def _check_sums(method: SumMethod, settings: SecureSettings) -> None:
    """Refuse groups: what all have is added up."""
    if settings.groups > 1:
        raise SettingsError(
            f"secure.groups={settings.groups}: {method.name} adds up what all have, in no groups; leave it at 1"
        )


def _check_means(method: Method, plain: Method, settings: SecureSettings) -> None:
    """Refuse groups that nothing combines, and noise or groups where sums are more than means."""
    if settings.groups > 1:
        option = f"secure.groups={settings.groups}"
        if method.aggregation == "mean":
            raise SettingsError(
                f"{option}: the mean of the groups is the mean of all; set aggregation to median, trimmed_mean or "
                "krum, or leave groups at 1"
            )
        check_mean(plain, option)
    if settings.noise_multiplier:
        check_mean(plain, "secure.noise_multiplier")
        if settings.max_weight > 1:
            raise SettingsError(
                f"secure.noise_multiplier: clip_norm bounds a client's change, and with secure.max_weight="
                f"{settings.max_weight:,} it would count as often as it has examples; set secure.max_weight=1"
            )


def layout_of(method: Method, training: TrainingConfig, client: Client, settings: SecureSettings) -> SumLayout:
    """Derive the layout from the method and the model, without training."""
    upload, broadcast = empty_upload(method, training, client)
    summand = method.summand(Update("", 0, 0, upload), broadcast, settings)
    segments = []
    for group, kind in method.sum_groups.items():
        steps, bound = scale(kind, settings)
        flat = flatten({group: summand[group]})
        segments += [Segment(name, tuple(value.shape), steps, bound) for name, value in flat.items()]
    return SumLayout((*segments, *gain_segments(method, training.classes, settings)))


def gain_segments(method: Method, classes: int, settings: SecureSettings) -> tuple[Segment, ...]:
    """Return where the gains of a device's models are among its numbers; a continuous federation's sums have none.

    Methods without a shared model have them too, and their devices add zeros: so ends in other languages needn't know.
    """
    # the account of noise is of the clipped change alone: exact gains in the same sum would tell more than its ε
    if isinstance(method, SumMethod) or settings.noise_multiplier or classes > gain_sums.MAX_CLASSES:
        return ()
    shape = (gain_sums.length(classes),)
    return tuple(Segment(GAINS + name, shape, 1, gain_sums.MAX_NUMBER) for name in gain_sums.MODELS)


def scale(kind: SumKind, settings: SecureSettings) -> tuple[int, int]:
    """Return how many steps a 1 has in a group of this kind, and the bound of its numbers in steps."""
    if kind is SumKind.WHOLE:
        return 1, MAX_WHOLE
    if kind is SumKind.COUNT:
        return 1, settings.max_weight
    most = {
        SumKind.WEIGHTED_CHANGE: settings.max_change * settings.max_weight,
        SumKind.WEIGHTED_VALUE: settings.max_value * settings.max_weight,
        SumKind.VALUE: settings.max_value,
    }[kind]
    bound = math.ceil(most * settings.steps)
    if kind is SumKind.WEIGHTED_CHANGE and settings.noise_multiplier and settings.clip_norm is not None:
        bound += math.ceil(_WIDEST * settings.noise_multiplier * settings.clip_norm)
    return settings.steps, bound


_WIDEST = 16.0
"""Deviations of the noise: a number has more with a probability below 10⁻⁵⁶."""


def encoded(
    method: Method,
    layout: SumLayout,
    update: Update,
    broadcast: Broadcast,
    settings: SecureSettings,
    gains: Gains = MappingProxyType({}),
) -> NDArray[np.int64]:
    """Return what a client adds, as whole numbers (length,): the client half.

    gains: what a device reports of its models; zeros are added for candidates without a report.
    """
    flat = {**flatten(method.summand(update, broadcast, settings)), **_reported(layout, gains)}
    parts = [
        torch.round(flat[segment.name].double() * segment.steps).clamp(-segment.bound, segment.bound).long()
        for segment in layout.segments
    ]
    vector: NDArray[np.int64] = torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
    return vector


def _reported(layout: SumLayout, gains: Gains) -> dict[str, torch.Tensor]:
    found = {}
    for segment in layout.segments:
        if segment.name.startswith(GAINS):
            nothing = (0,) * math.prod(segment.shape)
            report = gains.get(segment.name.removeprefix(GAINS), nothing)
            found[segment.name] = torch.tensor(report if len(report) == len(nothing) else nothing)
    return found


def privatized(
    method: Method,
    layout: SumLayout,
    vector: NDArray[np.int64],
    settings: SecureSettings,
    clients: int,
    draw: Draw,
) -> NDArray[np.int64]:
    """Return a client's numbers, clipped and with its share of the sum's noise; a count of clients stays as it is.

    clients: how many add noise for certain, whoever is lost or works for the server. draw: as for
    `federation.privacy.discrete_gaussian.noise`.

    Raises:
        SettingsError: if that share is too little.
    """
    if settings.clip_norm is None or not settings.noise_multiplier:
        return vector
    counts = {name for name, kind in method.sum_groups.items() if kind is SumKind.COUNT}
    is_count = [segment.name.split("/")[0] in counts for segment in layout.segments]
    hidden = ~np.repeat(is_count, [math.prod(segment.shape) for segment in layout.segments])
    numbers = discrete_gaussian.clipped(vector[hidden], settings.clip_norm)
    share = discrete_gaussian.share_of(settings.noise_multiplier, settings.clip_norm, clients)
    result = vector.copy()
    result[hidden] = numbers + discrete_gaussian.noise(len(numbers), share, draw)
    return result


def decoded(layout: SumLayout, total: NDArray[np.int64]) -> Tree:
    """Return a sum of vectors as the method's tree of float64; whole numbers stay whole, below 2⁵³."""
    flat = {}
    for segment, numbers in parts(layout, total):
        if not segment.name.startswith(GAINS):
            part = torch.from_numpy(numbers.copy()).reshape(segment.shape)
            flat[segment.name] = part if segment.steps == 1 else part.double() / segment.steps
    return unflatten(flat)


def summed_gains(layout: SumLayout, total: NDArray[np.int64], groups: int = 1) -> dict[str, list[int]]:
    """Return what the devices' reports add up to in a sum, or in the sums of groups one after the other."""
    return {
        segment.name.removeprefix(GAINS): numbers.tolist()
        for segment, numbers in parts(layout, total.reshape(groups, -1).sum(axis=0))
        if segment.name.startswith(GAINS)
    }


def parts(layout: SumLayout, total: NDArray[np.int64]) -> Iterator[tuple[Segment, NDArray[np.int64]]]:
    """Yield each segment with its numbers in a sum."""
    at = 0
    for segment in layout.segments:
        size = math.prod(segment.shape)
        yield segment, total[at : at + size]
        at += size


def next_state(
    method: Method, state: Tree, layout: SumLayout, total: NDArray[np.int64], clients: Sequence[str], groups: int = 1
) -> Tree:
    """Return the server's next state, of the sum alone, or of the sums of groups one after the other: the server half.

    Whole sums (`SumMethod`) take the place of those before.

    Raises:
        RoundError: if nobody in the sum has weight.
    """
    if isinstance(method, SumMethod):
        state = method.without_contributions(state)
    if groups > 1:
        return _combined(method, state, layout, total.reshape(groups, -1))
    accumulator = method.accumulated(state, decoded(layout, total), clients)
    if not accumulator.weight > 0:
        raise RoundError("a sum needs at least one client with examples; there is none in it")
    return method.finish(state, accumulator)


def _combined(method: Method, state: Tree, layout: SumLayout, totals: NDArray[np.int64]) -> Tree:
    """Combine the means of groups by the method's robust rule, as if each were a client's parameters."""
    like = method.broadcast(state, "")["params"]
    sums = [sums_of_changes(like, decoded(layout, total)) for total in totals]
    means = tuple(mean_of(group.params, group.weight, like) for group in sums if group.weight > 0)
    if not means:
        raise RoundError("a sum needs at least one client with examples; there is none in it")
    return method.finish(state, MeanSums(weight=sum(group.weight for group in sums), clients=means))


def per_mille(share: float) -> int:
    """Return a share as requests have it."""
    return round(1000 * share)


def clipped_share(vectors: Mapping[str, NDArray[np.int64]], layout: SumLayout) -> float:
    """Return the share of numbers that lie at their bounds, where fixed point has cut something off."""
    bounds = np.concatenate([np.full(math.prod(s.shape), s.bound) for s in layout.segments])
    return float(np.mean([np.mean(np.abs(vector) >= bounds) for vector in vectors.values()]))
