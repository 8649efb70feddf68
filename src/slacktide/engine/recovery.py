"""Recovery: when a lost replica restarts, and when and how long its version is unavailable.

Theory of operation. While the *circuit* of a version is closed, its lost replicas restart. Too many
crashes open it: the version is unavailable, and after a pause it is on *trial*. One replica starts,
and requests are admitted once it is up. A crash on trial opens the circuit again, for twice as
long. The circuit closes, and the other replicas start, when a batch finishes on a replica that has
been up for `crash_window` / `crash_limit_count` seconds.

A crash during a batch counts only after every member has been *judged*, i.e. has run again alone,
even after its deadline or if its client has left. A member that crashes that run as well is
*convicted*, and neither crash counts: the request is to blame, not the version. The same holds for
a request that was alone in its batch and hung while the worker computed. Only a long series of
convictions, without a finished batch in between, is blamed on the version.
"""

from __future__ import annotations

import math

from slacktide.domain import Circuit
from slacktide.engine.settings import EngineSettings


class Crash:
    """The loss of a replica, at `at`."""

    __slots__ = ("at", "detail", "unjudged")

    def __init__(self, at: float, detail: str) -> None:
        self.at = at
        self.detail = detail
        self.unjudged = 0
        """Number of members of its batch that are still to be judged."""


class CrashHistory:
    """Recent crashes of one pool's replicas, oldest first, and its circuit."""

    __slots__ = ("_convicted", "_crashes", "_opened", "_settings", "circuit", "proved", "retry_at")

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._crashes: list[Crash] = []
        self._convicted = 0
        """Number of convictions in a row, without a finished batch in between."""
        self._opened = 0
        """How often the circuit has opened since it was last closed."""
        self.circuit = Circuit.CLOSED
        self.retry_at = math.inf
        """Time at which an unavailable version goes on trial; inf: not scheduled."""
        self.proved = False
        """Whether a batch has finished on trial, on a replica that was up for long enough."""

    def crashed(self, crash: Crash) -> None:
        """Record the loss of a replica."""
        self._crashes.append(crash)

    def judged(self, crash: Crash, *, convicted: bool, by_input: bool = False) -> None:
        """Record the verdict on a member of the batch that was lost in `crash`. `by_input`:
        another request with the same input was convicted."""
        crash.unjudged -= 1
        if convicted:
            self._convicted += not by_input
            if crash in self._crashes:
                self._crashes.remove(crash)

    def finished(self, up_s: float) -> bool:
        """Record a batch finished by a replica that has been up for `up_s` seconds. Returns
        whether this ends the trial."""
        self._convicted = 0
        settings = self._settings
        if self.circuit is not Circuit.TRIAL:
            return False
        self.proved = up_s >= settings.crash_window / settings.crash_limit_count
        return self.proved

    @property
    def undecided(self) -> bool:
        """Whether a finished batch would reset convictions, or could end a trial."""
        return self._convicted > 0 or self.circuit is Circuit.TRIAL

    def pause(self, *, now: float) -> float:
        """Seconds to wait before a replica that is lost now is restarted."""
        settings = self._settings
        self._forgive(now)
        # 2**63 s exceeds any maximum; the bound keeps the power finite for extreme settings.
        pause = settings.backoff_first * 2.0 ** min(max(1, len(self._crashes)) - 1, 63)
        return float(min(settings.backoff_most, pause))

    def fault(self, *, now: float) -> str:
        """Why the version becomes unavailable now; empty if it does not."""
        settings = self._settings
        self._forgive(now)
        counted = [crash for crash in self._crashes if not crash.unjudged]
        if self._convicted >= settings.convictions_in_a_row_count:
            return f"{self._convicted} requests in a row crashed it"
        if counted and self.circuit is Circuit.TRIAL:
            return f"it crashed when it was tried again: {counted[-1].detail}"
        if len(counted) < settings.crash_limit_count:
            return ""
        window, last = settings.crash_window, counted[-1].detail
        return f"{len(counted)} crashes within {window:g} s; the last: {last}"

    def open(self, *, now: float, for_good: bool) -> float | None:
        """Open the circuit. Returns seconds until the trial; None: never."""
        settings = self._settings
        self.circuit, self.proved = Circuit.OPEN, False
        self._crashes.clear()
        self._convicted = 0
        pause = min(settings.retry_most, settings.retry_first * 2.0 ** min(self._opened, 63))
        self._opened += 1
        self.retry_at = math.inf if for_good else now + pause
        return None if for_good else pause

    def begin_trial(self) -> None:
        self.circuit, self.retry_at = Circuit.TRIAL, math.inf

    def close(self) -> None:
        self.circuit, self.proved, self._opened = Circuit.CLOSED, False, 0

    def _forgive(self, now: float) -> None:
        while self._crashes and self._crashes[0].at <= now - self._settings.crash_window:
            self._crashes.pop(0)
