"""Links: when the server sees what, exactly."""

from __future__ import annotations

import pytest

from slacktide.workloads import ConstantLink, WorkloadError


def test_headers_come_after_half_a_round_trip_and_the_body_after_its_transfer() -> None:
    link = ConstantLink(bandwidth=1000.0, rtt=0.25)
    journey = link.deliver(500, sent=10.0)
    assert journey.announced_at == journey.arrival == 10.125
    assert journey.network_time == 0.125
    assert journey.complete_at == 10.625
    assert link.way_back == 0.125


def test_without_payload_the_body_is_complete_at_once() -> None:
    journey = ConstantLink(1e6).deliver(0, sent=3.0)
    assert journey.arrival == journey.complete_at == 3.0
    assert journey.network_time == 0.0


@pytest.mark.parametrize(
    ("bandwidth", "rtt", "field"), [(0.0, 0.0, "bandwidth"), (1.0, -1.0, "rtt")]
)
def test_what_cannot_be_is_refused_by_name(bandwidth: float, rtt: float, field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        ConstantLink(bandwidth, rtt)
    assert caught.value.field == field
