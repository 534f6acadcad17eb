"""Combines data sets into one federation: all their clients, with one name for activities of the same meaning.

`combined` is the Combined set of Ek et al. 2024: HHAR and RealWorld 2016, 141 clients, nine activities. `union` is its
available stand-in: MotionSense, UCI HAR and SP-SW-HAR, 100 clients with different labels, devices and body places.
`pretraining` contains the sets that Ek et al. pretrain on. Combine any others by joining their names with `+`, as in
`motionsense+ucihar`.

Each member is prepared with its own preset; given settings that differ from the defaults apply to all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import PipelineError, SettingsError
from har_pipeline.recording import Categorical, Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.streaming.windows import WindowedDataset

MERGED: dict[str, tuple[str, ...]] = {
    "walking": ("wlk", "WALKING", "walk", "WAL"),
    "jogging": ("jog", "JOG", "running", "run"),
    "upstairs": ("ups", "WALKING_UPSTAIRS", "stairsup", "climbingup", "ascending_stairs", "STU"),
    "downstairs": ("dws", "WALKING_DOWNSTAIRS", "stairsdown", "climbingdown", "descending_stairs", "STN"),
    "sitting": ("sit", "SITTING", "SEATED", "SIT"),
    "standing": ("std", "STANDING", "stand", "STD"),
    "lying": ("LAYING", "LYI"),
    "turning": ("TURNING",),
    "sitting_down": ("SITTING_DOWN", "SCH"),
    "standing_up": ("STANDING_UP", "CHU"),
    "jumping": ("JUM",),
    "cycling": ("bike",),
    "driving": ("car_driving", "car"),
    "car_step_in": ("CSI",),
    "car_step_out": ("CSO",),
    "fall_forward": ("FOL",),
    "fall_on_knees": ("FKL",),
    "fall_backward": ("BSC",),
    "fall_sideward": ("SDL",),
}
"""Common names of activities, with the names that data sets publish; others keep their names.

PAMAP2's running was jogging outdoors, hence one class. Sitting down and standing up are movements of seconds; sitting
and standing are postures. SHL's `still` is either posture and stays separate.
"""


class Combination(NamedTuple):
    """Names of the data sets, and the common name of each published activity."""

    members: tuple[str, ...]
    synonyms: Mapping[str, str]

    def common(self, label: str) -> str:
        """Return an activity's name in the combination."""
        return self.synonyms.get(label, label)


SYNONYMS = {published: common for common, names in MERGED.items() for published in names}
COMBINATIONS = {
    "combined": Combination(
        ("hhar", "realworld"),
        {
            "sit": "sitting",
            "stand": "standing",
            "walk": "walking",
            "stairsup": "climbingup",
            "stairsdown": "climbingdown",
        },
    ),
    "union": Combination(("motionsense", "ucihar", "spsw"), SYNONYMS),
    "pretraining": Combination(("pamap2", "motionsense", "mobiact", "ucihar", "shl"), SYNONYMS),
}


def combination_of(name: str) -> Combination | None:
    """Return a combination by its name or by names joined with `+`; None for a single data set.

    Raises SettingsError if a member is named twice.
    """
    if name in COMBINATIONS or "+" not in name:
        return COMBINATIONS.get(name)
    members = tuple(name.split("+"))
    if len(set(members)) < len(members):
        raise SettingsError(f"{name} names a data set twice; expected different names joined by +")
    return Combination(members, SYNONYMS)


