"""Settings of notifications: a webhook, e-mail, both or none (the default); part of `Settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from aggregator_api.core.ports import is_loopback
from gaitway.secret_fields import SecretFields
from gaitway.strict_numbers import TypedNumbers

MAX_RECIPIENTS = 20
SMTP_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class NotificationSettings(SecretFields, TypedNumbers, BaseSettings):
    """Unset destinations get nothing; addresses come only from the operator, never from a request."""

    notify_level: Literal["error", "warning", "note"] = Field(
        default="warning", description="minimum urgency; less urgent messages stay on the overview"
    )
    notify_timeout_s: float = Field(default=10.0, gt=0, le=60, description="total time limit of one delivery")
    notify_attempts: int = Field(default=4, ge=1, le=8, description="attempts at one delivery, with growing pauses")
    notify_ca_file: Path | None = Field(
        default=None, description="trusted certificates for webhook and mail server, PEM; none: the system's"
    )
    notify_webhook_url: SecretStr | None = Field(
        default=None,
        max_length=2000,
        description="gets a POST for each thing that needs attention; https, or http to this machine. If it contains "
        "a secret, set it as GAITWAY_NOTIFY_WEBHOOK_URL. none: off",
    )
    notify_webhook_format: Literal["json", "text"] = "json"
    notify_webhook_template_file: Path | None = Field(
        default=None,
        description="body of the POST, with $message, $level, $federation, $thing, $state, $page, $server, $delivery "
        "and $at; none: JSON with all of them, or the message as text",
    )
    notify_webhook_secret_file: Path | None = Field(
        default=None, description="signs each POST (HMAC-SHA256, header X-Gaitway-Signature); none: no signature"
    )
    notify_email_to: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), max_length=MAX_RECIPIENTS, description="comma-separated in the environment; none: off"
    )
    notify_email_from: str | None = None
    notify_smtp_host: str | None = None
    notify_smtp_port: int | None = Field(default=None, ge=1, le=65_535, description="none: 587, with tls 465")
    notify_smtp_security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="none: to a mail server on this machine alone"
    )
    notify_smtp_username: str | None = None
    notify_smtp_password_file: Path | None = None

    @field_validator("notify_email_to", mode="before")
    @classmethod
    def _split_addresses(cls, given: Any) -> Any:
        return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given

    @field_validator("notify_email_to", "notify_email_from")
    @classmethod
    def _are_addresses(cls, given: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for address in (given,) if isinstance(given, str) else given or ():
            name, at, host = address.rpartition("@")
            if not (name and at and host) or not address.isascii() or not address.isprintable() or " " in address:
                raise ValueError(f"{address!r} isn't an e-mail address; expected one such as ops@example.org")
        return given

    @field_validator("notify_webhook_url")
    @classmethod
    def _is_safe(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is None:
            return None
        given = secret.get_secret_value()
        try:
            parts = urlsplit(given)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        plain = given.isascii() and given.isprintable() and not set(given) & set(' "<>\\^`{|}')
        if not host or not plain or parts.username or parts.password:
            raise ValueError("expected a URL such as https://hooks.example/T0/B0")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
            raise ValueError("expected https://…; http:// is for this machine alone")
        return secret

    @model_validator(mode="after")
    def _mail_has_what_it_needs(self) -> NotificationSettings:
        if self.notify_email_to and not (self.notify_email_from and self.notify_smtp_host):
            raise ValueError("notify_email_to needs notify_email_from and notify_smtp_host")
        if self.notify_smtp_security == "none" and self.notify_smtp_host and not is_loopback(self.notify_smtp_host):
            host = self.notify_smtp_host
            raise ValueError(f"notify_smtp_security is none, and {host} is another machine; expected starttls or tls")
        if (self.notify_smtp_username is None) != (self.notify_smtp_password_file is None):
            raise ValueError("notify_smtp_username and notify_smtp_password_file go together; give both, or neither")
        return self

    @property
    def smtp_port(self) -> int:
        """The mail server's port."""
        return self.notify_smtp_port or SMTP_PORTS[self.notify_smtp_security]
