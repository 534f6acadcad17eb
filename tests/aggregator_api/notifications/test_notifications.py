"""Notifications: to a real HTTPS receiver and a real mail server, once for each thing and state."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings, load
from aggregator_api.notifications import attention
from aggregator_api.notifications.channels import Email, Notification, Webhook, channels_of
from aggregator_api.notifications.notifier import RESOLVE_S, RETRY_S, Notifier
from aggregator_api.operations.counts import deliveries
from aggregator_api.storage.db.models import AuditRow, DeviceRow
from aggregator_api.transport.mqtt.mosquitto.folders import issue_for_server
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.aggregator_api.notifications.receivers import Hook, MailServer, running, server_context

SECRET = "a secret of some length"
TOLD = Notification(
    "warning", 'Quoted "words"\nand a $sign', "walks", "rounds", "warning", "http://s/f", "http://s", 5.0
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    issue_for_server(made, ["localhost"], days=2)
    (made / "secret").write_text(f"{SECRET}\n")
    (made / "password").write_text("pass word\n")
    return made


@pytest.fixture
def hook(folder: Path) -> Iterator[Hook]:
    server = Hook(server_context(folder / "server" / "https.pem", folder / "server" / "https.key"))
    with running(server):
        yield server


@pytest.fixture
def mail(folder: Path) -> Iterator[MailServer]:
    server = MailServer(server_context(folder / "server" / "https.pem", folder / "server" / "https.key"))
    with running(server):
        yield server


def by_webhook(hook: Hook, folder: Path, **more: Any) -> dict[str, Any]:
    trust = {"notify_ca_file": folder / "ca.pem", "notify_webhook_url": hook.url, "notify_timeout_s": 5.0}
    return {**trust, "notify_webhook_secret_file": folder / "secret", **more}


def by_mail(mail: MailServer, folder: Path) -> dict[str, Any]:
    login = {"notify_smtp_username": "gaitway", "notify_smtp_password_file": folder / "password"}
    where = {"notify_smtp_host": "localhost", "notify_smtp_port": mail.port, "notify_ca_file": folder / "ca.pem"}
    return {
        **login,
        **where,
        "notify_email_to": ("ops@example.org", "b@example.org"),
        "notify_email_from": "g@example.org",
    }


def test_a_webhook_is_signed_and_a_template_cannot_be_broken_out_of(hook: Hook, folder: Path) -> None:
    (folder / "template.json").write_text('{"text": "$level: $message", "at": "$at", "price": "$$5"}')
    settings = Settings(**by_webhook(hook, folder), notify_webhook_template_file=folder / "template.json")
    assert Webhook(settings).deliver(TOLD) == ("", False)
    (posted,) = hook.posted
    assert posted.path == "/hook?token=1"
    assert json.loads(posted.body) == {"text": f"warning: {TOLD.message}", "at": "1970-01-01T00:00:05Z", "price": "$5"}
    at, _, signed = posted.headers["X-Gaitway-Signature"].removeprefix("t=").partition(",v1=")
    assert abs(time.time() - int(at)) < 60
    assert signed == hmac.new(SECRET.encode(), f"{at}.".encode() + posted.body, hashlib.sha256).hexdigest()
    assert posted.headers["X-Gaitway-Delivery"] == TOLD.delivery

    hook.statuses = [302]
    refused = Webhook(settings).deliver(TOLD)
    assert (len(hook.posted), refused.is_final) == (2, True), "a redirection is not followed"
    assert "token" not in refused.reason
    untrusted = Webhook(Settings(**by_webhook(hook, folder, notify_ca_file=None))).deliver(TOLD)
    assert "certificate verify failed" in untrusted.reason.lower()
    assert len(hook.posted) == 2


def test_a_mail_goes_out_over_tls_with_one_subject_line(mail: MailServer, folder: Path) -> None:
    assert Email(Settings(**by_mail(mail, folder))).deliver(TOLD).reason == ""
    (sent,) = mail.mails
    head, _, body = sent.decode().partition("\r\n\r\n")
    assert 'Subject: Gaitway warning (walks): Quoted "words" and a $sign' in head
    assert "To: ops@example.org, b@example.org" in head
    assert "and a $sign" in body
    assert base64.b64decode(mail.logins[0]).split(b"\0")[1:] == [b"gaitway", b"pass word"]


class Broken:
    """A server whose disk is full, or is not."""

    def __init__(self) -> None:
        self.wrong = ["the disk is full: 3 bytes are left"]

    def problems(self) -> list[str]:
        return self.wrong

    def certificates(self) -> dict[str, float]:
        return {}


def test_each_thing_is_told_once_in_each_state_and_again_after_it_was_over(
    hook: Hook, folder: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path / "data", tiny_plan(), **by_webhook(hook, folder, notify_attempts=2))
    database, settings, server = bench.runtime.database, bench.runtime.settings, Broken()
    (channel,) = channels_of(settings)
    before = deliveries.counts()

    def notifier() -> Notifier:
        return Notifier(settings, channel, database, server, bench.runtime.leadership, pause_s=0.01)

    def told() -> list[tuple[str, str]]:
        return [(each["federation"], each["thing"]) for each in (json.loads(one.body) for one in hook.posted)]

    bench.say("a", "ready")
    with database.write() as session:
        session.execute(update(DeviceRow).values(enrolment="pending"))
    first, disk, waits = notifier(), ("", "the disk is full"), (FEDERATION, "waiting devices")
    first.look(1000.0)
    assert told() == [], "it may be over in a minute"
    hook.statuses = [500, 200]
    first.look(1060.0)
    assert told() == [disk, disk, waits], "one attempt failed"
    assert hook.posted[0].headers["X-Gaitway-Delivery"] == hook.posted[1].headers["X-Gaitway-Delivery"]
    server.wrong = ["the disk is full: 2 bytes are left"]
    for at in (1090.0, 5000.0):
        first.look(at)
    restarted = notifier()
    for at in (6000.0, 6100.0):
        restarted.look(at)
    assert len(told()) == 3, "its figures are no other state, and a restart forgets nothing"

    server.wrong = []
    for at in (7000.0, 7000.0 + RESOLVE_S):
        restarted.look(at)
    server.wrong, hook.statuses = ["the disk is full: 1 byte is left"], [400, 200]
    for at in (8000.0, 8060.0, 8061.0):
        restarted.look(at)
    assert told()[3:] == [disk], "a refusal is final for now"
    with database.read() as session:
        overview = [item.message for item in attention.of_server(session, server, 8120.0)]
    assert any("by webhook was not taken, 1 minute ago: localhost answered 400." in words for words in overview)
    assert b'gaitway_notifications_total{channel="webhook",outcome="failed"}' in bench.runtime.metrics.render()
    restarted.look(8061.0 + RETRY_S)
    assert told()[3:] == [disk, disk], "of its own failure a channel tells nothing"
    assert deliveries.counts()["webhook", "failed"] - before.get(("webhook", "failed"), 0) == 1
    assert deliveries.counts()["webhook", "sent"] - before.get(("webhook", "sent"), 0) == 3
    with database.read() as session:
        assert not any("by webhook" in item.message for item in attention.of_server(session, server, 9000.0))
        rows = session.scalars(
            select(AuditRow).where(AuditRow.action.startswith("notifications.")).order_by(AuditRow.id)
        )
        kinds = [row.action.partition(".")[2] for row in rows]
    bench.stop()
    assert kinds == ["send", "send", "resolve", "send", "fail", "send"]


def test_the_command_tries_every_destination(hook: Hook, mail: MailServer, folder: Path, tmp_path: Path) -> None:
    lines = {"data_dir": tmp_path / "data", **by_webhook(hook, folder), **by_mail(mail, folder)}
    toml = tmp_path / "server.toml"
    toml.write_text("".join(f"{name} = {json.dumps(value, default=str)}\n" for name, value in lines.items()))
    run = CliRunner().invoke(app, ["notify", "test", "--config", str(toml)])
    assert (run.exit_code, run.stdout) == (0, "webhook: delivered\nemail: delivered\n")
    hook.statuses = [404]
    run = CliRunner().invoke(app, ["notify", "test", "--config", str(toml)])
    assert (run.exit_code, run.stdout) == (1, "webhook: localhost answered 404\nemail: delivered\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"notify_webhook_url": "http://hooks.example/x"}, "https://…"),
        ({"notify_webhook_url": "https://user:word@hooks.example/"}, "expected a URL"),
        ({"notify_email_to": "a@b.c"}, "needs notify_email_from"),
        ({"notify_smtp_host": "mail.example", "notify_smtp_security": "none"}, "another machine"),
        ({"notify_smtp_username": "me"}, "go together"),
        ({"notify_email_to": "a@b.c\nBcc: d@e.f"}, "isn't an e-mail address"),
    ],
)
def test_settings_that_are_unsafe_or_half_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(None, **given)


@pytest.mark.parametrize(
    ("text", "said"), [("{$message}", "no JSON"), ('"$mesage"', "known are"), ('"$"', "known are")]
)
def test_a_template_that_cannot_be_filled_in_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "template"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        channels_of(Settings(notify_webhook_url="https://h.example/", notify_webhook_template_file=file))