def member_options(name: str, members: Sequence[str], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of each member; those of a combination are given by member, {"hhar": {…}}.

    Raises SettingsError for an unknown member, or options that aren't a mapping.
    """
    for member, given in (options or {}).items():
        if member not in members:
            raise SettingsError(
                f"{name} takes options by member, as in {{{members[0]!r}: {{…}}}}, got {member!r}; "
                f"{did_you_mean(member, members)}"
            )
        if not isinstance(given, Mapping):
            raise SettingsError(f"{name}: the options of its member {member} are {given!r}; expected a mapping")
    return {member: dict((options or {}).get(member, {})) for member in members}


def member_settings(preset: PipelineSettings, given: PipelineSettings) -> PipelineSettings:
    """Apply what `given` changes from the defaults to a member's preset."""
    defaults = asdict(PipelineSettings())
    return replace(preset, **{name: value for name, value in asdict(given).items() if value != defaults[name]})


@contextmanager
def error_context(name: str, member: str) -> Iterator[None]:
    """Add the combination's member to errors."""
    try:
        yield
    except PipelineError as error:
        raise type(error)(f"{name}, member {member}: {error}") from error


def united_labels(combination: Combination, labels: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the union of the members' labels under their common names, sorted."""
    return tuple(sorted({combination.common(label) for member_labels in labels for label in member_labels}))


def adopt(combination: Combination, name: str, labels: tuple[str, ...], member: WindowedDataset) -> WindowedDataset:
    """Give a member the combination's labels and client ids: `a_nexus4` of hhar becomes `hhar-a_nexus4`."""
    # The last entry is that of windows without a label, -1.
    to_united = np.array([*(labels.index(combination.common(label)) for label in member.labels), -1])
    clients, origins = {}, {}
    for client, windows in member.clients.items():
        united = f"{member.name}-{client}"
        clients[united] = replace(windows, client=united, y=to_united[windows.y])
        origin = member.origin(client)
        origins[united] = origin._replace(user=f"{member.name}-{origin.user}")
    rates = {f"{member.name}-{client}": rate for client, rate in member.rates_hz.items()}
    findings = tuple(finding._replace(client=f"{member.name}-{finding.client}") for finding in member.findings)
    return WindowedDataset(name, labels, clients, member.settings, origins, rates, findings)


def unite(name: str, members: Sequence[WindowedDataset], settings: PipelineSettings) -> WindowedDataset:
    """Merge adopted members under `settings`; their windows may have different strides.

    Raises SettingsError if a member's windows have another length or rate.
    """
    for member in members:
        if (member.settings.window, member.settings.rate_hz) != (settings.window, settings.rate_hz):
            raise SettingsError(
                f"{name}: windows of {settings.window} samples at {settings.rate_hz} Hz expected, but those of "
                f"{next(iter(member.clients))} have {member.settings.window} at {member.settings.rate_hz} Hz"
            )
    clients = {client: windows for member in members for client, windows in member.clients.items()}
    origins = {client: origin for member in members for client, origin in member.origins.items()}
    rates = {client: rate for member in members for client, rate in member.rates_hz.items()}
    findings = tuple(finding for member in members for finding in member.findings)
    ordered = dict(sorted(clients.items()))
    return WindowedDataset(name, members[0].labels, ordered, settings, origins, rates, findings)


def rename(combination: Combination, member: str, recording: Recording) -> Recording:
    """Give a member's recording the client id and the activity names of the combination."""
    given = recording.activity
    activity: str | np.ndarray | Categorical
    if isinstance(given, str):
        activity = combination.common(given)
    else:
        words = given if isinstance(given, Categorical) else Categorical.of(given)
        renamed = Categorical(np.array([combination.common(name) for name in words.names.tolist()]), words.codes)
        activity = renamed if given is words else np.asarray(renamed)
    return recording._replace(client=f"{member}-{recording.client}", activity=activity)


def member_clients(name: str, members: Sequence[str], clients: Sequence[str] | None) -> dict[str, list[str] | None]:
    """Return the members with chosen clients, with those clients' original ids (None: all).

    Raises SettingsError for an id that belongs to no member.
    """
    if clients is None:
        return dict.fromkeys(members)
    chosen: dict[str, list[str] | None] = {}
    for client in clients:
        member, dash, own = client.partition("-")
        if not dash or member not in members:
            raise SettingsError(f"{name} has no client {client!r}; they are called {{member}}-{{client}}: {members}")
        chosen[member] = [*(chosen.get(member) or []), own]
    return chosen
