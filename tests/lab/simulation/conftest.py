"""A one-lane world for simulations: flat batch times, any scheduler, a log of what happened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.testing import (
    LinearTimes,
    VirtualWorld,
    make_notice,
    make_request,
    one_model_plan,
)


def world(*, fixed: float = 0.0, per_row: float = 1.0, **fields: Any) -> VirtualWorld:
    """By default `fifo`, batches of up to four, one second for each row."""
    return VirtualWorld(LinearTimes(fixed, per_row), **fields)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders of these tests."""
    return SimpleNamespace(
        LinearTimes=LinearTimes,
        notice=make_notice,
        plan=one_model_plan,
        request=make_request,
        world=world,
    )
