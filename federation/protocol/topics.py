"""MQTT topics gaitway/v1/{federation}/…; topics contain the device's id, so that a broker's ACL can restrict it."""

from __future__ import annotations

import re
from typing import NamedTuple

from federation.errors import WireError

ROOT = "gaitway/v1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def announce(federation: str) -> str:
    """Name the retained topic that says what the federation is doing now."""
    return f"{ROOT}/{_checked(federation)}/announce"


def status(federation: str, device: str) -> str:
    """Name the topic of a device's last word, or its last will."""
    return f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/status"


def ack(federation: str, device: str) -> str:
    """Name the topic of the server's answers to one device."""
    return f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/ack"


def invitation(federation: str, device: str) -> str:
    """Name the retained topic of the latest round that one device is invited to, and of the model that it gets."""
    return f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/invitation"


def offer(federation: str, device: str) -> str:
    """Name the retained topic of the latest rollout whose model one device gets as a member of a group."""
    return f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/offer"


def notice(federation: str, device: str) -> str:
    """Name the topic of what the server says to one run of a device's program."""
    return f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/notice"


def update(federation: str, device: str, update_id: str, *step: str | int) -> str:
    """Name the topic of one part of an upload: step is ("begin",), ("chunk", n) or ("end",)."""
    base = f"{ROOT}/{_checked(federation)}/devices/{_checked(device)}/update/{_checked(update_id)}"
    return "/".join([base, *map(str, step)])


def all_statuses(federation: str = "+") -> str:
    """Filter for every device's status."""
    return f"{ROOT}/{federation}/devices/+/status"


def all_updates(federation: str = "+") -> str:
    """Filter for every device's uploads."""
    return f"{ROOT}/{federation}/devices/+/update/#"


def federation_of(topic: str) -> str:
    """Return the federation that a topic names, unchecked; empty if it names none."""
    parts = topic.split("/", 3)
    return parts[2] if len(parts) > 2 else ""


class DeviceTopic(NamedTuple):
    """A parsed device topic: `kind` is status, begin, chunk or end."""

    federation: str
    device: str
    kind: str
    update_id: str = ""
    chunk: int = -1


def parse(topic: str) -> DeviceTopic:
    """Read a topic that a device published on.

    Raises:
        WireError: for a topic outside the protocol.
    """
    parts = topic.split("/")
    if len(parts) >= 6 and "/".join(parts[:2]) == ROOT and parts[3] == "devices":
        federation, device, rest = parts[2], parts[4], parts[5:]
        if all(_NAME.fullmatch(name) for name in (federation, device)):
            found = _device_topic(federation, device, rest)
            if found:
                return found
    raise WireError(f"topic {topic[:200]!r} is not one of the protocol's")


def is_device_topic(topic: str) -> bool:
    """Whether only devices publish on a topic; amqtt hands out others unasked, such as announcements."""
    try:
        parse(topic)
    except WireError:
        return False
    return True


def _device_topic(federation: str, device: str, rest: list[str]) -> DeviceTopic | None:
    match rest:
        case ["status"]:
            return DeviceTopic(federation, device, "status")
        case ["update", update_id, "begin" | "end" as kind] if _NAME.fullmatch(update_id):
            return DeviceTopic(federation, device, kind, update_id)
        case ["update", update_id, "chunk", n] if _NAME.fullmatch(update_id) and re.fullmatch(r"\d{1,7}", n):
            return DeviceTopic(federation, device, "chunk", update_id, int(n))
    return None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise WireError(f"name {name[:80]!r} may contain only letters, digits, '.', '_' and '-', at most 64 of them")
    return name
