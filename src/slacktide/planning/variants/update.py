"""`matched` and `resident`: the next variant of each replica, and the variants kept loaded.

Replicas, sorted by their variants, take the sorted new variants. No other matching has a smaller
sum of distances or a smaller maximum distance, so most new variants are neighbours of the old
variants, and neighbours are loaded already (Jellyfish, §4.4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def matched(running: Mapping[str, int], targets: Sequence[int]) -> dict[str, int]:
    """Return the next variant of each replica. `running`: their present variants; `targets`: the
    next variants, in any order. Raises ValueError if the numbers differ."""
    if len(running) != len(targets):
        raise ValueError(f"targets: expected {len(running)} variants, got {len(targets)}")
    replicas = sorted(running, key=lambda replica: (running[replica], replica))
    return dict(zip(replicas, sorted(targets), strict=True))


def resident(
    variant: int, sizes: Sequence[int], *, most: int, budget: int | None = None
) -> tuple[int, ...]:
    """Return the variants that a replica keeps loaded: its own, then the nearest, at most `most`.
    `sizes`: bytes of each variant, smallest first; `budget`: maximum bytes together, except that
    its own variant always stays. The smaller of two at the same distance comes first, since a link
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
    """Return the replicas whose new variant is not loaded: they run the old variant until it is."""
    return frozenset(name for name, variant in plan.items() if variant not in loaded[name])
