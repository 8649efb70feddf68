"""`Recorder`: writes an engine's events and commands as they happen.

The hot path only encodes one line of JSON for each call of the engine, after its commands have been
carried out (some µs; bench/recording_cost.py). A thread writes the lines every second, so that a
slow disk delays no request. If the disk cannot keep up, recording stops; the server logs this and
goes on.

Parts. A part that reaches the size limit is renamed to FILE.1, replacing an older one, and FILE
begins anew. Together they take at most twice the limit and hold at least the newest `limit` bytes.
A new part begins with the plan, and the pools with their learnt predictions, so it is sufficient
for a *prediction*; a *replay* needs all parts from the first (docs/decisions/0016).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from slacktide._version import __version__
from slacktide.domain import Command, Event, Plan, PlanChanged, PoolId
from slacktide.domain.frames import FrameCommand, FrameEvent, PipelinesChanged
from slacktide.engine import EngineSettings
from slacktide.recording.layout import RecordingError
from slacktide.recording.records import (
    Header,
    PoolOpened,
    frames_line,
    header_line,
    plain_commands,
    plain_events,
    pool_line,
)
from slacktide.scheduling import PoolRecipe

log = logging.getLogger("slacktide.recording")

FLUSH_S = 1.0
"""Seconds between writes: a killed server loses at most the lines of one interval."""

MOST_WAITING = 64 << 20
"""Maximum bytes waiting for a slow disk; beyond it recording stops."""

_JSON = orjson.OPT_APPEND_NEWLINE

Export = Callable[[], Mapping[str, Any]]
"""Exports the present predictions of a pool as plain data."""


class Recorder:
    """Writes one recording. Belongs to the thread of the engine's driver."""

    def __init__(
        self, path: Path, settings: EngineSettings, *, limit: int, flush_s: float = FLUSH_S
    ) -> None:
        """Open `path`; an existing file is renamed to `path`.1. `limit`: bytes of a part. Raises
        RecordingError if it cannot be written."""
        self.path = path
        self.events = 0
        """Number of events recorded."""
        self.bytes = 0
        """Number of bytes passed to the writer, over all parts."""
        self._settings = settings
        self._limit = limit
        self._recording = secrets.token_hex(8)
        self._part = 0
        self._in_part = 0
        self._plan: Plan | None = None
        self._pipelines: dict[str, Any] | None = None
        """The line that states the served pipelines."""
        self._pools: dict[PoolId, tuple[int, PoolRecipe, Export]] = {}
        self._calls: list[tuple[float, Sequence[Event], Sequence[Command]] | dict[str, Any]] = []
        self._writer = _Writer(path, flush_s)
        self._begin_part()

    @property
    def stopped(self) -> str | None:
        """Why recording has stopped; None while it goes on."""
        return self._writer.failure

    def opened(self, pool: PoolId, max_batch: int, recipe: PoolRecipe, export: Export) -> None:
        """Record that the engine makes a pool, in a call that `called` will report later."""
        self._pools[pool] = (max_batch, recipe, export)
        self._put(pool_line(PoolOpened(pool, max_batch, recipe, export())))

    def called(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        """Keep a call of the engine, which handled `events` at `now`, for the next `encode`."""
        self._calls.append((now, events, commands))

    def framed(
        self, event: FrameEvent | None, trigger: str, now: float, commands: Sequence[FrameCommand]
    ) -> None:
        """Keep a call of `Frames` for the next `encode`."""
        self._calls.append(frames_line(event, trigger, now, commands))
        if type(event) is PipelinesChanged:
            self._pipelines = frames_line(event, "again", now, ())

    def encode(self) -> None:
        """Encode the calls kept so far. Use after their commands have been carried out."""
        calls, self._calls = self._calls, []
        if self._writer.failure is not None:
            return
        for call in calls:
            if isinstance(call, dict):
                self._put(call)
                continue
            now, events, commands = call
            for event in events:
                if type(event) is PlanChanged:
                    self._plan = event.plan
            self.events += len(events)
            self._put((now, plain_events(events), plain_commands(commands)))
        if self._in_part >= self._limit:
            self._begin_part()

    def close(self) -> None:
        """Write all waiting lines; blocks until then."""
        self.encode()
        self._writer.close()

    def _put(self, line: object) -> None:
        try:
            data = orjson.dumps(line, option=_JSON)
        except TypeError as error:  # recording must not hurt serving
            self._writer.fail(f"a line cannot be written as JSON: {error}")
            return
        self._in_part += len(data)
        self.bytes += len(data)
        self._writer.put(data)

    def _begin_part(self) -> None:
        self._part += 1
        self._in_part = 0
        if self._part > 1:
            self._writer.put(None)
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        header = Header(
            self._recording, self._part, __version__, began, self._settings, self.events, self._plan
        )
        self._put(header_line(header))
        deployments = () if self._plan is None else self._plan.deployments
        planned = {deployment.pool for deployment in deployments}
        self._pools = {pool: details for pool, details in self._pools.items() if pool in planned}
        for pool, (max_batch, recipe, export) in self._pools.items():
            self._put(pool_line(PoolOpened(pool, max_batch, recipe, export())))
        if self._pipelines is not None:
            self._put(self._pipelines)


class _Writer:
    """The writing thread, and the lines that wait for it. A None among them begins a new file."""

    def __init__(self, path: Path, flush_s: float) -> None:
        self.failure: str | None = None
        self._path = path
        self._flush_s = flush_s
        self._waiting: deque[bytes | None] = deque()
        self._put_bytes = 0
        """Bytes of all lines put here; the thread counts the bytes written."""
        self._written_bytes = 0
        self._ending = threading.Event()
        self._file: int | None = self._open()
        """Descriptor of the open file; None if the next file could not be opened."""
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def put(self, data: bytes | None) -> None:
        if self.failure is not None:
            return
        # Appending to a deque and popping from it are atomic, so no lock is needed.
        self._waiting.append(data)
        if data is not None:
            self._put_bytes += len(data)
            if self._put_bytes - self._written_bytes > MOST_WAITING:
                self.fail(f"the disk is too slow: {MOST_WAITING >> 20} MiB wait to be written")

    def fail(self, why: str) -> None:
        """Take no more lines; waiting ones are still written if possible."""
        if self.failure is None:
            self.failure = why
            log.error("recording of %s has stopped: %s", self._path, why)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            closing, self._file = self._file, None
            os.close(closing)

    def _open(self) -> int:
        """Rename an existing file, and create one that only its owner can read, since it names
        clients. Raises RecordingError."""
        path = self._path
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(path.stat().st_mode):
                    raise RecordingError(f"--record {path}: expected a file")
                path.replace(path.with_name(f"{path.name}.1"))
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as error:
            raise RecordingError(f"--record {path}: cannot be written: {error.strerror}") from None

    def _run(self) -> None:
        while not self._ending.wait(self._flush_s):
            self._write()
        self._write()

    def _write(self) -> None:
        """Write the lines that wait now."""
        lines: list[bytes] = []
        try:
            for _ in range(len(self._waiting)):
                line = self._waiting.popleft()
                if line is not None:
                    lines.append(line)
                    continue
                self._write_all(lines)
                lines = []
                self._close()
                self._file = self._open()
            self._write_all(lines)
        except OSError as error:
            self.fail(f"the file cannot be written: {error.strerror}")
            self._waiting.clear()
        except RecordingError as error:
            self.fail(str(error))
            self._waiting.clear()

    def _write_all(self, lines: Sequence[bytes]) -> None:
        unwritten = memoryview(b"".join(lines))
        while unwritten and self._file is not None:
            written = os.write(self._file, unwritten)
            self._written_bytes += written
            unwritten = unwritten[written:]
