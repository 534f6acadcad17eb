"""Every route, command and column that access depends on is among the ways by which it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import text
from typer.main import get_command

from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import Settings, sqlite_url
from aggregator_api.http.api import openapi
from aggregator_api.http.app import create_app
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Base
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.storage.ends_of_access import (
    WAYS,
    DeviceDeleted,
    DeviceDeletedByCommand,
    DeviceKeyRotated,
    DeviceRevoked,
    DeviceRevokedByCommand,
    KeyOfADeletedFederation,
    KeyPairReplaced,
    KeyRevoked,
    KeyRevokedByCommand,
    SessionOfARevokedKey,
    TokenOfARevokedDevice,
    TokenRevoked,
    TokenUsed,
)

NOTHING_ENDS = {
    *(
        "POST /v1/checkpoints",
        "POST /v1/enrol/token",
        "POST /v1/federations",
        "PATCH /v1/federations/{name}",
        "POST /v1/keys",
    ),
    *("POST /v1/keys/{id}/confirm", "POST /v1/federations/{name}/enrolment-tokens"),
    "POST /v1/federations/{name}/enrolment-tokens/{token}/confirm",
    *(f"POST /v1/federations/{{name}}/{word}" for word in ("pause", "resume", "stop", "rollouts")),
    *(f"POST /v1/federations/{{name}}/rollouts/{{number}}/{word}" for word in ("pause", "resume", "halt")),
    *("PUT /v1/federations/{name}/aliases/{alias}", "DELETE /v1/federations/{name}/aliases/{alias}"),
    "DELETE /v1/federations/{name}/models/{version}",
    *(
        f"{word} /v1/federations/{{name}}/devices/{{device}}/" + path
        for word, path in (
            *(
                ("POST", "approve"),
                ("POST", "reinstate"),
                ("POST", "withdraw"),
                ("PUT", "tags"),
                ("POST", "status"),
                ("POST", "update/{update_id}/begin"),
            ),
            *(("PUT", "update/{update_id}/chunk/{n}"), ("POST", "update/{update_id}/end")),
        )
    ),
}
"""What a program may ask for, and no access ends by it."""
ENDS = {
    "POST /v1/enrol": (TokenUsed, KeyPairReplaced),
    "POST /v1/enrol/claim": (DeviceKeyRotated,),
    "POST /v1/keys/{id}/revoke": (KeyRevoked, SessionOfARevokedKey),
    "DELETE /v1/federations/{name}": (KeyOfADeletedFederation,),
    "DELETE /v1/federations/{name}/devices/{device}": (DeviceDeleted,),
    "POST /v1/federations/{name}/devices/{device}/revoke": (DeviceRevoked, TokenOfARevokedDevice),
    "POST /v1/federations/{name}/enrolment-tokens/{token}/revoke": (TokenRevoked,),
}
NOTHING_ENDS_BY_COMMAND = {
    *(
        "serve",
        "broker",
        "migrate",
        "gc",
        "openapi",
        "asyncapi",
        "broker-config",
        "broker-passwords",
        "server-certificate",
    ),
    *(
        "login-link",
        "backup",
        "restore",
        "fsck",
        "new-epoch",
        "new-ledger",
        "keys list",
        "tokens list",
        "keys create",
        "keys confirm",
    ),
    *("tokens create", "tokens confirm", "audit list", "audit export", "audit verify", "devices list"),
    *(
        "devices approve",
        "devices reinstate",
        "devices withdraw",
        "devices tag",
        "devices enrol",
        "retention apply",
        "federations list",
        "federations create",
        "versions list",
        "versions delete",
    ),
    *("vouch key", "vouch list", "vouch sign", "vouch import"),
    *("rollouts list", "rollouts start", "rollouts pause", "rollouts resume", "rollouts halt", "notify test"),
}
ENDS_BY_COMMAND = {
    "keys revoke": (KeyRevokedByCommand,),
    "devices revoke": (DeviceRevokedByCommand,),
    "devices delete": (DeviceDeletedByCommand,),
    "federations delete": (KeyOfADeletedFederation,),
}
COLUMNS = {
    "credentials": {"revoked_at", "held_at", "expires_at"},
    "enrolment_tokens": {"used_at", "revoked_at", "held_at", "expires_at"},
    "devices": {"enrolment", "public_key"},
}
"""What access depends on; `held_at` only a restore sets, `expires_at` nobody changes."""
OTHER_COLUMNS = {
    "credentials": {
        *("id", "prefix", "name", "scopes", "federation_id", "device_id", "secret_sha256", "created_at", "used_at")
    },
    "enrolment_tokens": {
        *("id", "federation_id", "token_sha256", "device", "auto_approve", "tags", "created_at", "used_by")
    },
    "devices": {
        *("id", "federation_id", "name", "state", "examples", "detail", "enrolled_at", "seen_at", "claimed_at"),
        *("cloned_at", "adoption", "adoption_reason"),
        # a suspended device keeps its credentials; restored without its suspension, it is suspended again
        *("suspended_at", "suspension_reason", "refused_updates"),
        # a silent device keeps its credentials; restored without its rest, it is left out again
        *("missed_rounds", "left_out_until"),
        # what a device says of the plan; and its voucher, whose end devices hold against a list of their own
        *("plan_refusal", "refused_model", "model_refusal", "voucher", "voucher_expires_at"),
    },
}


def test_every_route_that_ends_an_access_is_among_the_ways() -> None:
    described = openapi.describe(create_app(Settings(), Wires))["paths"]
    asked = {
        f"{method.upper()} {path}"
        for path, methods in described.items()
        for method in methods
        if method not in ("get", "head")
    }
    assert asked == NOTHING_ENDS | set(ENDS)
    assert {way for ways in ENDS.values() for way in ways} <= set(WAYS)


def test_every_command_that_ends_an_access_is_among_the_ways() -> None:
    assert set(commands(get_command(cli))) == NOTHING_ENDS_BY_COMMAND | set(ENDS_BY_COMMAND)
    assert {way for ways in ENDS_BY_COMMAND.values() for way in ways} <= set(WAYS)


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Name every command below a group of them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_column_that_access_depends_on_is_known() -> None:
    """A new one, such as a device's suspension, needs a trigger if what it ends must survive a restore."""
    for table, columns in COLUMNS.items():
        assert set(Base.metadata.tables[table].columns.keys()) == columns | OTHER_COLUMNS[table]


def test_the_triggers_are_there_after_every_migration(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "new.sqlite3"))
    database.migrate()
    with database.read() as session:
        found = session.scalars(text("SELECT tbl_name || ' ' || name FROM sqlite_master WHERE type = 'trigger'")).all()
    database.close()
    assert {each for each in found if not each.startswith("audit")} == {
        *("credentials key_revoked", "credentials key_deleted"),
        *("enrolment_tokens token_used", "enrolment_tokens token_revoked", "enrolment_tokens token_deleted"),
        *("devices device_revoked", "devices device_key_replaced", "devices device_deleted"),
    }


# ---- without the ledger
