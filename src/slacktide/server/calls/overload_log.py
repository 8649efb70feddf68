"""`OverloadLog`: one warning per ten seconds of overload, however many requests are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slacktide.domain import Reason
from slacktide.models.versions import LoadedVersion
from slacktide.wire.status import STATUS

PERIOD_S = 10.0
UNRUN = 5
"""Number of refusals after which the log warns of a model that has not run yet."""
_COUNTED = {
    Reason.UNMEASURED,
    *(reason for reason, status in STATUS.items() if status.http in (429, 503, 504)),
}
"""Reasons of refusals after which a retry may succeed; others are mistakes of clients or models."""


class OverloadLog:
    """Logs a warning for every 10 seconds with refused requests, counted by reason, so that
    overload is visible without a metrics system."""

    def __init__(
        self,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        logger: logging.Logger | None = None,
    ) -> None:
        """`later(seconds, function)` calls the function after that time."""
        self._clock = clock
        self._later = later
        self._log = logger or logging.getLogger("slacktide.requests")
        self._since = 0.0
        self._armed = False
        self._counts: dict[Reason, int] = {}

    def count(self, reason: Reason) -> None:
        """Count a request that ended without a result."""
        counts = self._counts
        if reason not in _COUNTED:
            return
        if not counts:
            self._since = self._clock()
            if not self._armed:
                self._armed = True
                self._later(PERIOD_S, self._end_period)
        counts[reason] = counts.get(reason, 0) + 1

    def count_unrun(self, version: LoadedVersion, reason: Reason) -> None:
        """Warn once if all requests of `version` are refused because of its profile: nothing runs
        that could correct the profile."""
        if reason is not Reason.SHORTER_THAN_ALONE or version.counters.executions:
            return
        refused = version.counters.by_reason.get(reason, 0)
        if refused == UNRUN and not version.stages:
            self._log.warning(
                "%s:%s: all %d requests so far were refused as %s, because a row takes %.3g ms "
                "according to the profile. Some requests will run anyway to check the profile; to "
                "measure it again, run slacktide profile",
                *(version.name, version.version, refused, reason.label),
                1e3 * version.expected_alone,
            )

    def _end_period(self) -> None:
        self._armed = False
        self.report()

    def report(self) -> None:
        """Log the counts since the last line, if any."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        ordered = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0].label))
        by_reason = ", ".join(f"{count:,} {reason.label}" for reason, count in ordered)
        total, seconds = sum(counts.values()), self._clock() - self._since
        self._log.warning(
            "%s refused in the last %d s: %s",
            f"{total:,}",
            max(1, round(seconds)),
            by_reason,
            extra={"refused": total, **{reason.label: count for reason, count in ordered}},
        )
