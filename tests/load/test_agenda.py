"""Calls at instants: in order, never early, and a sooner one does not wait for a later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from slacktide.load.alarm import Agenda


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_calls_come_in_order_and_never_early(run: Callable[..., Any]) -> None:
    made: list[tuple[str, float]] = []

    async def main() -> float:
        agenda, done = Agenda(), asyncio.Event()
        begin = time.monotonic()

        def note(name: str) -> Callable[[], None]:
            return lambda: made.append((name, time.monotonic() - begin))

        def first() -> None:
            note("b")()
            agenda.at(begin + 0.004, note("c"))
            agenda.at(begin + 0.003, note("d"))

        agenda.at(begin + 60.0, note("never"))
        agenda.at(float("inf"), note("never"))
        agenda.at(begin + 0.005, note("e"))
        agenda.at(begin + 0.002, first)
        agenda.at(begin + 0.001, note("a"))
        agenda.at(begin + 0.005, note("f"))
        agenda.at(begin + 0.006, done.set)
        await asyncio.sleep(0)
        agenda.at(begin - 1.0, note("at once"))
        await done.wait()
        await agenda.close()
        await agenda.close()
        return begin

    run(main())
    assert [name for name, _ in made] == ["at once", "a", "b", "d", "c", "e", "f"]
    for (_, at), due in zip(made[1:], (0.001, 0.002, 0.003, 0.004, 0.005, 0.005), strict=True):
        assert at >= due


def test_what_a_call_raises_is_not_swallowed() -> None:
    async def main() -> None:
        for close in (True, False):
            agenda, failed = Agenda(), asyncio.Event()

            def fail(failed: asyncio.Event = failed) -> None:
                failed.set()
                raise RuntimeError("ours")

            agenda.at(0.0, fail)
            await failed.wait()
            await asyncio.sleep(0)
            if not close:
                with pytest.raises(RuntimeError, match="ours"):
                    agenda.at(0.0, fail)
            with pytest.raises(RuntimeError, match="ours"):
                await agenda.close()

    asyncio.run(main())
