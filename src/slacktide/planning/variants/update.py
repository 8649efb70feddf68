"""From one plan to the next: which replica takes which variant, and what is loaded beforehand.

Replicas, ordered by the variant they run, take the new variants in order. Of all matchings this one
has the shortest way from old to new in sum and at its longest, so most new variants are neighbours
of the old ones, which is what is kept resident (Jellyfish, §4.4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def matched(running: Mapping[str, int], targets: Sequence[int]) -> dict[str, int]:
    """The variant that each replica is to run. `running`: by replica, the variant it runs now;
    `targets`: as many variants, in any order. Raises ValueError if their numbers differ."""
    if len(running) != len(targets):
        raise ValueError(f"targets: expected {len(running)} variants, got {len(targets)}")
    replicas = sorted(running, key=lambda replica: (running[replica], replica))
    return dict(zip(replicas, sorted(targets), strict=True))


def resident(
    variant: int, sizes: Sequence[int], *, most: int, budget: int | None = None
) -> tuple[int, ...]:
    """The variants that a replica keeps loaded: its own and the nearest, `most` in all, nearest
    first. `sizes`: bytes of each variant, smallest first; `budget`: bytes that they may have in
    all. Its own is always among them. Of two at one distance the smaller comes first: a network
    fails more suddenly than it recovers."""
    loaded, used = [variant], sizes[variant]
    further_variants = sorted(
        (candidate for candidate in range(len(sizes)) if candidate != variant),
        key=lambda candidate: (abs(candidate - variant), candidate),
    )
    for candidate in further_variants:
        if len(loaded) >= most:
            break
        if budget is None or used + sizes[candidate] <= budget:
            loaded.append(candidate)
            used += sizes[candidate]
    return tuple(loaded)


def misses(loaded: Mapping[str, Collection[int]], plan: Mapping[str, int]) -> frozenset[str]:
    """Replicas whose new variant is not resident: they go on with the old one until it is."""
    return frozenset(name for name, variant in plan.items() if variant not in loaded[name])
