"""The core of the client in virtual time: scenes, and random worlds in which its promises hold."""

from __future__ import annotations

import ast
import importlib
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.virtual import SIZES, VARIANTS, World

from slacktide.client import TimerDue
from slacktide.client.core import ClientCore
from slacktide.client.messages import (
    Advice,
    AdviceChanged,
    ClientClosed,
    ClientSettings,
    Connect,
    Connected,
    Disconnect,
    EncodeFrame,
    FallbackDone,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameOutcome,
    FrameResult,
    FrameSent,
    MoveAdvised,
    ReportOutcome,
    SendFrame,
)
from slacktide.client.uplink import SPARE_S, Uplink


def test_frames_are_sent_as_advised_and_answered():
    world = World(ClientSettings(slo=0.15, rate=10))
    world.bytes_per_s = lambda at: 1e7
    world.stream(10, 5)
    world.run(8)
    assert world.results() == {"answered": 50}
    assert list(world.sizes.values()) == [128, *[608] * 49]  # at first the link is not known
    assert all(outcome.variant == str(outcome.size) for outcome in world.outcomes.values())
    assert len(world.connects) == 1


def test_a_stated_bandwidth_spares_the_small_first_frame():
    world = World(ClientSettings(slo=0.15, rate=10, bytes_per_s=1e7))
    world.run(0.1)
    world.capture()
    world.run(1)
    assert world.sizes == {1: 608}


def test_it_goes_below_the_advice_when_the_link_falls_and_back():
    world = World(ClientSettings(slo=0.15, rate=10))
    world.bytes_per_s = lambda at: 2e5 if 3 <= at < 6 else 5e6
    world.stream(10, 10)
    world.run(12)
    sent = {frame: when for when, frame, _ in world.sent}
    assert max(world.sizes[frame] for frame, when in sent.items() if 3.3 < when < 6) < 608
    assert {world.sizes[frame] for frame, when in sent.items() if when > 8} == {608}
    assert world.results()["answered"] >= 92
    assert world.most_in_flight <= 3 * 1.5 * (608 * 608) ** 0.83


def test_advice_bounds_the_size():
    world = World(ClientSettings(slo=0.15, rate=10, bytes_per_s=1e7))
    world.advice = Advice(300)
    world.stream(10, 2)
    world.run(4)
    assert set(world.sizes.values()) == {256}


def test_the_newest_frame_goes_first_and_old_ones_only_while_they_can_be_on_time():
    world = World(ClientSettings(slo=0.2, bytes_per_s=1e5))
    world.bytes_per_s = lambda at: 1e5
    world.run(0.1)
    for _ in range(6):  # all at once: the link takes two or three of them
        world.capture()
    world.run(2)
    order = [frame for _, frame, _ in world.sent]
    assert order[0] == 1
    assert order[1:] == sorted(order[1:], reverse=True)
    assert set(world.results()) == {"answered", "dropped", "late"}  # the server's part is learnt
    assert world.results()["dropped"] >= 2


def test_what_waits_is_bounded():
    world = World(ClientSettings(slo=60, most_waiting=3))
    for _ in range(5):
        world.capture()
    dropped = [world.outcomes[frame] for frame in (1, 2)]
    assert [outcome.result for outcome in dropped] == [FrameResult.DROPPED] * 2
    assert "newer" in dropped[0].detail


@pytest.mark.parametrize("fallback", [False, True])
def test_a_dead_link_is_tried_once_a_second_at_most(fallback):
    world = World(ClientSettings(slo=0.15, rate=10, fallback=fallback))
    world.bytes_per_s = lambda at: 0.0 if at > 1 else 1e6
    world.stream(10, 20)
    world.run(30)
    late = [when for when, _, _ in world.sent if when > 1.5]
    assert 2 <= len(late) <= 20
    assert sum(world.results().values()) == 200
    assert (world.results()["fallback"] > 180) == fallback


def test_after_a_dead_link_it_recovers():
    world = World(ClientSettings(slo=0.15, rate=10, fallback=True))
    world.bytes_per_s = lambda at: 0.0 if 1 < at < 6 else 1e6
    world.stream(10, 12)
    world.run(20)
    late = [world.outcomes[frame] for frame in range(100, 121)]
    assert {outcome.result for outcome in late} == {FrameResult.ANSWERED}


