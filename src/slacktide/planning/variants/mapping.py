"""`map_clients`: maps clients to replicas of given variants (Jellyfish, Algorithm 1).

Replicas are filled one by one, the most accurate variant first, each with the set of clients whose
sum of rates is the largest that it can serve. If clients are sorted by falling budgets, the
capacity of the replica falls from client to client. So one pass of subset sums finds the best set
for all batch sizes: a set is feasible if its sum is within the capacity that its last, tightest
client allows. The sums are the bits of an integer, and adding a client to all sets is a shift.

Among sets with the same sum, the one with the tightest clients is taken, so that the other clients
fit smaller variants in larger batches. (The paper takes any; its code takes the loosest.)
"""

from __future__ import annotations

from collections.abc import Iterable

from slacktide.planning.variants.fleet import UNMAPPED, Assignment, Fleet

Filled = dict[tuple[int, ...], list[int]]
"""Clients of a replica, by the variants of all replicas up to and including it."""


def map_clients(
    fleet: Fleet, variants: Iterable[int], *, filled: Filled | None = None
) -> Assignment:
    """Return the assignment of Algorithm 1 for replicas of these `variants` (indices). `filled`: a
    cache for calls with the same fleet that share their largest variants."""
    ordered = tuple(sorted(variants, reverse=True))
    assigned_replicas = [UNMAPPED] * len(fleet.clients)
    cache = {} if filled is None else filled
    for replica, variant in enumerate(ordered):
        before = ordered[: replica + 1]
        chosen = cache.get(before)
        if chosen is None:
            chosen = cache[before] = _fullest(fleet.orders[variant], assigned_replicas)
        for client in chosen:
            assigned_replicas[client] = replica
    return Assignment(ordered, tuple(assigned_replicas))


def _fullest(order: tuple[tuple[int, int, int], ...], assigned_replicas: list[int]) -> list[int]:
    """Return the unassigned clients with the largest sum of rates that fits."""
    sums, steps = 1, []
    for client, rate, within in order:
        if sums > within:
            break  # no set with this client or a later one has as large a sum
        if assigned_replicas[client] == UNMAPPED:
            added = sums << rate & within
            if added:
                sums |= added
                steps.append((client, rate, added))
    remaining_rate = sums.bit_length() - 1
    chosen = []
    for client, rate, added in reversed(steps):
        if not remaining_rate:
            break
        if added >> remaining_rate & 1:
            chosen.append(client)
            remaining_rate -= rate
    return chosen
