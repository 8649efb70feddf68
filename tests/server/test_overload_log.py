"""Refusals are counted, and told in one line for ten seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slacktide.domain import Reason
from slacktide.server.calls.overload_log import OverloadLog


class Alarm:
    """A clock that is moved by hand, and what is to be called at its times."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, call))

    def pass_to(self, now: float) -> None:
        while self.due and self.due[0][0] <= now:
            self.now, call = self.due.pop(0)
            call()
        self.now = now


def test_overload_is_one_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    alarm = Alarm()
    overload = OverloadLog(lambda: alarm.now, alarm.later)
    for _ in range(3_100):
        overload.count(Reason.BEHIND_WORK)
    alarm.pass_to(104.0)
    for reason in [Reason.EXPIRED] * 104 + [Reason.BAD_INPUT, Reason.NOT_FOUND]:
        overload.count(reason)
    assert caplog.records == []
    alarm.pass_to(130.0)
    overload.count(Reason.QUEUE_FULL)
    assert len(alarm.due) == 1
    alarm.pass_to(132.0)
    overload.report()  # The server ends.
    alarm.pass_to(500.0)
    first, last = caplog.records
    line = "3,204 refused in the last 10 s: 3,100 behind_work, 104 expired"
    assert (first.getMessage(), first.levelname) == (line, "WARNING")
    fields = vars(first)
    assert (fields["refused"], fields["behind_work"], fields["expired"]) == (3204, 3100, 104)
    assert last.getMessage() == "1 refused in the last 2 s: 1 queue_full"
