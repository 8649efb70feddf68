"""When a lost replica is started again, and when a version is given up."""

from __future__ import annotations

from collections import deque

from slacktide.engine.settings import EngineSettings


class CrashHistory:
    """Crashes of one pool's replicas within the window, oldest first."""

    __slots__ = ("_settings", "_times")

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._times: deque[float] = deque()

    def crashed(self, *, now: float, suspect: bool = False) -> float | None:
        """Record a crash. Seconds to pause before the restart; None: give the version up.

        `suspect`: it died of one request, run alone because it had been in a crash before. The
        request is to blame, not the version, and the first crash has been counted already.
        """
        settings = self._settings
        if not suspect:
            self._times.append(now)
        while self._times and self._times[0] <= now - settings.crash_window:
            self._times.popleft()
        count = max(1, len(self._times))
        if count >= settings.crash_limit_count:
            return None
        # 2**63 s is past any maximum; the bound keeps the power finite for odd settings.
        pause = settings.backoff_first * 2.0 ** min(count - 1, 63)
        return float(min(settings.backoff_most, pause))
