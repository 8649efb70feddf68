"""Calls that peers may answer: over links in memory, whatever happens to call, link and peer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.peers.homes import BUDGET_S, Home, refused, run, served
from tests.server.test_data_plane import ROW, call

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.domain.tensors import Datatype
from slacktide.models.versions import LoadedVersion
from slacktide.server.calls.call_states import STEPS, CallState
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.errors import WireError

DEEDS = (
    "announce", "submit", "refuse", "cancel", "drop", "busy", "serve", "fail", "answer", "late",
    "turned away", "crashed", "lose b", "lose c", "join b", "turn", "loop", "idle", "drain",
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(DEEDS)), max_size=25),
    st.sampled_from((0.0, 1.0, inf)),
)
def test_whatever_happens_a_call_has_one_outcome_and_gives_everything_back(deeds, wait_s):
    async def play() -> None:
        home = Home(wait_s, requests=3, arriving=48)
        driver, plane = home.bench.driver, home.bench.plane
        calls: list[Any] = [home.open() for _ in range(3)]
        replies: list[list[Any]] = [[], [], []]
        cancelled: dict[int, list[Any]] = {}
        begun: set[int] = set()

        def in_engine(number: int) -> bool:
            return driver.open.get(calls[number].id) is calls[number]

        async def act(number: int, deed: str) -> None:
            opened = calls[number]
            after_submit = number in begun and "submit" in done[number]
            match deed:
                case "announce" if opened.state is CallState.OPEN and not after_submit:
                    begun.add(number)
                    place = opened.announce(len(ROW), {"timeout": int(BUDGET_S * 1e6)})
                    if isinstance(place, InferReply):
                        replies[number].append(place)
                    else:
                        place[:] = ROW
                        places[number] = place
                case "submit" if deed in STEPS[opened.state] and not after_submit:
                    begun.add(number)
                    done[number].add("submit")
                    infer = call(places.get(number, ROW), timeout=int(BUDGET_S * 1e6))
                    opened.submit(infer, replies[number].append)
                case "refuse" if deed in STEPS[opened.state] and not after_submit:
                    begun.add(number)
                    done[number].add("submit")
                    opened.refuse(Reason.BAD_INPUT, "bad")
                    cancelled.setdefault(number, list(replies[number]))
                case "cancel":
                    opened.cancel(Reason.DISCONNECTED)
                    cancelled.setdefault(number, list(replies[number]))
                case "drop" if in_engine(number):
                    driver.end(opened.id, Reason.EXPIRED)
                case "busy" if in_engine(number):
                    driver.end(opened.id, Reason.BEHIND_WORK)
                case "serve" if in_engine(number) and opened.state is CallState.SUBMITTED:
                    driver.end(opened.id, Reason.ON_TIME, (((1, 4), ROW),))
                case "fail" if in_engine(number) and opened.state is CallState.SUBMITTED:
                    driver.end(opened.id, Reason.RUNTIME_ERROR)
                case "answer" if home.away:
                    home.away[0].end(served())
                case "late" if home.away:
                    home.away[-1].end(served(Reason.AFTER_DEADLINE))
                case "turned away" if home.away:
                    home.away[0].end(refused(Reason.BEHIND_WORK))
                case "crashed" if home.away:
                    home.away[0].end(refused(Reason.RUNTIME_ERROR))
                case "lose b" | "lose c":
                    home.lose(deed[-1])
                case "join b" if "b" not in home.links:
                    home.join("b")
                case "turn":
                    home.turn()
                case "loop":
                    await asyncio.sleep(0)
                case "idle":
                    home.wait_s = 0.0
                case "drain":
                    plane.draining = True

        done: list[set[str]] = [set(), set(), set()]
        places: dict[int, Any] = {}
        for number, deed in deeds:
            await act(number, deed)
            home.bench.arena.check_invariants()
        for number in range(3):  # to the end
            if "submit" not in done[number]:
                await act(number, "cancel")
        while True:
            home.turn()
            await asyncio.sleep(0)
            if home.away:
                home.away[0].end(served())
            elif driver.open:
                id = next(iter(driver.open))
                driver.end(id, Reason.ON_TIME, (((1, 4), ROW),))
            else:
                home.turn()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if not (home.away or driver.open):
                    break
        for number, reply in enumerate(replies):
            if number in cancelled:
                assert reply == cancelled[number]
            else:
                assert len(reply) == 1
        assert sum(home.counts().values()) == len(begun)
        home.check_empty()

    asyncio.run(play())


def test_a_call_goes_to_the_peer_that_answers_sooner_and_is_answered_once_here():
    def test() -> None:
        home = Home(wait_s=1.0, peers="b")
        _, replies = home.submit(
            report_timing=True, priority=1, network_us=1000, binary_data_output=True
        )
        (sent,) = home.away
        assert not home.bench.driver.open
        assert (sent.call.model, sent.call.version) == ("m", "1")
        assert bytes(sent.call.inputs[0].data) == ROW
        assert sent.call.parameters == {"priority": 1}
        assert sent.budget_s == pytest.approx(0.5 + BUDGET_S - 0.001 - 1.0)
        home.bench.driver.now = 2.0
        sent.end(served())
        (reply,) = replies
        assert reply.outputs is not None
        assert bytes(reply.outputs[0].data) == ROW
        assert reply.outcome.reason is Reason.ON_TIME
        assert reply.outcome.queue_s + reply.outcome.compute_s == pytest.approx(1.5)
        assert reply.parameters["machine"] == "b"
        assert home.counts() == {Reason.ON_TIME: 1}
        assert home.peers.forwarded == {("m", "out"): 1}
        home.check_empty()

    run(test)


def test_an_answer_that_comes_back_too_late_is_late_whatever_the_peer_says():
    def test() -> None:
        home = Home(wait_s=1.0)
        _, replies = home.submit()
        home.bench.driver.now = 0.5 + BUDGET_S + 0.1
        home.away[0].end(served())
        assert replies[0].outcome.reason is Reason.AFTER_DEADLINE
        assert replies[0].outcome.budget_s == pytest.approx(-0.1)

    run(test)


def test_a_server_that_is_free_answers_itself_and_says_so():
    def test() -> None:
        home = Home(wait_s=0.0)
        opened, replies = home.submit(report_timing=True)
        assert not home.away
        home.bench.driver.end(opened.id, Reason.ON_TIME, (((1, 4), ROW),))
        assert replies[0].parameters["machine"] == "a"

    run(test)


def test_a_client_is_sent_to_the_peer_that_answers_sooner_and_has_no_outcome_here():
    def test() -> None:
        home = Home(wait_s=1.0, peers="c")
        home.join("b", address="10.0.0.2:8000")
        home.report("c", 0.5)
        assert home.elsewhere() == "http://10.0.0.2:8000"
        assert home.peers.forwarded == {("m", "redirected"): 1}
        for _ in range(2_000):  # each counts at the peer until its next report
            home.elsewhere()
        assert 400 < home.peers.forwarded["m", "redirected"] < 1_100
        home.report("b", 0.0)
        assert home.elsewhere() == "http://10.0.0.2:8000"
        assert home.elsewhere(timeout=1) == ""  # nobody has the time
        assert home.elsewhere(timeout="soon") == ""  # `announce` refuses it
        free = Home(wait_s=0.0, peers="")
        free.join("b", address="10.0.0.2:8000")
        assert free.elsewhere() == ""
        assert home.counts() == {}
        assert not home.away
        home.check_empty()

    run(test)


@pytest.mark.parametrize("reason", ["no address", "no deadline", "redirected"])
def test_a_client_stays_if_it_must(reason: str) -> None:
    def test() -> None:
        home = Home(wait_s=inf, peers="")
        link = home.join("b", address="" if reason == "no address" else "10.0.0.2:8000")
        context = CallContext(0.5, "client", "http", redirected=reason == "redirected")
        parameters = {} if reason == "no deadline" else {"timeout": int(BUDGET_S * 1e6)}
        opened = home.plane.call("m", None, context)
        assert opened.elsewhere(100, parameters) == ""
        opened.announce(100, parameters)
        opened.submit(call(ROW, **parameters), lambda reply: None)
        assert len(link.sent) == (reason == "no address")

    run(test)


def test_a_call_that_was_redirected_here_is_not_rescued() -> None:
    def test() -> None:
        home = Home(wait_s=0.0)
        opened = home.plane.call("m", None, CallContext(0.5, "client", "http", redirected=True))
        replies: list[InferReply] = []
        opened.submit(call(ROW, timeout=int(BUDGET_S * 1e6)), replies.append)
        home.bench.driver.end(opened.id, Reason.BEHIND_WORK)
        assert [reply.outcome.reason for reply in replies] == [Reason.BEHIND_WORK]
        assert not home.away

    run(test)


def test_requests_of_one_turn_see_each_other():
    def test() -> None:
        home = Home(wait_s=0.0)
        for _ in range(100):
            home.submit()
        # Each delays the next by 1 ms here as at the peers: a third goes to either.
        assert 20 < len(home.bench.driver.open) < 50
        assert 20 < len(home.links["b"].sent) < 50

    run(test)


def test_a_server_without_requests_keeps_the_next():
    def test() -> None:
        home = Home(wait_s=1.0)
        home.submit()
        assert len(home.away) == 1
        home.peers.in_flight = lambda: 0
        home.submit()
        assert len(home.away) == 1

    run(test)


def test_best_effort_stays_at_home():
    def test() -> None:
        home = Home(wait_s=inf)
        opened, _ = home.submit(timeout=0)
        assert not home.away
        home.bench.driver.end(opened.id, Reason.UNAVAILABLE)
        assert home.counts() == {Reason.UNAVAILABLE: 1}

    run(test)


@pytest.mark.parametrize(
    ("reason", "forwarded"),
    [
        (Reason.BEHIND_WORK, True),
        (Reason.QUEUE_FULL, True),
        (Reason.UNAVAILABLE, True),
        (Reason.DRAINING, True),
        (Reason.EXPIRED, False),
        (Reason.CRASHED, False),
        (Reason.UNMEASURED, False),
    ],
)
def test_a_refused_call_is_forwarded_if_a_peer_has_the_time(reason, forwarded):
    def test() -> None:
        home = Home(wait_s=0.0)
        opened, replies = home.submit()
        home.bench.driver.end(opened.id, reason)
        assert len(home.away) == forwarded
        assert len(replies) == 1 - forwarded
        home = Home(wait_s=0.0)
        for machine in "bc":
            home.report(machine, BUDGET_S)
        opened, replies = home.submit()
        home.bench.driver.end(opened.id, reason)
        assert not home.away
        assert len(replies) == 1

    run(test)


def test_what_both_refuse_is_refused_with_the_reason_of_this_server():
    async def main() -> None:
        home = Home(wait_s=0.0)
        opened, replies = home.submit()
        home.bench.driver.end(opened.id, Reason.QUEUE_FULL)
        home.away[0].end(refused(Reason.BEHIND_WORK))
        await asyncio.sleep(0)
        assert [reply.outcome.reason for reply in replies] == [Reason.QUEUE_FULL]
        assert not home.away
        home.check_empty()

    asyncio.run(main())


def test_a_call_whose_peer_is_lost_or_refuses_is_asked_again_at_home():
    async def main() -> None:
        for end in (None, refused(Reason.BEHIND_WORK), refused(Reason.NOT_FOUND)):
            home = Home(wait_s=1.0, peers="b")
            opened, replies = home.submit()
            before = opened.id
            if end is None:
                home.lose("b")
            else:
                home.away[0].end(end)
            await asyncio.sleep(0)
            assert home.bench.driver.open == {opened.id: opened}
            assert opened.id != before
            home.bench.driver.end(opened.id, Reason.ON_TIME, (((1, 4), ROW),))
            assert len(replies) == 1
            assert home.counts() == {Reason.ON_TIME: 1}
            home.check_empty()

    asyncio.run(main())


def test_a_call_that_was_refused_here_goes_elsewhere_when_its_peer_is_lost():
    async def main() -> None:
        home = Home(wait_s=0.0)
        opened, replies = home.submit()
        home.bench.driver.end(opened.id, Reason.BEHIND_WORK)
        (first,) = [machine for machine, link in home.links.items() if link.waiting]
        home.lose(first)
        await asyncio.sleep(0)
        (sent,) = home.away
        sent.end(served())
        assert len(replies) == 1
        home.check_empty()

    asyncio.run(main())


def test_a_call_without_time_left_is_not_asked_again():
    async def main() -> None:
        home = Home(wait_s=1.0, peers="b")
        _, replies = home.submit()
        home.bench.driver.now = 0.5 + BUDGET_S + 1.0
        home.lose("b")
        await asyncio.sleep(0)
        assert [reply.outcome.reason for reply in replies] == [Reason.EXPIRED]
        home.check_empty()

    asyncio.run(main())


def test_cancellations_travel_and_count_here():
    def test() -> None:
        home = Home(wait_s=1.0)
        opened, replies = home.submit()
        (sent,) = home.away
        opened.cancel(Reason.DISCONNECTED)
        assert sent.cancelled
        assert not replies
        assert home.counts() == {Reason.DISCONNECTED: 1}
        home.check_empty()

    run(test)


def test_limits_of_this_server_apply_while_a_peer_has_the_call():
    def test() -> None:
        home = Home(wait_s=1.0, requests=1)
        home.submit()
        _, replies = home.submit()
        assert [reply.outcome.reason for reply in replies] == [Reason.CLIENT_LIMIT]
        assert len(home.away) == 1

    run(test)


def test_an_announced_call_that_is_refused_here_gets_its_body_and_then_a_peer():
    def test() -> None:
        home = Home(wait_s=0.0)
        opened = home.open()
        place = opened.announce(len(ROW), {"timeout": int(BUDGET_S * 1e6)})
        home.bench.driver.end(opened.id, Reason.BEHIND_WORK)
        assert opened.state is CallState.RECEIVING
        place[:] = ROW
        replies: list[InferReply] = []
        opened.submit(call(place, timeout=int(BUDGET_S * 1e6)), replies.append)
        (sent,) = home.away
        assert sent.payload == [ROW]
        sent.end(served())
        assert replies[0].outcome.kind is OutcomeKind.SERVED
        home.check_empty()

    run(test)


def test_the_engine_is_told_of_a_body_for_a_peer_only_if_it_takes_its_time():
    async def main() -> None:
        home = Home(wait_s=1.0, peers="b")
        for takes_time in (False, True):
            opened, replies = home.open(), []
            place = opened.announce(len(ROW), {"timeout": int(BUDGET_S * 1e6)})
            assert not home.bench.driver.open
            if takes_time:
                while not home.bench.driver.open:
                    await asyncio.sleep(0)
            place[:] = ROW
            opened.submit(call(place, timeout=int(BUDGET_S * 1e6)), replies.append)
            await asyncio.sleep(0)
            (sent,) = home.away
            assert not home.bench.driver.open
            sent.end(served())
            assert replies[0].outcome.kind is OutcomeKind.SERVED
            home.turn()
            home.check_empty()

    asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [
        served(datatype=Datatype.INT64),
        served(shape=(4,)),
        served(shape=(1, 2, 2)),
        served(shape=(2, 2)),
        served(shape=(4, 1)),
        replace(served(), outputs=[]),
        replace(served(), outputs=[OutputValue("y", Datatype.FP32, (1, 4), ROW)]),
    ],
)
def test_an_answer_that_does_not_fit_the_model_counts_as_none(reply):
    async def main() -> None:
        home = Home(wait_s=1.0, peers="b")
        opened, replies = home.submit()
        home.away[0].end(reply)
        await asyncio.sleep(0)
        assert not replies
        assert list(home.bench.driver.open) == [opened.id]

    asyncio.run(main())


def test_numbers_and_names_that_a_peer_makes_up_are_not_counted():
    def test() -> None:
        home = Home(wait_s=1.0, peers="b")
        _, replies = home.submit(report_timing=True)
        outcome = Outcome(Reason.EARLY_EXIT, 77.0, -inf, -5.0, 3, 5.0, ramp=4_000_000_000)
        home.bench.driver.now = 2.0
        home.away[0].end(replace(served(), outcome=outcome, variant="made up"))
        (reply,) = replies
        assert (reply.outcome.queue_s, reply.outcome.compute_s) == (1.5, 0.0)
        assert reply.outcome.ramp is None
        assert reply.variant == ""
        assert not home.bench.version.counters.exits

    run(test)


def test_an_announced_call_of_several_batches_leaves_no_notice_behind():
    async def main() -> None:
        home = Home(wait_s=1.0, peers="b")
        rows = 2 * home.bench.version.interface.max_batch
        opened = home.open()
        place = opened.announce(rows * len(ROW), {"timeout": int(BUDGET_S * 1e6)})
        tensor = InputTensor("x", Datatype.FP32, (rows, 4), place)
        replies: list[InferReply] = []
        parameters = {"timeout": int(BUDGET_S * 1e6)}
        opened.submit(InferCall("m", None, "", [tensor], [], parameters), replies.append)
        home.turn()
        assert not home.bench.driver.open
        home.away[0].end(refused(Reason.BEHIND_WORK))
        await asyncio.sleep(0)
        assert len(home.bench.driver.open) == 2  # both parts, at home
        for id in list(home.bench.driver.open):
            home.bench.driver.end(
                id, Reason.ON_TIME, (((rows // 2, 4), bytes(place)[: len(place) // 2]),)
            )
        assert len(replies) == 1
        home.check_empty()

    asyncio.run(main())


def test_a_model_that_was_reloaded_is_not_the_one_that_peers_know():
    async def main() -> None:
        home = Home(wait_s=1.0, peers="b")
        before, catalog = home.bench.version, home.bench.plane.catalog
        opened, replies = home.submit()  # checked against the earlier load
        again = LoadedVersion(
            "m", "1", 1, before.definition, before.interface, before.arena, before.check,
            before.counters,
        )  # fmt: skip
        again.add_pool(None, before.pool.times)  # type: ignore[arg-type]
        catalog.serve("m", {"1": again})
        home.submit()
        assert len(home.away) == 1
        with pytest.raises(WireError, match="not the one"):
            home.peers.call(home.links["b"], "m", "1", CallContext(1.0, "b", "peer", 5.0))
        home.away[0].end(refused(Reason.BEHIND_WORK))
        await asyncio.sleep(0)
        home.bench.driver.end(opened.id, Reason.UNAVAILABLE)
        assert [reply.outcome.reason for reply in replies] == [Reason.UNAVAILABLE]
        home.peers.tick()
        assert home.peers.serve(again)
        assert not home.peers.serve(before)

    asyncio.run(main())


def test_a_crash_at_a_peer_blocks_its_input_here():
    def test() -> None:
        home = Home(wait_s=1.0, peers="b")
        home.submit()
        home.away[0].end(refused(Reason.CRASHED))
        _, replies = home.submit()
        assert [reply.outcome.reason for reply in replies] == [Reason.CRASHED_BEFORE]
        assert not home.away
        other: list[InferReply] = []
        home.open().submit(
            call(np.full(4, 7.0, "<f4").tobytes(), timeout=int(BUDGET_S * 1e6)), other.append
        )
        assert len(home.away) == 1

    run(test)
