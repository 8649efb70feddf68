"""One direction of a link between devices: who leaves when, and who does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.lab.simulation.world.device_links import PartLink, Sending
from slacktide.lab.workloads import BandwidthTrace, WorkloadError


def link(*rates: float, latency: float = 0.0) -> PartLink[str]:
    """So many bytes per second, second by second."""
    return PartLink(BandwidthTrace([float(at) for at in range(len(rates))], rates), latency)


def test_messages_leave_in_order_of_arrival() -> None:
    wire = link(100.0)
    a, b = Sending("a", 50.0, math.inf), Sending("b", 25.0, math.inf)
    wire.offer(a, now=0.0)
    wire.offer(b, now=0.1)
    assert wire.leaves_at == pytest.approx(0.5)
    assert wire.take(now=0.2) is None
    assert wire.take(now=wire.leaves_at) is a
    assert wire.leaves_at == pytest.approx(0.75)
    assert wire.take(now=wire.leaves_at) is b
    assert (wire.leaves_at, len(wire), wire.carried) == (math.inf, 0, 75.0)


def test_dropped_messages_make_room() -> None:
    wire = link(100.0)
    sent = [Sending(name, 50.0, math.inf) for name in "abc"]
    for sending in sent:
        wire.offer(sending, now=0.0)
    wire.drop(sent[1], now=0.1)
    wire.drop(sent[0], now=0.2)
    wire.drop(sent[0], now=0.2)
    assert wire.leaves_at == pytest.approx(0.7)
    assert wire.take(now=wire.leaves_at) is sent[2]
    wire.drop(sent[2], now=0.8)
    assert len(wire) == 0


def test_a_message_that_cannot_arrive_is_given_up_when_its_turn_comes() -> None:
    wire = link(100.0, latency=0.2)
    a, b = Sending("a", 50.0, 1.0), Sending("b", 50.0, 1.0)
    wire.offer(a, now=0.0)
    wire.offer(b, now=0.0)
    assert wire.given_up == []
    assert wire.take(now=0.5) is a
    assert wire.given_up == [b]
    assert wire.leaves_at == math.inf


def test_a_message_that_the_link_no_longer_carries_is_given_up_in_time() -> None:
    wire = link(100.0, 0.0, 100.0)
    a, b = Sending("a", 90.0, 1.5), Sending("b", 10.0, math.inf)
    wire.offer(a, now=0.5)
    wire.offer(b, now=0.5)
    assert wire.leaves_at == 1.5
    assert wire.take(now=1.5) is None
    assert wire.given_up == [a]
    assert wire.leaves_at == pytest.approx(2.1)
    assert wire.message_at(now=1.2) == 2.0


def test_a_negative_latency_is_named() -> None:
    with pytest.raises(WorkloadError, match="latency"):
        link(1.0, latency=-1.0)


@given(
    rates=st.lists(st.sampled_from([0.0, 10.0, 100.0]), min_size=1, max_size=4),
    sent=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 200.0), st.floats(0.1, 3.0)), max_size=12
    ),
    dropped=st.sets(st.integers(0, 11)),
)
def test_everything_offered_has_one_end(
    rates: list[float], sent: list[tuple[float, float, float]], dropped: set[int]
) -> None:
    wire = link(*rates, latency=0.01)
    arrived, withdrawn = [], []

    def pass_until(now: float) -> None:
        while wire.leaves_at <= now:
            at = wire.leaves_at
            piece = wire.take(now=at)
            if piece is not None:
                assert at + wire.latency <= piece.until + 1e-9
                arrived.append(piece)

    offered = []
    for number, (at, nbytes, allowance) in enumerate(sorted(sent)):
        pass_until(at)
        sending = Sending(number, nbytes, at + allowance)
        offered.append(sending)
        wire.offer(sending, now=at)  # type: ignore[arg-type]
        if number in dropped:
            before = len(wire)
            wire.drop(sending, now=at)  # type: ignore[arg-type]
            if len(wire) < before:
                withdrawn.append(sending)
    pass_until(100.0)
    ended = [*arrived, *withdrawn, *wire.given_up]
    assert len(wire) == 0
    assert sorted(map(id, ended)) == sorted(map(id, offered))
