"""`FolderLock`: a lock on a folder. Its process holds it as long as it lives, and is named in it.

The kernel releases the lock (`flock`) with the process, however it ends, so a lock that is held
names a process that runs; a file with a process id could not promise that. Descriptors here are
closed by `exec`, and workers come from a fork server that was executed, so none of them keeps the
lock of a server that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ATTEMPTS = 5
"""How often to try: `holder_of` takes the lock for a moment to see whether it is free."""
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock."""

    pid: int
    """0: it has not written its id yet."""
    document: Mapping[str, Any]
    """The JSON that the holder has written into the lock."""


class FolderLock:
    """The lock file at `path`. Acquire it, then describe the process in it with `write`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, **document: Any) -> None:
        """Lock, and write `document`. Raises OSError: EBUSY if another process holds the lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for attempt in range(_ATTEMPTS):
                if _locked(descriptor, fcntl.LOCK_EX):
                    os.ftruncate(descriptor, 0)  # now: it still names the previous holder
                    break
                time.sleep(_PAUSE_S * (attempt + 1))
            else:
                raise self._busy()
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.write(**document)

    def write(self, **document: Any) -> None:
        """Replace the description, to which the process id is added. Does nothing unless held."""
        if self._descriptor is None:
            return
        pid = os.getpid()
        text = json.dumps({"pid": pid, "started": _start_ticks(pid), **document}, default=str)
        # In one call: a reader never sees half of it, and a full disk leaves the earlier text.
        length = os.fstat(self._descriptor).st_size
        os.pwrite(self._descriptor, text.encode().ljust(length), 0)

    def release(self) -> None:
        """Unlock, also for forks of this process. Safe to repeat."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def _busy(self) -> OSError:
        holder = holder_of(self._path)
        process = f"process {holder.pid}" if holder and holder.pid else "another process"
        return OSError(errno.EBUSY, f"{self._path.parent}: in use by {process}")


def holder_of(path: Path) -> LockHolder | None:
    """Return the holder of the lock file at `path`; None if it is free or absent. Raises OSError if
    it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _locked(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)
    try:
        document = json.loads(text)
        pid = int(document["pid"])
    except (ValueError, KeyError, TypeError):
        return LockHolder(0, {})  # it is about to write
    # The id may belong to another process by now, which started at another time.
    is_current = _start_ticks(pid) == document.get("started")
    return LockHolder(pid, document) if is_current else LockHolder(0, {})


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