def test_the_fallback_runs_what_has_not_reached_the_server():
    world = World(ClientSettings(slo=0.3, rate=10, fallback=True))
    world.bytes_per_s = lambda at: 0.0 if at > 1.001 else 1e6
    world.stream(10, 1.1)
    world.run(5)
    last = world.outcomes[11]
    assert 11 in [frame for _, frame, _ in world.sent]
    assert (last.result, last.detail) == (FrameResult.FALLBACK, "has not reached the server")


def test_an_unmapped_client_runs_its_fallback_and_tries_now_and_then():
    world = World(ClientSettings(slo=0.15, rate=10, fallback=True))
    world.advice = Advice(0, mapped=False)
    world.stream(10, 5)
    world.run(8)
    assert sum(world.results().values()) == 50
    assert set(world.results()) <= {"fallback", "answered"}
    assert 4 <= len(world.sent) <= 6
    assert set(world.sizes.values()) == {128}
    assert {frame for _, frame, _ in world.sent} <= set(world.runs)


def test_an_unmapped_client_without_fallback_sends_the_smallest_size():
    world = World(ClientSettings(slo=0.15, rate=10))
    world.advice = Advice(0, mapped=False)
    world.stream(10, 2)
    world.run(5)
    assert world.results() == {"answered": 20}
    assert set(world.sizes.values()) == {128}


@pytest.mark.parametrize(("fallback", "result"), [(False, "refused"), (True, "fallback")])
def test_what_is_refused_goes_to_the_fallback_or_is_said(fallback, result):
    world = World(ClientSettings(slo=0.15, rate=10, fallback=fallback))
    world.refuses = lambda frame: True
    world.stream(10, 2)
    world.run(5)
    assert world.results()[result] >= 19  # with a fallback, the first is made while connecting
    assert world.outcomes[20].detail == "rejected_overload"


@pytest.mark.parametrize(("served", "result"), [(0.2, "late"), (None, "lost")])
def test_a_slow_server_gives_late_answers_and_a_silent_one_none(served, result):
    world = World(ClientSettings(slo=0.1, rate=10))
    world.serves = lambda frame: served
    world.stream(10, 1)
    world.run(5)
    assert world.results() == {result: 10}


def test_it_reconnects_with_growing_delays_that_differ_between_clients():
    def connects(seed: int) -> list[float]:
        world = World(ClientSettings(), seed=seed)
        world.accepts = lambda address: False
        world.run(100)
        return world.connects

    attempts = connects(1)
    gaps = [after - before for before, after in pairwise(attempts)]
    assert 0.05 <= gaps[0] <= 0.106
    assert all(5.0 <= gap <= 10.006 for gap in gaps[8:])
    assert attempts == connects(1) != connects(2)


def test_frames_in_flight_are_lost_with_the_connection_and_the_next_ones_are_served():
    world = World(ClientSettings(slo=0.15, rate=10))
    world.stream(10, 3)
    world.at(1.005, world.disconnect)
    world.run(6)
    assert world.results() == {"answered": 29, "lost": 1}
    assert world.outcomes[11].detail == "reset"


def test_without_a_server_the_fallback_runs_everything():
    world = World(ClientSettings(slo=0.15, rate=10, fallback=True))
    world.accepts = lambda address: False
    world.stream(10, 3)
    world.run(6)
    assert world.results() == {"fallback": 30}
    assert all(outcome.seconds < 0.02 for outcome in world.outcomes.values())


def test_a_slow_fallback_runs_the_newest():
    world = World(ClientSettings(slo=0.2, rate=20, fallback=True))
    world.accepts, world.fallback_s = lambda address: False, 0.08
    world.stream(20, 5)
    world.run(8)
    ended = world.results()
    assert ended["fallback"] >= 50
    assert ended["fallback"] + ended["late"] + ended["lost"] == 100
    assert ended["late"] <= 2


