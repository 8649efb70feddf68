"""Requests that name a variant of a family, or a size, count as asking for just that."""

from __future__ import annotations

import pytest

from slacktide.domain import Request
from slacktide.planning.variants import UNMAPPED, Family, FamilyVariant
from slacktide.planning.variants.planned_family import PlannedFamily

SIZES = Family(tuple(FamilyVariant(str(n), n / 1000, n) for n in (128, 256, 512)))
FILES = Family(tuple(FamilyVariant(name, a, nbytes=9) for name, a in (("s", 0.5), ("l", 0.7))))


@pytest.mark.parametrize(
    ("family", "size", "asked"),
    [
        (SIZES, 0, UNMAPPED),
        (SIZES, 100, 0),
        (SIZES, 256, 1),
        (SIZES, 257, 2),
        (SIZES, 999, 2),
        (FILES, 0, UNMAPPED),
        (FILES, 1, 0),
        (FILES, 2, 1),
    ],
)
def test_requests_count_by_the_variant_that_they_ask_for(
    family: Family, size: int, asked: int
) -> None:
    planned = PlannedFamily("m", family, now=0.0)
    planned.count_request(Request(1, "m", 0.0, 1.0, size=size), now=0.0)
    assert set(planned.requests) == {asked}
