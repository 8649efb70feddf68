"""Clients of two replicas are divided as trying every division would have it."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from tests.planning.variants.fleets import fleets

from slacktide.planning.variants import Fleet
from slacktide.planning.variants.pairs import Effort, divided


def worth(fleet: Fleet, variant: int, clients: list[int]) -> float | None:
    """Accuracy · rate of these clients on one replica; None if it cannot serve them."""
    load = sum(fleet.rates[client] for client in clients)
    most = min((int(fleet.limits[client, variant]) for client in clients), default=fleet.batches)
    fits = load <= fleet.columns[variant, most] if most else False
    return float(fleet.accuracy[variant]) * load if fits else None


def tried(fleet: Fleet) -> float | None:
    """The most of all divisions of all clients; None if there is none."""
    totals = []
    everyone = range(len(fleet.clients))
    for sides in product((True, False), repeat=len(fleet.clients)):
        groups = [[c for c in everyone if sides[c] is side] for side in (True, False)]
        if not all(groups):
            continue  # a replica without clients is another matter: it may be given none
        for variants in product(range(len(fleet.variants)), repeat=2):
            worths = [worth(fleet, v, group) for v, group in zip(variants, groups, strict=True)]
            if None not in worths:
                totals.append(sum(worth for worth in worths if worth is not None))
    return max(totals, default=None)


@given(fleets(most_clients=5))
def test_no_division_is_better(fleet):
    members = np.arange(len(fleet.clients))
    most = tried(fleet)
    division = divided(fleet, members, least=-1.0, effort=Effort(10**6, 10**6))
    if division is None:
        assert most is None or len(members) < 2
        return
    groups = [division.first.tolist(), division.second.tolist()]
    assert sorted(groups[0] + groups[1]) == members.tolist()
    worths = [
        worth(fleet, v, group) if group else 0.0
        for v, group in zip(division.variants, groups, strict=True)
    ]
    reached = sum(worth for worth in worths if worth is not None)
    assert None not in worths
    assert most is None or reached >= most - 1e-6
    assert divided(fleet, members, least=reached, effort=Effort(10**6, 10**6)) is None


@given(fleets(most_clients=6))
def test_effort_is_bounded_and_vain_attempts_are_remembered(fleet):
    members = np.arange(len(fleet.clients))
    assert divided(fleet, members, least=-1.0, effort=Effort(0, 10**6)) is None
    assert divided(fleet, members, least=-1.0, effort=Effort(10**6, 0)) is None
    effort = Effort(10**6, 10**6)
    assert divided(fleet, members, least=1e9, effort=effort) is None
    before = effort.remaining
    assert divided(fleet, members, least=1e9, effort=effort) is None
    assert effort.remaining == before
