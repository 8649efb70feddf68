"""Core-seconds: cores held × time, whatever comes and goes."""

from __future__ import annotations

from slacktide.runtime.runtime import CoreSeconds


def test_cores_held_add_up_over_changes() -> None:
    usage = CoreSeconds()
    assert usage.totals(now=5.0) == {}
    usage.note({"a": 1, "b": 2}, now=10.0)
    usage.note({"a": 3}, now=12.0)
    assert usage.totals(now=12.5) == {"a": 3.5, "b": 4.0}
    usage.note({"b": 1}, now=13.0)
    assert usage.totals(now=14.0) == {"a": 5.0, "b": 5.0}


def test_asking_changes_nothing() -> None:
    usage = CoreSeconds()
    usage.note({"a": 1}, now=0.0)
    assert usage.totals(now=1.0) == usage.totals(now=1.0) == {"a": 1.0}
