"""Downloads of content-addressed blobs: bounded while streaming, resumed by Range, verified before they are read."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

from edge_agent.errors import BlobError
from edge_agent.files import place_file, sha256_of
from federation.protocol.messages import BlobPointer

BLOCK_BYTES = 1 << 16
KEPT = 3
"""Blobs that stay on disk, newest first."""


class Blobs:
    """The blobs of one server, in a folder by their sha256."""

    def __init__(self, folder: Path, base_url: str, timeout_s: float, api_key: str | None = None) -> None:
        self.folder, self.base_url, self.timeout_s = folder, base_url.rstrip("/") + "/", timeout_s
        self._api_key = api_key
        self._lock = threading.Lock()

    def path(self, sha256: str) -> Path:
        """Where a fetched blob lies."""
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
        self.folder.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        url = urljoin(self.base_url, pointer.url.lstrip("/") if pointer.url.startswith("/") else pointer.url)
        try:
            self._download(url, pointer, part)
        except (OSError, http.client.HTTPException) as error:
            raise BlobError(f"cannot download {url}: {_reason(error)}") from error
        came = sha256_of(part)
        if came != pointer.sha256:
            part.unlink()
            raise BlobError(f"{url} has sha256 {came[:16]}…, announced was {pointer.sha256[:16]}…")
        place_file(part, target)
        self._prune()
        return target

    def _download(self, url: str, pointer: BlobPointer, part: Path) -> None:
        have = part.stat().st_size if part.is_file() else 0
        if have > pointer.size:
            part.unlink()
            have = 0
        if have == pointer.size and have:
            return
        with urllib.request.urlopen(self._request(url, pointer, have), timeout=self.timeout_s) as answer:
            resumed = answer.status == http.client.PARTIAL_CONTENT
            have = have if resumed else 0
            with part.open("ab" if resumed else "wb") as file:
                while block := answer.read(BLOCK_BYTES):
                    have += len(block)
                    if have > pointer.size:
                        file.close()
                        part.unlink()
                        raise BlobError(f"{url} sends more than the {pointer.size:,} bytes announced")
                    file.write(block)
        if have < pointer.size:
            raise BlobError(f"{url} ended after {have:,} of {pointer.size:,} bytes")

    def _request(self, url: str, pointer: BlobPointer, have: int) -> urllib.request.Request:
        if not url.startswith(("http://", "https://")):
            raise BlobError(f"{url} was announced; only http:// and https:// are fetched")
        headers = {"Range": f"bytes={have}-", "If-Range": f'"{pointer.sha256}"'} if have else {}
        request = urllib.request.Request(url, headers=headers)
        if self._api_key and url.startswith(self.base_url):
            # for this server alone: not for another that a pointer or a redirect names
            request.add_unredirected_header("Authorization", f"Bearer {self._api_key}")
        return request

    def _prune(self) -> None:
        newest = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[KEPT:]:
            path.unlink()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
