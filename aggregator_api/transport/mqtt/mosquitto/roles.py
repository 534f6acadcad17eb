"""The broker's roles (who may publish and read which topics), and its initial accounts.

They are written for Mosquitto's dynamic security plugin; everything else is denied.
The embedded broker reads the same rules, by `permits`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any, NamedTuple

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


ITERATIONS = 10_000
"""Of PBKDF2; the passwords are random, so this only slows down a guess that cannot succeed anyway.

Mosquitto checks a password in its one thread: ten thousand take some milliseconds of every connection.
"""
SALT_BYTES = 12
HASH_BYTES = 64


class Account(NamedTuple):
    """A user of the broker and its password in clear, which is shown once and never stored here."""

    username: str
    password: str
    role: str


def new_password() -> str:
    """Draw 256 random bits, as text that needs no quoting anywhere."""
    return secrets.token_urlsafe(32)


def security_file(server: Account, admin: Account) -> str:
    """Write the plugin's JSON: two accounts with hashed passwords, their roles, and nothing for anybody else."""
    described = {
        "defaultACLAccess": DENIED,
        "clients": [_client(server), _client(admin)],
        "groups": [],
        "roles": [
            {"rolename": server.role, "acls": server_role()},
            {"rolename": admin.role, "acls": admin_role()},
        ],
    }
    return json.dumps(described, indent=2) + "\n"


def _client(account: Account) -> dict[str, Any]:
    salt = secrets.token_bytes(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", account.password.encode(), salt, ITERATIONS, HASH_BYTES)
    return {
        "username": account.username,
        "roles": [{"rolename": account.role, "priority": 0}],
        "password": base64.b64encode(digest).decode(),
        "salt": base64.b64encode(salt).decode(),
        "iterations": ITERATIONS,
    }
