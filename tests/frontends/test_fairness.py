"""Who gets how much of a turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from slacktide.frontends.common.fairness import SHARE_S, WAITING_S, FairLoop, FairThread


class Clock:
    """A twentieth of a turn for those that wait passes at every look, and whenever told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += WAITING_S / 20
        return self.now


class Busy:
    """A connection with so many pieces of work, each half of what a turn has for them."""

    def __init__(self, turns: FairLoop, clock: Clock, log: list[str], client: str, pieces: int):
        self.turns, self.clock, self.log = turns, clock, log
        self.client, self.pieces = client, pieces

    def go_on(self) -> None:
        self.log.append(self.client)
        self.clock.now += WAITING_S / 2
        self.pieces -= 1
        if self.pieces:
            self.turns.wait(self.client, self.go_on)


async def a_turn() -> None:
    await asyncio.sleep(0)


async def test_a_client_that_has_had_its_share_is_shut_out_until_the_next_turn():
    clock = Clock()
    turns = FairLoop(clock)
    since = clock()
    clock.now += SHARE_S
    turns.charge("greedy", since)
    assert not turns.open_to("greedy")
    assert turns.open_to("other")
    await a_turn()
    assert turns.open_to("greedy")


async def test_those_that_wait_take_turns_by_address_and_a_turn_ends_with_the_piece_that_fills_it():
    clock = Clock()
    turns, log = FairLoop(clock), []
    for pieces in (5, 5, 5):
        turns.wait("many", Busy(turns, clock, log, "many", pieces).go_on)
    turns.wait("one", Busy(turns, clock, log, "one", 2).go_on)
    assert not turns.open_to("many")
    lengths = []
    while turns.waiting:
        before = clock.now
        await a_turn()
        lengths.append(clock.now - before)
    assert log.count("many") == 15
    assert log[:4] == ["many", "one", "many", "one"]
    assert max(lengths) < WAITING_S * 2


async def test_a_piece_of_work_that_fails_does_not_stop_the_others():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    clock = Clock()
    turns, log = FairLoop(clock), []

    class Broken:
        client = "broken"

        def go_on(self) -> None:
            raise ValueError("a bug")

    turns.wait("broken", Broken().go_on)
    turns.wait("other", Busy(turns, clock, log, "other", 1).go_on)
    while turns.waiting:
        await a_turn()
    assert log == ["other"]
    assert len(complaints) == 1


def test_failed_work_frees_what_it_held_without_the_collector():
    class Body:
        pass

    async def main() -> object:
        thread, body = FairThread("test"), Body()
        gone = weakref.ref(body)

        def fail(body=body) -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await thread.ask("client", fail)
        thread.close()
        del fail, body
        await a_turn()
        return gone()

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main()) is None
    finally:
        gc.enable()
