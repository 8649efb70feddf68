"""`LoadReporter`: what to report on one link, and when."""

from __future__ import annotations

from collections.abc import Iterable

from slacktide.peers.messages import LoadReport, ModelLoad

INTERVAL_S = 0.1
"""Minimum seconds between two reports that are not sent with an answer."""
REFRESH_S = 0.5
"""A load that has not changed is reported again after this time."""
CHANGED = 0.1
"""A load has changed if a time differs by more than this share of the time of one row alone."""


class LoadReporter:
    """The reports on one link. A peer expects the wait to shrink as time passes, so a load counts
    as changed if it differs from that expectation."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[ModelLoad, float]] = {}
        """By model: the last load reported, and the time of that report."""
        self._received = 0
        self._at = -INTERVAL_S

    def report(
        self, loads: Iterable[ModelLoad], received: int, *, now: float, answering: bool = False
    ) -> LoadReport | None:
        """The report to send now; None if nothing has changed, or it is too early. `loads`: the
        present loads of all models that the peer may use. `received`: calls received on the link so
        far. `answering`: whether the report is sent with an answer."""
        if not answering and now < self._at + INTERVAL_S:
            return None
        came = received != self._received
        changed = tuple(
            [load for load in loads if (came and load.wait_s) or self._has_changed(load, now)]
        )
        if not changed and not came:
            return None
        for load in changed:
            self._reported[load.model] = load, now
        self._received, self._at = received, now
        return LoadReport(changed, received)

    def forget(self, model: str) -> None:
        """Report a model again: the peer may have ignored earlier reports."""
        self._reported.pop(model, None)

    def _has_changed(self, load: ModelLoad, now: float) -> bool:
        if load.model not in self._reported:
            return True
        before, at = self._reported[load.model]
        if now - at >= REFRESH_S:
            return True
        tolerance = CHANGED * load.alone_s
        if load.wait_s == before.wait_s and load.wait_s - load.wait_s != 0.0:
            return False  # both are infinite
        return not (
            abs(load.wait_s - max(0.0, before.wait_s - (now - at))) <= tolerance
            and abs(load.alone_s - before.alone_s) <= tolerance
            and abs(load.row_s - before.row_s) <= CHANGED * load.row_s
        )