def test_a_server_that_never_answers_the_hello_is_asked_again():
    core = ClientCore(ClientSettings(), Random(0))
    assert core.handle(TimerDue(), now=0.0) == [Connect()]
    assert core.next_wakeup() == 5.0
    assert core.handle(TimerDue(), now=5.0) == [Disconnect(0)]
    assert core.handle(TimerDue(), now=core.next_wakeup()) == [Connect(1)]


def test_a_plain_server_gets_what_is_on_time_by_the_clients_own_estimate():
    world = World(ClientSettings(slo=0.2, rate=10, sizes=SIZES))
    world.acknowledges = False
    world.bytes_per_s = lambda at: 2e6 if at < 10 else 2e5
    world.stream(10, 20)
    world.run(25)
    sent = {frame: when for when, frame, _ in world.sent}
    assert {world.sizes[frame] for frame, when in sent.items() if 5 < when < 10} == {608}
    assert max(world.sizes[frame] for frame, when in sent.items() if when > 14) < 608
    assert world.results()["answered"] > 180


def test_a_plain_server_without_sizes_gets_frames_as_they_are():
    world = World(ClientSettings(slo=1.0))
    world.acknowledges = False
    world.stream(5, 1)
    world.run(3)
    assert set(world.sizes.values()) == {0}
    assert world.results() == {"answered": 5}


def test_closing_gives_every_frame_its_outcome():
    world = World(ClientSettings(slo=1.0, fallback=True))
    world.run(0.1)
    world.bytes_per_s = lambda at: 1e3
    for _ in range(4):
        world.capture()
    world.run(0.15)
    world.tell(ClientClosed())
    assert sorted(world.outcomes) == [1, 2, 3, 4]
    assert world.core.next_wakeup() == inf
    world.capture()
    assert world.outcomes[5].detail == "the client was closed"


def connected(options: ClientSettings) -> ClientCore:
    core = ClientCore(options, Random(0))
    core.handle(TimerDue(), now=0.0)
    core.handle(Connected(VARIANTS, Advice(608)), now=0.0)
    return core


def test_a_frame_that_cannot_be_encoded_is_refused_and_the_stream_goes_on():
    core = connected(ClientSettings())
    assert core.handle(FrameCaptured(1, 640, 480, 0.0), now=0.0) == [EncodeFrame(1, 128)]
    (report,) = core.handle(FrameEncoded(1, 0, "no JPEG"), now=0.001)
    assert report == ReportOutcome(1, FrameOutcome(FrameResult.REFUSED, 0.001, 128, "", "no JPEG"))
    assert core.handle(FrameCaptured(2, 640, 480, 0.1), now=0.1) == [EncodeFrame(2, 128)]
    with pytest.raises(ValueError, match="frame 2"):
        core.handle(FrameCaptured(2, 640, 480, 0.1), now=0.1)


def test_a_frame_that_turns_out_larger_than_expected_is_made_smaller():
    core = connected(ClientSettings(slo=0.1, bytes_per_s=1e6))
    (action,) = core.handle(FrameCaptured(1, 1280, 720, 0.0), now=0.0)
    sizes = []
    while isinstance(action, EncodeFrame):
        sizes.append(action.size)
        (action,) = core.handle(FrameEncoded(1, action.size**2), now=0.0)
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert action == SendFrame(1, 0.0, 1e6)


def test_unknown_and_stale_events_change_nothing():
    core = ClientCore(ClientSettings(), Random(0))
    core.handle(TimerDue(), now=0.0)
    for event in (
        FrameEncoded(7, 10),
        FrameSent(7),
        FrameAcknowledged(7),
        FrameAnswered(7),
        FallbackDone(7),
    ):
        assert core.handle(event, now=0.1) == []
    core.handle(FrameCaptured(8, 640, 480, 0.2), now=0.2)
    assert core.handle(FrameAnswered(8), now=0.25) == []  # it was never sent


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"slo": 0.0}, "slo"),
        ({"slo": inf}, "slo"),
        ({"rate": -1.0}, "rate"),
        ({"sizes": (0,)}, "sizes"),
        ({"bytes_per_s": float("nan")}, "bytes_per_s"),
        ({"most_waiting": 0}, "most_waiting"),
    ],
)
def test_bad_settings_are_named(wrong, field):
    with pytest.raises(ValueError, match=field):
        ClientSettings(**wrong)


