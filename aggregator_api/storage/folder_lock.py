"""One program at a time works in a folder: a lock that the system takes back when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from aggregator_api.core.errors import ConfigError

FILE = "server.lock"


class FolderLock:
    """Held inside a `with` block; the file stays behind and means nothing while nobody has locked it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Take the lock.

        Raises:
            ConfigError: if another program holds it, which is named by its process id; or if the file cannot be made.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigError(
                f"another program (process {holder}) works in {self.path.parent}; two servers on one folder would "
                "destroy each other's work: stop that one, or give this one another --data-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let another program take it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
