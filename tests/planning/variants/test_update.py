"""From one plan to the next."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.planning.variants.update import matched, misses, resident

VARIANTS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@given(VARIANTS, st.data())
def test_no_other_matching_has_a_shorter_way(running: list[int], data: st.DataObject) -> None:
    names = {f"lane {at}": variant for at, variant in enumerate(running)}
    wanted = data.draw(st.lists(st.integers(0, 6), min_size=len(running), max_size=len(running)))
    matching = matched(names, wanted)
    assert sorted(matching.values()) == sorted(wanted)
    ways = [
        [abs(a - b) for a, b in zip(running, other, strict=True)] for other in permutations(wanted)
    ]
    way = [abs(names[name] - variant) for name, variant in matching.items()]
    assert sum(way) == min(map(sum, ways))
    assert max(way) == min(map(max, ways))


def test_the_nearest_variants_are_resident_within_number_and_memory() -> None:
    sizes = [10, 10, 10, 50, 10]
    assert resident(2, sizes, most=5) == (2, 1, 3, 0, 4)
    assert resident(2, sizes, most=3) == (2, 1, 3)
    assert resident(2, sizes, most=5, budget=40) == (2, 1, 0, 4)
    assert resident(3, sizes, most=2, budget=1) == (3,)


def test_a_replica_whose_new_variant_is_not_loaded_is_told() -> None:
    loaded = {"a": (1, 2), "b": (3,)}
    assert misses(loaded, {"a": 2, "b": 2}) == {"b"}
    with pytest.raises(ValueError, match="targets"):
        matched({"a": 1}, [])