@pytest.mark.parametrize("name", ["core", "messages", "uplink"])
def test_the_core_does_no_io(name):
    source = Path(importlib.import_module(f"slacktide.client.{name}").__file__ or "")
    imported = {
        node.module or ""
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    allowed = {"__future__", "dataclasses", "enum", "math", "random", "typing"}
    assert {name for name in imported if not name.startswith("slacktide.")} <= allowed


RATES = st.sampled_from([0.0, 1e3, 2e4, 1e5, 1e6, 2e7])
MOST_BYTES = 60_000


@given(st.data())
def test_in_any_world_each_frame_has_one_outcome(data):
    def draw(*choices):
        return data.draw(st.sampled_from(choices))

    rates = data.draw(st.lists(RATES, min_size=1, max_size=6))
    losing, refusing = draw(0, 1, 4), draw(0, 1, 6)
    slo, fallback, fps = draw(0.05, 0.15, 0.6), draw(False, True), draw(2.0, 10.0, 25.0)
    options = ClientSettings(
        slo=slo, rate=fps, sizes=SIZES, fallback=fallback, most_bytes_in_flight=MOST_BYTES
    )
    world = World(options, seed=draw(0, 1, 2))
    world.acknowledges, world.says_transfer = draw(True, False), draw(True, False)
    world.round_trip, world.fallback_s = draw(0.0, 0.02, 0.2), draw(0.01, 0.1, 1.0)
    world.bytes_per_s = lambda at: rates[int(at) % len(rates)]
    served = draw(0.005, 0.08, 0.5)
    world.serves = lambda frame: None if frame % 5 < losing else served
    world.refuses = lambda frame: frame % 7 < refusing
    world.advice = Advice(416, mapped=draw(True, False))
    for when in data.draw(st.lists(st.floats(0.1, 6.0), max_size=3)):
        world.at(when, world.disconnect)
    world.stream(fps, 5)
    world.run(30)
    assert sorted(world.outcomes) == list(range(1, world.frames + 1))
    assert world.most_in_flight <= max(MOST_BYTES, 62_714)  # one alone may be larger
    assert set(world.sizes.values()) <= set(SIZES)
    for outcome in world.outcomes.values():
        assert outcome.seconds <= slo + max(slo, 1.0) + 1e-9
        if outcome.on_time:
            assert outcome.seconds <= slo + 1e-9
    if fallback:  # only trials, one a second at most, which are left to the fallback as well
        assert len(world.hopeless) <= 7
        assert {world.sizes[frame] for frame in world.hopeless} <= {SIZES[0]}


def moving(*, follow: bool = True, fallback: bool = False) -> World:
    """A world in which the server sends the client to `b:1` after two seconds."""
    settings = ClientSettings(slo=0.4, rate=20, bytes_per_s=1e7, follow=follow, fallback=fallback)
    world = World(settings)
    world.bytes_per_s = lambda at: 1e7
    world.serves = lambda frame: 0.3
    world.stream(20, 5)
    world.at(2.0, lambda: world.advise("b:1"))
    return world


def test_a_client_that_is_sent_to_another_server_goes_on_there_and_loses_nothing():
    world = moving()
    world.run(2.1)
    assert sorted(world.links.values()) == ["", "b:1"]  # answers of the first are still to come
    world.run(8)
    assert world.results() == {"answered": 100}
    assert [world.places[frame] for frame in (40, 43, 100)] == ["", "b:1", "b:1"]
    assert list(world.links.values()) == ["b:1"]
    assert len(world.connects) == 2


@pytest.mark.parametrize("accepts", [False, None])
def test_a_client_stays_if_the_other_server_does_not_welcome_it(accepts):
    world = moving()
    world.accepts = lambda address: accepts if address else True
    world.run(10)
    assert world.results() == {"answered": 100}
    assert set(world.places.values()) == {""}
    assert list(world.links.values()) == [""]
    assert len(world.connects) == 2


def test_a_client_that_does_not_follow_stays():
    world = moving(follow=False)
    world.run(8)
    assert world.results() == {"answered": 100}
    assert len(world.connects) == 1


def test_a_client_goes_back_to_its_first_server_when_it_loses_the_other():
    world = moving()
    world.at(3.001, lambda: world.disconnect("b:1"))
    world.run(8)
    assert sum(world.results().values()) == 100
    assert world.results()["answered"] >= 85  # b had seven, and some wait for the connection
    assert [world.places[frame] for frame in (40, 50, 70)] == ["", "b:1", ""]
    assert world.connects[-1] <= 3.1


def test_frames_that_the_first_server_has_are_lost_with_it_alone():
    world = moving(fallback=True)
    world.at(2.1, lambda: world.disconnect(""))
    world.run(8)
    assert world.results()["answered"] >= 92
    assert sum(world.results().values()) == 100
    assert list(world.links.values()) == ["b:1"]


def test_advice_to_move_is_passed_over_while_the_client_moves():
    world = moving()
    for when in (2.001, 2.01, 2.1):
        world.at(when, lambda: world.advise("c:1"))
    world.at(3.0, lambda: world.advise("b:1"))  # it is there
    world.run(8)
    assert len(world.connects) == 2
    assert world.results() == {"answered": 100}


def test_advice_of_a_server_that_the_client_has_left_changes_nothing():
    world = moving()
    world.run(2.1)
    old = next(link for link, address in world.links.items() if not address)
    world.tell(MoveAdvised("c:1"), old)
    world.tell(AdviceChanged(Advice(128)), old)
    world.tell(Connected(VARIANTS, Advice(128)), 77)
    assert world.core.advice == world.advice
    assert len(world.connects) == 2


def test_a_client_that_is_closed_while_it_moves_stays_closed():
    world = moving()
    world.at(2.002, lambda: world.tell(ClientClosed()))
    world.run(3.0)
    closed = len(world.connects)
    assert world.core.handle(Connected(VARIANTS, world.advice), now=3.0, link=1) == []
    world.run(8)
    assert len(world.connects) == closed
    assert sorted(world.outcomes) == list(range(1, 101))


MOMENTS = st.floats(0.1, 5.5)
ADDRESSES = st.sampled_from(["b:1", "c:1", "refuses:1", "never answers:1"])


@given(st.data(), st.lists(st.tuples(MOMENTS, ADDRESSES), max_size=6))
def test_wherever_clients_are_sent_each_frame_has_one_outcome(data, advice):
    slo = data.draw(st.sampled_from([0.05, 0.2, 0.6]))
    fallback = data.draw(st.booleans())
    world = World(ClientSettings(slo=slo, rate=20.0, sizes=SIZES, fallback=fallback))
    world.bytes_per_s = lambda at: 2e6
    served = data.draw(st.sampled_from([0.005, 0.1, 0.5]))
    losing = data.draw(st.sampled_from([0, 1]))
    world.serves = lambda frame: None if frame % 5 < losing else served
    world.accepts = lambda address: {"refuses:1": False, "never answers:1": None}.get(address, True)
    for when, address in advice:
        world.at(when, lambda address=address: world.advise(address))
    for when, address in data.draw(st.lists(st.tuples(MOMENTS, ADDRESSES | st.just("")))):
        world.at(when, lambda address=address: world.disconnect(address))
    world.stream(20, 5)
    world.run(30)
    assert sorted(world.outcomes) == list(range(1, world.frames + 1))
    assert len(world.links) == 1
    for outcome in world.outcomes.values():
        assert outcome.seconds <= slo + max(slo, 1.0) + 1e-9
        assert not outcome.on_time or outcome.seconds <= slo + 1e-9


def test_what_follows_a_frame_that_was_slow_is_expected_later():
    uplink = Uplink(1 << 20, 1e6)
    uplink.send(1, 50_000, 1.0, now=0.0)
    uplink.send(2, 50_000, 1.0, now=0.045)
    assert uplink.opens_at(now=0.05) == pytest.approx(0.1 - SPARE_S)
    uplink.arrived(1, 0.07, now=0.07)  # at 0.71 of the rate: no fall
    assert uplink.opens_at(now=0.07) == pytest.approx(0.07 + 0.07 - SPARE_S, abs=0.003)
