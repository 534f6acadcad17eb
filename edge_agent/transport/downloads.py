"""Downloads of content-addressed blobs: bounded while streaming, resumed by Range, verified before they are read."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from edge_agent.errors import ConfigError, DownloadError
from edge_agent.storage.data_folder import move_file, sha256_of
from edge_agent.transport.renewal import CredentialRenewal
from edge_agent.transport.server_connection import asked_again, tls_context
from federation.protocol.messages import BlobPointer
from gaitway.files import opener, private_folder

BLOCK_BYTES = 1 << 16
CACHE_SIZE = 3
"""Blobs that stay on disk, newest first."""


class BlobDownloader:
    """The blobs of one server, in a folder by their sha256."""

    def __init__(
        self,
        folder: Path,
        base_url: str,
        timeout_s: float,
        renewal: CredentialRenewal | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self.folder, self.base_url, self.timeout_s = folder, base_url.rstrip("/") + "/", timeout_s
        self._renewal, self._ca_file = renewal, ca_file
        self._lock = threading.Lock()

    def path(self, sha256: str) -> Path:
        """Return where a fetched blob lies."""
        return self.folder / sha256

    def fetch(self, pointer: BlobPointer) -> Path:
        """Return the blob's verified file, downloading what of it is not here yet.

        Raises:
            BlobError: if the server cannot be reached, or sends other bytes than were announced.
        """
        with self._lock:  # two threads would write the same partial file
            return self._fetch(pointer)

    def _fetch(self, pointer: BlobPointer) -> Path:
        target = self.path(pointer.sha256)
        if target.is_file() and target.stat().st_size == pointer.size and sha256_of(target) == pointer.sha256:
            target.touch()
            return target
        private_folder(self.folder)
        part = target.with_suffix(".part")
        url = self._place_of(pointer)
        try:
            self._download_or_renew(url, pointer, part)
        except (OSError, ConfigError, http.client.HTTPException) as error:
            raise DownloadError(f"cannot download {url}: {_reason(error)}") from error
        digest = sha256_of(part)
        if digest != pointer.sha256:
            part.unlink()
            raise DownloadError(f"{url} has sha256 {digest[:16]}…, announced was {pointer.sha256[:16]}…")
        move_file(part, target)
        self._prune()
        return target

    def _place_of(self, pointer: BlobPointer) -> str:
        """Return a pointer's whole URL, which must be of the server's own scheme, host and port.

        Raises:
            BlobError: if it is elsewhere.
        """
        url = urljoin(self.base_url, pointer.url.lstrip("/") if pointer.url.startswith("/") else pointer.url)
        if _origin(url) is None or _origin(url) != _origin(self.base_url):
            raise DownloadError(f"{url[:200]} was announced, but models are fetched from {self.base_url} alone")
        return url

    def _download_or_renew(self, url: str, pointer: BlobPointer, part: Path) -> None:
        key = self._renewal.api_key() if self._renewal else None
        try:
            asked_again(lambda: self._download(url, pointer, part, key))
        except urllib.error.HTTPError as error:
            renewal = self._renewal
            if error.code != http.client.UNAUTHORIZED or not renewal or not renewal.key_refused(key):
                raise
            error.close()
            asked_again(lambda: self._download(url, pointer, part, renewal.api_key()))

    def _download(self, url: str, pointer: BlobPointer, part: Path, key: str | None) -> None:
        have = part.stat().st_size if part.is_file() else 0
        if have > pointer.size:
            part.unlink()
            have = 0
        if have == pointer.size and have:
            return
        tls = urllib.request.HTTPSHandler(context=tls_context(self._ca_file))
        within = urllib.request.build_opener(_NoOtherOrigin, tls)
        with within.open(self.request(url, pointer, have, key), timeout=self.timeout_s) as answer:
            resumed = answer.status == http.client.PARTIAL_CONTENT
            have = have if resumed else 0
            with open(part, "ab" if resumed else "wb", opener=opener) as file:
                while block := answer.read(BLOCK_BYTES):
                    have += len(block)
                    if have > pointer.size:
                        file.close()
                        part.unlink()
                        raise DownloadError(f"{url} sends more than the {pointer.size:,} bytes announced")
                    file.write(block)
        if have < pointer.size:
            raise DownloadError(f"{url} ended after {have:,} of {pointer.size:,} bytes")

    def request(self, url: str, pointer: BlobPointer, have: int, key: str | None) -> urllib.request.Request:
        """Return what asks for a blob from byte `have` on; `key` goes to no redirection, and to the server alone."""
        headers = {"Range": f"bytes={have}-", "If-Range": f'"{pointer.sha256}"'} if have else {}
        request = urllib.request.Request(url, headers=headers)
        if key and url.startswith(self.base_url):
            # for this server alone: not for another that a pointer or a redirect names
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        return request

    def _prune(self) -> None:
        newest = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[CACHE_SIZE:]:
            path.unlink()


class _NoOtherOrigin(urllib.request.HTTPRedirectHandler):
    """Goes where a server sends it only within the server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if _origin(newurl) != _origin(req.full_url):
            raise DownloadError(f"{req.full_url} sends this device on to {newurl[:200]}, which is not its server's")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None where a name, a password or a backslash could hide another host."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    if "@" in parts.netloc or "\\" in url or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port


_PORTS = {"http": 80, "https": 443}


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
