"""Who may say what on which topic, for Mosquitto's dynamic security plugin; everything else is denied.

The embedded broker reads the same rules, by `permits`.
"""

from __future__ import annotations

from typing import Any

from federation.protocol import topics

CONTROL = "$CONTROL/dynamic-security/v1"
"""Where the plugin takes commands; its answers come on `<CONTROL>/response`, to the asker alone."""

SERVER_ROLE = "gaitway-server"
ADMIN_ROLE = "gaitway-accounts"

SEND, RECEIVE, SUBSCRIBE = "publishClientSend", "publishClientReceive", "subscribe"
"""What a rule's `acltype` is, or begins with."""

_EVERY_DEVICE = f"{topics.ROOT}/+/devices/+"

DENIED = {"publishClientSend": False, "publishClientReceive": False, "subscribe": False, "unsubscribe": True}
"""What holds where no role says otherwise; leaving a topic harms nobody."""


def device_role(federation: str, device: str) -> list[dict[str, Any]]:
    """Return the rules of one device: its own status and uploads, and what the server says to it or to all.

    Raises:
        WireError: for names outside the protocol, wildcards among them.
    """
    speaks = [topics.status(federation, device), topics.update(federation, device, "any").removesuffix("any") + "#"]
    heard = (topics.invitation, topics.offer, topics.ack, topics.notice)
    hears = [topics.announce(federation), *(topic(federation, device) for topic in heard)]
    return _rules(speaks, hears, "subscribeLiteral")


def server_role() -> list[dict[str, Any]]:
    """Return the rules of the server: it hears every device, and speaks to each and to all.

    It may also speak on the devices' own topics, to remove what they had the broker retain.
    """
    kinds = ("invitation", "offer", "ack", "notice")
    speaks = [f"{topics.ROOT}/+/announce", *(f"{_EVERY_DEVICE}/{kind}" for kind in kinds)]
    speaks += [topics.all_statuses(), topics.all_updates()]
    return _rules(speaks, [topics.all_statuses(), topics.all_updates()], "subscribePattern")


def admin_role() -> list[dict[str, Any]]:
    """Return the rules of who manages the accounts: the plugin's control topics, and no device's."""
    return _rules([CONTROL], [f"{CONTROL}/response"], "subscribeLiteral")


def permits(rules: list[dict[str, Any]], kind: str, topic: str) -> bool:
    """Return whether rules let their holder `SEND` on a topic, `RECEIVE` from it, or `SUBSCRIBE` to such a filter."""
    return any(rule["acltype"].startswith(kind) and _covers(rule["topic"], topic) for rule in rules)


def _covers(pattern: str, topic: str) -> bool:
    levels, parts = pattern.split("/"), topic.split("/")
    if levels[-1] == "#":
        levels.pop()
        parts = parts[: len(levels)]
    return len(levels) == len(parts) and all(
        level == part or (level == "+" and part != "#") for level, part in zip(levels, parts, strict=True)
    )


def _rules(speaks: list[str], hears: list[str], subscribe: str) -> list[dict[str, Any]]:
    kinds = [(SEND, topic) for topic in speaks]
    kinds += [(kind, topic) for topic in hears for kind in (subscribe, RECEIVE)]
    return [{"acltype": kind, "topic": topic, "priority": 0, "allow": True} for kind, topic in kinds]
