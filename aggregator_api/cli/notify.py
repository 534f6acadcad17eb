"""`python -m aggregator_api notify test`: whether the operator's webhook and mail server take a notification."""

from __future__ import annotations

import time

import typer

from aggregator_api.cli.session import ConfigOption, DataOption, cli_errors, fail, new_app
from aggregator_api.core.settings import load
from gaitway.errors import ExitCode

app = new_app("Tell the operator what needs attention: by webhook and e-mail, as the settings say.")


@app.callback()
def notify() -> None:
    """Tell the operator what needs attention: by webhook and e-mail, as the settings say."""


@app.command("test")
def send_test(data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Send a test to each destination once, and print the result.

    With notify_webhook_secret_file, a POST has the header X-Gaitway-Signature: t=TIME,v1=HEX, an HMAC-SHA256 of the
    time in Unix seconds, a dot and the body. Receivers should refuse old times. X-Gaitway-Delivery is the same in each
    attempt. The server follows no redirects, and waits 15 minutes after notify_attempts failures.

    Example: `python -m aggregator_api notify test --config server.toml`
    """
    from aggregator_api.notifications.channels import channels_of
    from aggregator_api.notifications.message import Notification

    with cli_errors():
        settings = load(config, data_dir=data_dir)
        channels = channels_of(settings)
    if not channels:
        raise fail("nobody is told: set notify_webhook_url, or notify_email_to with notify_smtp_host")
    base = settings.public_url or settings.own_url
    words = "This is a test: notifications of this server arrive here."
    failed = False
    for channel in channels:
        result = channel.deliver(Notification("note", words, "", "test", "test", f"{base}/", base, time.time()))
        failed = failed or bool(result.reason)
        typer.echo(f"{channel.name}: {result.reason or 'delivered'}")
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)
