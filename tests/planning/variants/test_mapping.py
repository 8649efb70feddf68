"""Clients mapped to given variants: sound always, optimal for one replica."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.variants.fleets import VARIANTS, assert_sound, fleets

from slacktide.planning.variants import UNMAPPED, Client, Fleet, Variant
from slacktide.planning.variants.mapping import map_clients


@given(fleets(), st.lists(st.integers(0, len(VARIANTS) - 1), min_size=3, max_size=3))
def test_mapped_clients_fit(fleet: Fleet, variants: list[int]) -> None:
    assert_sound(fleet, map_clients(fleet, variants[: fleet.replicas]))


@given(fleets(most_replicas=1), st.integers(0, len(VARIANTS) - 1))
def test_one_replica_gets_the_largest_rate_that_any_set_of_clients_has(
    fleet: Fleet, variant: int
) -> None:
    mapping = map_clients(fleet, [variant])
    rate = sum(fleet.rates[c] for c, at in enumerate(mapping.clients) if at != UNMAPPED)
    capacity = fleet.columns[variant]
    best = 0
    for count in range(len(fleet.clients) + 1):
        for chosen in combinations(range(len(fleet.clients)), count):
            load = sum(fleet.rates[client] for client in chosen)
            limit = min((fleet.limits[client, variant] for client in chosen), default=0)
            if limit and load <= capacity[limit]:
                best = max(best, load)
    assert rate == best


def test_of_sets_with_one_rate_the_tightest_clients_are_taken() -> None:
    variant = Variant("one", 0.5, (0.1, 0.1))
    loose, tight = Client("loose", 10.0, (1.0,)), Client("tight", 10.0, (0.2,))
    fleet = Fleet([variant], [loose, tight], 1)
    assert fleet.limits.tolist() == [[2], [2]]
    slow = Fleet([Variant("one", 0.5, (0.1, 0.11))], [loose, tight], 1)
    assert map_clients(slow, [0]).clients == (UNMAPPED, 0)


def test_paces_limit_the_rate_and_seconds_the_wait() -> None:
    client = Client("one", 10.0, (0.2,))
    assert Fleet([Variant("one", 0.5, (0.1,))], [client], 1).servable() == {0}
    assert Fleet([Variant("one", 0.5, (0.1,), (0.11,))], [client], 1).servable() == set()
    slower = Fleet([Variant("one", 0.5, (0.1,), (0.11,))], [Client("two", 9.0, (0.2,))], 1)
    assert slower.servable() == {0}
    assert Variant("one", 0.5, (0.1,), (0.125,)).most(0.2) == pytest.approx(8.0)
    assert Variant("one", 0.5, (0.1,), (0.125,)).most(0.19) == 0.0


def test_rates_that_share_no_step_are_rounded_on_the_safe_side() -> None:
    fleet = Fleet(
        VARIANTS, [Client("one", 29.97, (1.0,) * 5), Client("two", 3.14159, (1.0,) * 5)], 1
    )
    for client, columns in zip(fleet.clients, fleet.rates, strict=True):
        assert columns * fleet.step >= client.rate - 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: Variant("v", 0.0, (0.1,)), "accuracy"),
        (lambda: Variant("v", 0.5, ()), "seconds"),
        (lambda: Variant("v", 0.5, (0.2, 0.1)), "seconds"),
        (lambda: Client("c", 0.0, (0.1,)), "rate"),
        (lambda: Client("c", 1.0, (0.1,), weight=0.0), "weight"),
        (lambda: Fleet([], [], 1), "variants"),
        (lambda: Fleet(VARIANTS[::-1], [], 1), "variants"),
        (lambda: Fleet(VARIANTS, [], 0), "replicas"),
        (lambda: Fleet(VARIANTS, [Client("c", 1.0, (0.1,))], 1), "budgets"),
    ],
)
def test_invalid_fields_are_named(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=message):
        change()
