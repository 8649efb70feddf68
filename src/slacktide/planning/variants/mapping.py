"""Clients mapped to given variants (Jellyfish, Algorithm 1), all batch sizes in one pass.

Replicas are filled one by one, the most accurate variant first, each with the clients whose rates
sum up to the most that it can serve. With clients in the order of falling budgets, the capacity of
the replica falls from client to client, so one pass of subset sums finds the best set for every
batch size: a set is feasible if its sum is within the capacity of its last, tightest client. Sums
are the bits of an integer, and adding a client to all sets is a shift.

Of sets with the same sum the one with the tightest clients is taken: what is left then fits the
smaller variants in larger batches. (The paper takes any; its code the one with the loosest.)
"""

from __future__ import annotations

from collections.abc import Iterable

from slacktide.planning.variants.fleet import UNMAPPED, Assignment, Fleet


def map_clients(fleet: Fleet, variants: Iterable[int]) -> Assignment:
    """The assignment of Algorithm 1 for replicas with these `variants` (indices)."""
    ordered = tuple(sorted(variants, reverse=True))
    found = [UNMAPPED] * len(fleet.clients)
    for replica, variant in enumerate(ordered):
        for client in _fullest(fleet.orders[variant], found):
            found[client] = replica
    return Assignment(ordered, tuple(found))


def _fullest(order: tuple[tuple[int, int, int], ...], taken: list[int]) -> list[int]:
    """Of the clients not yet taken, the set with the largest sum of rates."""
    sums, steps, total = 1, [], 0
    for client, rate, capacity in order:
        if taken[client] == UNMAPPED and rate <= capacity:
            added = (sums << rate) & ((2 << capacity) - 1)
            if added:
                sums |= added
                steps.append((client, rate, added))
                total += rate
    left = sums.bit_length() - 1
    if left == total:
        return [client for client, _, _ in steps]
    chosen = []
    for client, rate, added in reversed(steps):
        if added >> left & 1:
            chosen.append(client)
            left -= rate
            if not left:
                break
    return chosen
