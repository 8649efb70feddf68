"""A call's states and steps: the table, its diagram, and that nothing is held once it has ended."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.test_data_plane import ROW, Bench, call

from slacktide.domain import Reason
from slacktide.server.calls.call_states import HOLDS, STEPS, CallError, CallState, CallStep, Held

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "call.md"


def test_the_page_has_the_table_as_its_diagram():
    lines = ["stateDiagram-v2", "    [*] --> open"]
    lines += [
        f"    {a} --> {b} : {step}" for a, steps in STEPS.items() for step, b in steps.items()
    ]
    (diagram,) = re.findall(r"```mermaid\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert diagram == "\n".join(lines)


def test_every_state_can_be_left_for_an_end_and_reached():
    assert set(STEPS) == set(HOLDS) == set(CallState)
    reached = {after for steps in STEPS.values() for after in steps.values()}
    assert reached | {CallState.OPEN} == set(CallState)
    ends = {state for state in CallState if set(STEPS[state].values()) <= {state}}
    assert ends == {CallState.ANSWERED, CallState.CANCELLED}
    assert all(not HOLDS[state] for state in ends)
    assert all(CallStep.CANCEL in steps for steps in STEPS.values())


async def test_a_step_that_is_not_in_the_table_is_a_fault():
    bench = Bench()
    opened = bench.submit()
    with pytest.raises(CallError, match="a call in state submitted cannot submit"):
        opened._step(CallStep.SUBMIT)
    opened.cancel(Reason.DISCONNECTED)
    with pytest.raises(CallError):
        opened.refuse(Reason.BAD_INPUT, "too late")


DEEDS = ("announce", "submit", "refuse", "cancel", "drop", "serve", "fail")


def can(deed: str, opened: Any) -> bool:
    """Whether front end or engine may do that now, by their contracts."""
    if deed == "drop":
        return opened.state in (CallState.RECEIVING, CallState.SUBMITTED)
    if deed in ("serve", "fail"):
        return opened.state is CallState.SUBMITTED
    after_submit = opened.state in (CallState.SUBMITTED, CallState.REFUSED, CallState.ANSWERED)
    return deed == "cancel" or (deed in STEPS[opened.state] and not after_submit)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(DEEDS)), max_size=12))
def test_a_call_is_answered_at_most_once_and_gives_everything_back(deeds):
    async def play() -> None:
        bench = Bench(requests=2, arriving=24)
        calls: list[Any] = [bench.open() for _ in range(3)]
        replies: list[list[Any]] = [[], [], []]
        cancelled: dict[int, list[Any]] = {}
        for number, deed in [*deeds, *((number, "cancel") for number in range(3))]:
            opened = calls[number]
            if not can(deed, opened):
                continue
            match deed:
                case "announce":
                    opened.announce(len(ROW), {})
                case "submit":
                    opened.submit(call(ROW), replies[number].append)
                case "refuse":
                    opened.refuse(Reason.BAD_INPUT, "bad")
                case "cancel":
                    opened.cancel(Reason.DISCONNECTED)
                    cancelled.setdefault(number, list(replies[number]))
                case "drop":
                    bench.driver.end(opened.id, Reason.EXPIRED)
                case "serve":
                    bench.driver.end(opened.id, Reason.ON_TIME, (((1, 4), ROW),))
                case "fail":
                    bench.driver.end(opened.id, Reason.RUNTIME_ERROR)
            held = [HOLDS[call.state] for call in calls]
            assert bench.version.in_flight == sum(Held.VERSION in holds for holds in held)
            bench.arena.check_invariants()
        await asyncio.sleep(0)
        assert all(len(reply) <= 1 for reply in replies)
        assert [replies[number] for number in cancelled] == list(cancelled.values())
        assert bench.plane.limits.clients == frozenset()
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0
        assert bench.driver.open == bench.driver.named == {}

    asyncio.run(play())
