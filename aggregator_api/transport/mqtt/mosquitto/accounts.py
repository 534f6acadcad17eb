"""The first accounts of a broker, as the file that Mosquitto's dynamic security plugin starts from."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any, NamedTuple

from aggregator_api.transport.mqtt.mosquitto import roles

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
        "defaultACLAccess": roles.DENIED,
        "clients": [_client(server), _client(admin)],
        "groups": [],
        "roles": [
            {"rolename": server.role, "acls": roles.server_role()},
            {"rolename": admin.role, "acls": roles.admin_role()},
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
