"""From one plan to the next: which replica takes which variant, and what is loaded beforehand.

Replicas, ordered by the variant they run, take the new variants in order. Of all matchings this one
has the shortest way from old to new in sum and at its longest, so most new variants are neighbours
of the old ones, which is what is kept resident (Jellyfish, §4.4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def matched(running: Mapping[str, int], wanted: Sequence[int]) -> dict[str, int]:
    """The variant that each replica is to run. `running`: by replica, the variant it runs now;
    `wanted`: as many variants, in any order. Raises ValueError if their numbers differ."""
    if len(running) != len(wanted):
        raise ValueError(f"wanted: expected {len(running)} variants, got {len(wanted)}")
    replicas = sorted(running, key=lambda replica: (running[replica], replica))
    return dict(zip(replicas, sorted(wanted), strict=True))


def resident(
    variant: int, sizes: Sequence[int], *, most: int, budget: int | None = None
) -> tuple[int, ...]:
    """The variants that a replica keeps loaded: its own and the nearest, `most` in all, nearest
    first. `sizes`: bytes of each variant, smallest first; `budget`: bytes that they may have in
    all. Its own is always among them. Of two at one distance the smaller comes first: a network
    fails more suddenly than it recovers."""
    found, used = [variant], sizes[variant]
    others = sorted(
        (each for each in range(len(sizes)) if each != variant),
        key=lambda each: (abs(each - variant), each),
    )
    for each in others:
        if len(found) >= most:
            break
        if budget is None or used + sizes[each] <= budget:
            found.append(each)
            used += sizes[each]
    return tuple(found)


def misses(loaded: Mapping[str, Collection[int]], plan: Mapping[str, int]) -> frozenset[str]:
    """Replicas whose new variant is not resident: they go on with the old one until it is."""
    return frozenset(name for name, variant in plan.items() if variant not in loaded[name])
