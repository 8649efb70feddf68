"""SizeLaw: what was measured stands, and in between and beyond work goes on as it did."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import ProfileError
from slacktide.profiles.size_law import REACH, SizeLaw, SizeWork

points = st.lists(
    st.builds(SizeWork, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.5, 30.0)),
    min_size=3,
    max_size=12,
)


@given(points)
def test_known_sizes_are_as_they_were_measured(sizes: list[SizeWork]) -> None:
    law = SizeLaw.fit(sizes)
    if law is not None:
        assert [law.work(size) for size in law.sizes] == pytest.approx(list(law.works))


@given(points, st.floats(1e-4, 1e4), st.floats(1.0, 100.0))
def test_work_rises_where_what_is_known_does(
    sizes: list[SizeWork], size: float, further: float
) -> None:
    rising = sorted(measured.work for measured in sizes)
    law = SizeLaw.fit(
        [
            measured._replace(size=size)
            for measured, size in zip(
                [k._replace(work=w) for k, w in zip(sizes, rising, strict=True)],
                sorted(measured.size for measured in sizes),
                strict=True,
            )
        ]
    )
    if law is not None:
        assert 0.0 < law.work(size) <= law.work(size * further) * (1.0 + 1e-9)


@given(points, st.floats(0.0, 1.0))
def test_between_two_known_sizes_work_is_between_theirs(
    sizes: list[SizeWork], share: float
) -> None:
    law = SizeLaw.fit(sizes)
    if law is not None:
        for (smaller, a), (other, b) in pairwise(zip(law.sizes, law.works, strict=True)):
            size = smaller ** (1.0 - share) * other**share
            assert min(a, b) * 0.999999 <= law.work(size) <= max(a, b) * 1.000001


@given(points, st.floats(1.0, REACH))
def test_beyond_the_ends_work_is_at_most_quadratic(sizes: list[SizeWork], by: float) -> None:
    law = SizeLaw.fit(sizes)
    if law is not None:
        ends = law.work(law.sizes[0]), law.work(law.sizes[-1])
        assert ends[0] / by**2 * 0.999999 <= law.work(law.sizes[0] / by) <= ends[0] * 1.000001
        assert ends[1] * 0.999999 <= law.work(law.sizes[-1] * by) <= ends[1] * by**2 * 1.000001
        assert law.reaches(law.sizes[-1] * by * 0.999)
        assert not law.reaches(law.sizes[-1] * REACH * 1.001)


@pytest.mark.parametrize(
    ("a", "b", "d"), [(0.0, 1.0, 0.0), (0.3, 0.7, 0.0), (0.0, 0.5, 0.5), (0.1, 0.8, 0.1)]
)
def test_a_law_is_found_and_goes_on(a: float, b: float, d: float) -> None:
    def true(size: float) -> float:
        return a + b * size + d * size**2

    law = SizeLaw.fit([SizeWork(size, true(size)) for size in (0.25, 0.5, 1.0, 2.0, 4.0)])
    assert law is not None
    for size in (0.3, 0.7, 1.5, 3.0):
        assert law.work(size) == pytest.approx(true(size), rel=0.03)
    for size in (0.125, 8.0):
        assert law.work(size) == pytest.approx(true(size), rel=0.15)


def test_two_sizes_are_no_law() -> None:
    assert SizeLaw.fit([SizeWork(1.0, 1.0), SizeWork(2.0, 2.0), SizeWork(2.0, 2.2)]) is None


@pytest.mark.parametrize("wrong", [SizeWork(0.0, 1.0), SizeWork(1.0, -1.0), SizeWork(1.0, 1e999)])
def test_impossible_points_are_refused(wrong: SizeWork) -> None:
    with pytest.raises(ProfileError, match="sizes: expected numbers above 0"):
        SizeLaw.fit([SizeWork(1.0, 1.0), SizeWork(2.0, 2.0), wrong])
