from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import covering, session_sizes


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (1, 1, (1,)),
        (1, 2, (1, 2)),
        (1, 16, (1, 2, 4, 8, 16)),
        (1, 6, (1, 2, 4, 6)),
        (3, 8, (3, 4, 8)),
        (4, 4, (4,)),
    ],
)
def test_both_ends_and_the_powers_of_two_between(
    least: int, most: int, expected: tuple[int, ...]
) -> None:
    assert session_sizes(least, most) == expected


@pytest.mark.parametrize(("least", "most"), [(0, 2), (3, 2)])
def test_a_range_must_make_sense(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="least ≤ most"):
        session_sizes(least, most)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 80))
def test_the_session_used_is_the_smallest_that_covers_the_cores(a: int, b: int, cores: int) -> None:
    threads = session_sizes(min(a, b), max(a, b))
    used = covering(threads, cores)
    assert used in threads
    assert used >= cores or used == threads[-1]
    assert not any(cores <= n < used for n in threads)
    if min(a, b) <= cores <= max(a, b):
        assert cores <= used < 2 * cores or used == threads[0]
