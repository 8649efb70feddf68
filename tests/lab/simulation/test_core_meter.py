"""What a run is charged for: cores of lanes over time."""

from __future__ import annotations

import pytest

from slacktide.lab.simulation.world.hardware import CoreMeter


def test_core_seconds_between_any_two_moments() -> None:
    meter = CoreMeter()
    for now, cores in ((1.0, 2), (2.0, 2), (3.0, 5), (3.0, 4), (6.0, 0)):
        meter.see(cores, now=now)
    assert meter.seconds(0.0, 1.0) == 0.0, "before anything was seen"
    assert meter.seconds(0.0, 3.0) == 4.0
    assert meter.seconds(2.5, 4.0) == pytest.approx(1.0 + 4.0)
    assert meter.seconds(3.0, 3.0) == 0.0
    assert meter.seconds(0.0, 100.0) == 4.0 + 12.0
    assert meter.means((1.0, 3.0, 5.0, 6.5)) == pytest.approx([2, 4, 4 / 1.5])


def test_a_meter_that_saw_nothing_reads_nothing() -> None:
    assert CoreMeter().seconds(0.0, 10.0) == 0.0
