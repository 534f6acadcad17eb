"""HTTPS without a proxy: the certificate that the server shows, taken anew when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings

log = logging.getLogger(__name__)

REFRESH_S = 60
"""How often the files are looked at."""


class Certificate:
    """A certificate and its key in files, and the TLS context that shows them.

    Raises:
        ConfigError: if the files cannot be read or do not belong together.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self._seen = self._state()
        self.context = self._loaded()

    def refresh(self) -> bool:
        """Take the files anew if they have changed; what cannot be used is told of, and the one before is kept."""
        state = self._state()
        if state == self._seen:
            return False
        try:
            self._loaded()  # first beside the one in use, which half of a pair would spoil
        except ConfigError as error:
            log.warning("new certificate rejected: %s", error)
            self._seen = state
            return False
        self.context.load_cert_chain(*self._files)
        self._seen = state
        log.info("certificate reloaded file=%s", self._files[0])
        return True

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            named = f"tls_cert_file {self._files[0]} and tls_key_file {self._files[1]}"
            raise ConfigError(
                f"{named} cannot be used for HTTPS: {error.strerror or error}; expected a certificate and its own key "
                "as PEM, readable by this user: `python -m aggregator_api server-certificate` makes such files"
            ) from error
        return context

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file does; a file that is away is no change yet."""
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return self._seen
        return tuple((entry.st_ino, entry.st_mtime_ns, entry.st_size) for entry in found)


def certificate_of(settings: Settings) -> Certificate | None:
    """Read the certificate that the settings name; None where HTTPS is a proxy's.

    Raises:
        ConfigError: if it cannot be used.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return Certificate(settings.tls_cert_file, settings.tls_key_file)


def _no_password() -> str:
    raise ssl.SSLError("the key has a password; write it without one, mode 0600")
