"""Tables of every shape, for property tests."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from slacktide.profiles import LatencyTable


@st.composite
def _tables(draw: st.DrawFn) -> LatencyTable:
    sizes = draw(st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True).map(sorted))
    cores = draw(st.lists(st.integers(1, 16), min_size=1, max_size=3, unique=True).map(sorted))
    p50 = [[draw(st.floats(1e-5, 10.0)) for _ in cores] for _ in sizes]
    p99 = [[value * draw(st.floats(1.0, 8.0)) for value in row] for row in p50]
    return LatencyTable.from_grid(sizes, cores, p50, p99)


st.register_type_strategy(LatencyTable, _tables())


@pytest.fixture
def resnet() -> LatencyTable:
    """10 ms and 2 ms a row on one core, half of that on two, p99 30 % above."""
    return LatencyTable.linear(0.010, 0.002, 32, cores=(1, 2), spread=1.3)
