"""Clients with a camera and a link: when things happen, what is noted of each frame."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.client.core import ClientCore
from slacktide.client.messages import (
    Advice,
    AdviceChanged,
    ClientAction,
    ClientEvent,
    ClientSettings,
    Connect,
    Connected,
    EncodeFrame,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameOutcome,
    FrameResult,
    ReportOutcome,
    SendFrame,
    TimerDue,
)
from slacktide.domain import (
    Announced,
    InputSize,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Submitted,
)
from slacktide.lab.simulation import Simulation
from slacktide.lab.simulation.acting import ANSWER_BYTES, FIRST_ID, SimulatedClients
from slacktide.lab.simulation.clients import SimulatedClient
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.workloads import BandwidthTrace, ConstantLink, TraceLink
from slacktide.lab.workloads.bandwidth import MBIT
from slacktide.planning import Draft, Planner, SessionClosed, SessionMeasured, SessionOpened
from slacktide.planning.variants import FamilyVariant

VARIANTS = (FamilyVariant("", 0.5, 100), FamilyVariant("large", 0.9, 200))


class Sender:
    """Sends every frame at the size it was told last, and keeps what it hears."""

    def __init__(self, side: int = 100, slo: float = 0.1) -> None:
        self.side, self.slo = side, slo
        self.heard: list[tuple[float, ClientEvent]] = []
        self._captured: dict[int, float] = {}

    def next_wakeup(self) -> float:
        return float("inf")

    def handle(self, event: ClientEvent, *, now: float) -> Sequence[ClientAction]:
        self.heard.append((now, event))
        match event:
            case TimerDue():
                return (Connect(),)
            case AdviceChanged():
                self.side = event.advice.size
            case FrameCaptured():
                self._captured[event.id] = event.captured_at
                return (EncodeFrame(event.id, self.side),)
            case FrameEncoded():
                return (SendFrame(event.id, now - self._captured[event.id], 0.0),)
            case FrameAnswered():
                seconds = now - self._captured.pop(event.id)
                late = FrameResult.LATE if seconds > self.slo else FrameResult.ANSWERED
                result = FrameResult.REFUSED if event.failed else late
                return (ReportOutcome(event.id, FrameOutcome(result, seconds)),)
        return ()

    def times(self, kind: type[ClientEvent]) -> list[float]:
        return [now for now, event in self.heard if isinstance(event, kind)]


def client(logic: Any, **more: Any) -> SimulatedClient:
    defaults: dict[str, Any] = {
        "id": "s:1",
        "model": "m",
        "logic": logic,
        "link": ConstantLink(1e6, rtt=0.01),
        "rate": 10.0,
        "slo": 0.1,
        "variants": VARIANTS,
        "smallest_run_s": 0.01,
        "frame_bytes": lambda side: float(side * side),
        "jitter": repeat(1.0),
        "leaves": 0.35,
    }
    return SimulatedClient(**{**defaults, **more})


def play(world: Any, *clients: SimulatedClient, **more: Any) -> SimulatedClients:
    acting = SimulatedClients(clients, world.simulation.put_turn, **more)
    world.simulation.join(acting)
    world.simulation.run(more.pop("items", ()))
    return acting


def test_a_frame_takes_its_way_its_batch_and_the_way_back(make: Any) -> None:
    world, sender = make.world(fixed=0.02, per_row=0.0), Sender()
    frames = play(world, client(sender)).frames
    # 10 ms for 10,000 bytes, 5 ms each way, 20 ms in the batch, and the bytes of the answer.
    took = 0.01 + 0.01 + 0.02 + ANSWER_BYTES / 1e6
    assert [frame.captured for frame in frames] == pytest.approx([0.1, 0.2, 0.3])
    assert [frame.outcome.seconds for frame in frames if frame.outcome] == pytest.approx([took] * 3)
    assert [frame.missed for frame in frames] == [False] * 3
    assert {(frame.side, frame.nbytes, frame.variant, frame.accuracy) for frame in frames} == {
        (100, 10_000, "", 0.5)
    }
    assert sender.times(FrameAcknowledged) == pytest.approx([0.12, 0.22, 0.32])


def test_the_server_hears_of_a_frame_before_it_is_there(make: Any) -> None:
    world = make.world(fixed=0.02, per_row=0.0)
    play(world, client(Sender(), leaves=0.15))
    first = [
        (now, event)
        for now, events, _ in world.log
        for event in events
        if isinstance(event, (Announced, Submitted))
    ]
    (announced_at, announced), (submitted_at, submitted) = first
    assert (announced_at, submitted_at) == pytest.approx((0.105, 0.115))
    assert isinstance(announced, Announced)
    assert isinstance(submitted, Submitted)
    # Its age was 0 when it was sent; what is left for the server excludes both ways.
    back = ANSWER_BYTES / 12.5e6
    assert announced.notice.deadline == pytest.approx(0.105 + 0.1 - 0.01 - back)
    assert announced.notice.client == submitted.request.client == "s:1"
    assert announced.notice.id == submitted.request.id == FIRST_ID
    assert submitted.request.size == 100


def test_a_frame_gets_its_size_when_it_is_sent(make: Any) -> None:
    world, sender = make.world(fixed=0.02, per_row=0.0), Sender()
    plan = Plan(world.plan.lanes, world.plan.deployments, world.plan.routes)
    advised = Plan(plan.lanes, plan.deployments, plan.routes, (InputSize("m", "s:1", "large"),))
    acting = SimulatedClients([client(sender)], world.simulation.put_turn)
    world.simulation.join(acting)
    world.simulation.run([ExternalEvent(0.16, PlanChanged(advised))])
    assert [(frame.side, frame.nbytes) for frame in acting.frames] == [
        (100, 10_000),
        (200, 40_000),
        (200, 40_000),
    ]
    # Pushed alone, since nothing was being answered; the variant that ran is the smaller.
    assert sender.times(AdviceChanged) == pytest.approx([0.165])
    assert [frame.accuracy for frame in acting.frames] == [0.5, 0.5, 0.5]


def test_frames_that_no_policy_could_save_are_marked(make: Any) -> None:
    # 10,000 bytes take 80 ms on the slow half of the link; 80 + 10 + 10 + 2.4 > 100.
    trace = BandwidthTrace([0.0, 0.25], [8 * MBIT, 1 * MBIT], 0.5)
    world = make.world(fixed=0.01, per_row=0.0)
    frames = play(world, client(Sender(), link=TraceLink(trace, 0.01))).frames
    assert [frame.savable for frame in frames] == [True, True, False]
    assert [frame.missed for frame in frames] == [False, False, True]


def test_frames_of_a_client_follow_one_another_on_its_link(make: Any) -> None:
    world = make.world(fixed=0.001, per_row=0.0)
    sender = Sender(slo=1.0)
    play(world, client(sender, link=ConstantLink(1e5), slo=1.0, rate=20.0, leaves=0.2))
    # Each takes 100 ms and one comes every 50 ms: the third is there 300 ms after the first began.
    assert sender.times(FrameAcknowledged) == pytest.approx([0.15, 0.25, 0.35])


def test_one_that_is_refused_at_its_announcement_is_acknowledged_all_the_same(make: Any) -> None:
    world = make.world(scheduler="slack", fixed=5.0, per_row=0.0)
    sender = Sender()
    acting = play(world, client(sender, leaves=0.15))
    assert world.reasons == {FIRST_ID: Reason.SHORTER_THAN_ALONE}
    assert sender.times(FrameAnswered) == pytest.approx([0.105 + 0.005 + ANSWER_BYTES / 1e6])
    assert sender.times(FrameAcknowledged) == pytest.approx([0.12])
    assert [frame.outcome.result for frame in acting.frames if frame.outcome] == [
        FrameResult.REFUSED
    ]


def test_planners_hear_of_sessions(make: Any) -> None:
    heard: list[object] = []

    class Listener(Planner):
        def observe_sessions(self, events: Sequence[object], *, now: float) -> None:
            heard.extend(events)

        def owns(self, stated: Any) -> frozenset[Any]:
            return frozenset({("m", "anything")})

        def plan(self, snapshot: Any, draft: Draft, *, now: float) -> Draft:
            return draft

    plain = make.world(fixed=0.02, per_row=0.0)
    simulation = Simulation(
        plain.engine, plain.plan, plain.times, planners=(Listener(),), stated={"m": ()}
    )
    acting = SimulatedClients(
        [client(Sender(), rate=5.0, leaves=0.7, min_accuracy=0.2)], simulation.put_turn
    )
    simulation.join(acting)
    simulation.run()
    assert heard[0] == SessionOpened("s:1", "m", 5.0, 0.1, 0.2)
    assert heard[-1] == SessionClosed("s:1")
    measured = [event for event in heard if isinstance(event, SessionMeasured)]
    assert len(measured) == 3
    assert measured[-1].bytes_per_s == pytest.approx(1e6, rel=0.3)
    assert measured[-1].rtt == pytest.approx(0.01)
    assert measured[-1].bytes_per_pixel * measured[-1].pixels == pytest.approx(10_000, rel=0.01)


@pytest.mark.slow
@given(
    seed=st.integers(0, 5),
    rates=st.lists(st.sampled_from((0.0, 0.5, 3.0, 20.0)), min_size=2, max_size=5),
    slo=st.sampled_from((0.05, 0.2)),
)
@settings(max_examples=25)
def test_the_sdks_client_ends_each_frame_once_whatever_its_link_does(
    make: Any, seed: int, rates: list[float], slo: float
) -> None:
    steps = [max(rates[0], 0.5), *rates[1:]]
    trace = BandwidthTrace(range(len(steps)), [rate * MBIT for rate in steps])
    ends: dict[tuple[str, float], int] = {}

    def run() -> list[Any]:
        world = make.world(scheduler="slack", fixed=0.01, per_row=0.002, lanes=2)

        def note(sender: SimulatedClient, record: Any) -> None:
            ends[sender.id, record.captured] = ends.get((sender.id, record.captured), 0) + 1

        clients = [
            client(
                ClientCore(ClientSettings(slo=slo, rate=20.0), Random(seed)),
                id=f"s:{number}",
                link=TraceLink(trace, 0.01, 0.3 * number),
                slo=slo,
                rate=20.0,
                leaves=4.0,
            )
            for number in range(3)
        ]
        acting = SimulatedClients(clients, world.simulation.put_turn, recorded=note)
        world.simulation.join(acting)
        world.simulation.run(until=15.0)
        return [(e.client, e.captured, e.outcome, e.side, e.savable) for e in acting.frames]

    once = run()
    assert len(once) == 3 * 79
    assert set(ends.values()) == {1}
    assert len(ends) == len(once)
    ends.clear()
    assert run() == once


def test_connecting_takes_a_round_trip_and_names_the_variants(make: Any) -> None:
    world, sender = make.world(fixed=0.02, per_row=0.0), Sender()
    play(world, client(sender), advise=lambda session: Advice(size=200, variant="large"))
    ((at, connected),) = [pair for pair in sender.heard if isinstance(pair[1], Connected)]
    assert at == pytest.approx(0.01)
    assert connected == Connected(
        (("", 100, 0.5), ("large", 200, 0.9)), Advice(size=200, variant="large")
    )
    assert PoolId("m", "1") in {deployment.pool for deployment in world.plan.deployments}
