"""Both kinds of event loops, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Runs a coroutine on a fresh loop of one kind."""
    return uvloop.run if request.param == "uvloop" else asyncio.run
