"""`python -m aggregator_api federations list|create|delete`."""

from __future__ import annotations

import json
import re
import ssl
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer
from sqlalchemy import select

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.cli.session import (
    HERE,
    ServerPlace,
    cli_errors,
    date,
    get_federation,
    new_app,
    note,
    print_rows,
    reading,
    revoke_accounts,
    writing,
)
from aggregator_api.cli.storage import BY_HAND, DryRunOption, YesOption, confirm_deletion, in_words
from aggregator_api.core.errors import ConfigError, UnavailableError
from aggregator_api.storage.db.models import FederationRow
from federation.plan.plan import read_plan

TIMEOUT_S = 120
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

federations_app = new_app("List, create and delete federations.")


@federations_app.command("list")
def list_federations(place: ServerPlace = HERE) -> list[dict[str, Any]]:
    """List the server's federations.

    Example: `python -m aggregator_api federations list`
    """
    with reading(place) as session:
        rows = [
            {"name": row.name, "status": row.status, "method": row.plan["method"]["name"], "created_at": row.created_at}
            for row in session.scalars(select(FederationRow).order_by(FederationRow.name))
        ]
    shown = {"name": "name", "status": "status", "method": "method", "created_at": "created (UTC)"}
    print_rows(rows, shown, {"created_at": date})
    return rows


@federations_app.command("create")
def create_federation(
    name: Annotated[str, typer.Argument(help="Its name, used in topics and URLs.")],
    plan: Annotated[
        Path, typer.Option("--plan", help="The plan, TOML or JSON; a run's folder contains its plan.json.")
    ],
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="File with an operator's key (default: operator.key in the data folder)."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="The server's port (default: where `serve` listens).")
    ] = None,
    place: ServerPlace = HERE,
) -> None:
    """Create a federation on the running server of this machine; devices can enrol at once.

    Example: `python -m aggregator_api federations create walk --plan plan.toml --data-dir runs/server`
    """
    with cli_errors():
        settings = place.settings()
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name[:80]!r}: a name has letters, digits, . _ -, up to 64, a letter or digit first")
        body = {"name": name, "plan": read_plan(plan).model_dump(mode="json", exclude_unset=True)}
        key = _read_key(key_file or settings.data_dir / OPERATOR_FILE)
        _post(place.url(port), settings.tls_cert_file, key, json.dumps(body).encode())
    typer.echo(f"{name}: created; `tokens create --federation {name}` makes a token for a device")


@federations_app.command("delete")
def delete_federation(
    federation: Annotated[str, typer.Argument(help="A finished or stopped federation.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    place: ServerPlace = HERE,
) -> None:
    """Delete a federation that has ended, with its devices and their accounts, rounds, models and events.

    Audit entries stay. While the server runs, prefer `DELETE /v1/federations/{name}`, which also clears retained
    messages.

    Example: `python -m aggregator_api federations delete walk --dry-run`
    """
    from aggregator_api.maintenance import retention as stored

    with reading(place) as session:
        found = stored.remove_federation(session, get_federation(session, federation), dry_run=True)
    confirm_deletion(found.rows, f"federation {federation!r}", dry_run=dry_run, yes=yes)
    with writing(place) as session:
        found = stored.remove_federation(session, get_federation(session, federation), dry_run=False)
        note(session, "federations.delete", federation=federation, detail=in_words(found.rows))
    with cli_errors():
        settings = place.settings()
        revoke_accounts(settings, federation, found.devices, done="it is deleted here", remedy=BY_HAND)
    typer.echo(f"{federation}: {in_words(found.rows)} deleted; `gc` frees the disk")


def _read_key(path: Path) -> str:
    try:
        key = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII text"
        raise ConfigError(
            f"no operator's key in {path}: {reason}; `serve` writes one at its first start. Name the server's folder "
            f"with --data-dir, or another key with --key-file"
        ) from error
    if not key.isprintable() or not key:
        raise ConfigError(f"no operator's key in {path}: expected one line of text")
    return key


def _post(url: str, certificate: Path | None, key: str, body: bytes) -> None:
    """Create a federation on this machine's server.

    Raises:
        ConfigError: if it refuses.
        UnavailableError: if it doesn't answer.
    """
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = Request(f"{url}/v1/federations", body, headers)
    trust = None
    if url.startswith("https:"):
        trust = ssl.create_default_context(cafile=certificate)
        trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its own certificate, whoever signed it
        trust.check_hostname = False  # it is for the public name
    try:
        urlopen(request, timeout=TIMEOUT_S, context=trust).close()
    except HTTPError as error:
        raise ConfigError(f"the server refuses it: {_detail(error)}") from error
    except (URLError, HTTPException, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(f"no server answers at {url}: {reason}; start it with `serve`") from error


def _detail(error: HTTPError) -> str:
    """Return the server's message, or the HTTP status if the response isn't Gaitway's."""
    try:
        with error:
            return str(json.loads(error.read(100_000))["detail"])[:2000]
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
