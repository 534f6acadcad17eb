"""Downloads content-addressed blobs: size-limited while streaming, resumed by Range, verified before use."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from edge_agent.errors import ConfigError, DownloadError
from edge_agent.storage.data_folder import move_file, sha256_of
from edge_agent.transport.renewal import CredentialRenewal
from edge_agent.transport.server_connection import ServerAnswer, ServerConnection, in_turn, whole_answer
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
            raise DownloadError(f"cannot download {url}: {str(error) or type(error).__name__}") from error
        digest = sha256_of(part)
        if digest != pointer.sha256:
            part.unlink()
            raise DownloadError(f"{url} has sha256 {digest[:16]}…; {pointer.sha256[:16]}… was announced")
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
            raise DownloadError(f"{url[:200]} was announced, but models are only downloaded from {self.base_url}")
        return url

    def _download_or_renew(self, url: str, pointer: BlobPointer, part: Path) -> None:
        key = self._renewal.api_key() if self._renewal else None
        answer = in_turn(lambda: self._download(url, pointer, part, key))
        renewal = self._renewal
        if answer.status == http.client.UNAUTHORIZED and renewal and renewal.key_refused(key):
            answer = in_turn(lambda: self._download(url, pointer, part, renewal.api_key()))
        if answer.status >= http.client.MULTIPLE_CHOICES:
            phrase = http.client.responses.get(answer.status, "")
            raise DownloadError(f"cannot download {url}: the server answered {answer.status} {phrase}".rstrip())

    def _download(self, url: str, pointer: BlobPointer, part: Path, key: str | None) -> ServerAnswer:
        """Download what is missing of a blob; what the server says where it does not give it, redirections too."""
        have = part.stat().st_size if part.is_file() else 0
        if have > pointer.size:
            part.unlink()
            have = 0
        if have == pointer.size and have:
            return ServerAnswer(http.client.OK, b"")
        parts = urlsplit(url)
        connection = ServerConnection(f"{parts.scheme}://{parts.netloc}", self.timeout_s, self._ca_file)
        target = parts._replace(scheme="", netloc="", fragment="").geturl()
        try:
            answer = connection.begin("GET", target, None, self.headers(url, pointer, have, key))
            if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
                return whole_answer(answer)
            self._write(url, pointer, part, answer)
        finally:
            connection.close()
        return ServerAnswer(http.client.OK, b"")

    def _write(self, url: str, pointer: BlobPointer, part: Path, answer: http.client.HTTPResponse) -> None:
        resumed = answer.status == http.client.PARTIAL_CONTENT
        have = part.stat().st_size if resumed and part.is_file() else 0
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

    def headers(self, url: str, pointer: BlobPointer, have: int, key: str | None) -> dict[str, str]:
        """Return what asks for a blob from byte `have` on; `key` goes to the server alone."""
        headers = {"Range": f"bytes={have}-", "If-Range": f'"{pointer.sha256}"'} if have else {}
        return headers | ({"Authorization": f"Bearer {key}"} if key and url.startswith(self.base_url) else {})

    def _prune(self) -> None:
        newest = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[CACHE_SIZE:]:
            path.unlink()


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
