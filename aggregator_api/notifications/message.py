"""One notification: what it says, and how it is written for a webhook."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple

from aggregator_api.core.errors import ConfigError

MAX_TEMPLATE_BYTES = 64 << 10
MAX_MESSAGE_CHARS = 2000


class Notification(NamedTuple):
    """What needs attention: `thing` in `state`, told once; `federation` is empty for what is the server's."""

    level: str
    message: str
    federation: str
    thing: str
    state: str
    page: str
    server: str
    at: float

    @property
    def key(self) -> str:
        """Name the thing among all of the server."""
        return f"{self.federation}/{self.thing}"

    @property
    def delivery(self) -> str:
        """Name this telling: the same in every attempt, so that who receives it twice can know."""
        text = json.dumps([self.federation, self.thing, self.state, self.at])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def subject(self) -> str:
        """Say it in a line."""
        where = f" ({self.federation})" if self.federation else ""
        return f"Gaitway {self.level}{where}: {' '.join(self.message.split())}"[:180]

    def values(self) -> dict[str, str]:
        """Return what a template can name."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        shortened = self._replace(message=self.message[:MAX_MESSAGE_CHARS])._asdict()
        return {**shortened, "at": at, "delivery": self.delivery}


def read_template(file: Path | None, form: Literal["json", "text"]) -> Template | None:
    """Read an operator's template; None without one.

    Raises:
        ConfigError: if it cannot be read, names something unknown, or as JSON is none.
    """
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAX_TEMPLATE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"notify_webhook_template_file {file} cannot be read: {error}") from error
    if len(text) > MAX_TEMPLATE_BYTES:
        raise ConfigError(f"notify_webhook_template_file {file} has more than {MAX_TEMPLATE_BYTES:,} characters")
    template, probe = Template(text), Notification("note", 'a "quoted"\nline', "f", "t", "s", "p", "u", 0.0)
    try:
        written = write(probe, template, form)
    except (KeyError, ValueError) as error:
        known = ", ".join(f"${name}" for name in probe.values())
        raise ConfigError(f"notify_webhook_template_file {file}: {error}; known are {known}, and $$ for a $") from error
    if form == "json":
        try:
            json.loads(written)
        except ValueError as error:
            raise ConfigError(
                f"notify_webhook_template_file {file} is no JSON once it is filled in: {error}; put each $name "
                'between quotation marks, such as {"text": "$message"}, or set notify_webhook_format = "text"'
            ) from error
    return template


def write(notification: Notification, template: Template | None, form: Literal["json", "text"]) -> bytes:
    """Write a POST's body; in JSON what is filled in is escaped, so that no message can end its string."""
    values = notification.values()
    if template is None:
        return (json.dumps(values, ensure_ascii=False) if form == "json" else notification.message).encode()
    if form == "json":
        values = {name: json.dumps(value)[1:-1] for name, value in values.items()}
    return template.substitute(values).encode()
