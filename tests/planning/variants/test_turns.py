"""Lanes that run variants by turns: what clients get fits their budgets and the lanes' time."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from tests.planning.variants.fleets import fleets

from slacktide.planning.variants import UNMAPPED, Client, Fleet, Variant
from slacktide.planning.variants.turns import LOAD, by_turns

SIZES = (
    Variant("small", 0.3, (0.002,)),
    Variant("medium", 0.7, (0.008,)),
    Variant("large", 0.9, (0.020,)),
)


def seconds(fleet: Fleet, clients: list[int]) -> float:
    return sum(
        client.rate * fleet.variants[variant].seconds[0]
        for client, variant in zip(fleet.clients, clients, strict=True)
        if variant != UNMAPPED
    )


@given(fleets())
def test_variants_of_clients_fit(fleet: Fleet) -> None:
    turns = by_turns(fleet)
    longest = fleet.variants[turns.largest].seconds[0]
    for client, variant in zip(fleet.clients, turns.clients, strict=True):
        if variant != UNMAPPED:
            own = fleet.variants[variant]
            assert variant <= turns.largest
            assert client.budgets[variant] + 1e-9 >= own.seconds[0] + longest
            assert client.floor <= own.accuracy
    spent = seconds(fleet, turns.clients)
    assert spent <= LOAD * fleet.replicas + 1e-9
    assert abs(LOAD * fleet.replicas - spent - turns.free_s) < 1e-9


@given(fleets(most_clients=4, most_replicas=1))
def test_no_client_could_have_a_larger_variant_instead(fleet: Fleet) -> None:
    """Of one client alone: with several a greedy choice may miss a little."""
    turns = by_turns(fleet)
    for at, client in enumerate(fleet.clients):
        for variant in range(turns.clients[at] + 1, turns.largest + 1):
            if turns.limit(client, variant):
                before = turns.clients[at]
                spent = 0.0 if before == UNMAPPED else fleet.variants[before].seconds[0]
                more = client.rate * (fleet.variants[variant].seconds[0] - spent)
                worth = fleet.variants[variant].accuracy
                better = before == UNMAPPED or worth > fleet.variants[before].accuracy
                assert not better or more > turns.free_s - 1e-9


@given(fleets(most_clients=4, most_replicas=2))
def test_most_clients_are_served(fleet: Fleet) -> None:
    """Where weights are equal and all could have the smallest variant, none is left out."""
    smallest = fleet.variants[0].seconds[0]
    can = [
        client.budgets[0] >= 2 * smallest + 1e-9 and not client.floor for client in fleet.clients
    ]
    if all(can) and seconds(fleet, [0] * len(can)) <= LOAD * fleet.replicas:
        assert UNMAPPED not in by_turns(fleet).clients


def test_clients_on_unlike_links_have_unlike_variants_on_one_lane() -> None:
    slow = Client("slow", 10.0, (0.05, 0.03, 0.0))
    fast = Client("fast", 10.0, (0.14, 0.13, 0.12))
    turns = by_turns(Fleet(SIZES, [slow, fast], 1))
    assert (turns.largest, turns.clients) == (2, [1, 2])
    best = max(
        sum(SIZES[variant].accuracy for variant in chosen)
        for chosen in product(range(3), repeat=2)
        if chosen[0] < 2
    )
    assert turns.score.accuracy == 10.0 * best


def test_a_client_that_comes_takes_what_time_is_left_and_then_others_step_down() -> None:
    first = [Client(str(number), 10.0, (0.14, 0.13, 0.12)) for number in range(3)]
    turns = by_turns(Fleet(SIZES, first, 1))
    assert turns.clients == [2, 2, 2]
    runs, lowered = {client.name: 2 for client in first}, dict[str, int]()
    for number in range(3, 100):
        variant = turns.place(Client(str(number), 10.0, (0.14, 0.13, 0.12)), lowered)
        if variant == UNMAPPED:
            break
        assert all(0 <= smaller < runs[name] for name, smaller in lowered.items())
        runs |= {str(number): variant, **lowered}
        lowered.clear()
        spent = sum(10.0 * SIZES[run].seconds[0] for run in runs.values())
        assert spent == pytest.approx(LOAD - turns.free_s)
        assert turns.free_s >= -1e-9
    assert set(runs.values()) == {0}
    assert turns.free_s < 10.0 * SIZES[0].seconds[0]


def test_none_steps_down_below_its_floor_or_for_a_client_that_cannot_be_served() -> None:
    proud = Client("proud", 10.0, (0.14, 0.13, 0.12), floor=SIZES[2].accuracy)
    turns = by_turns(Fleet(SIZES, [proud], 1))
    turns.free_s = 0.0
    lowered: dict[str, int] = {}
    assert turns.place(Client("new", 10.0, (0.14, 0.13, 0.12)), lowered) == UNMAPPED
    assert turns.place(Client("hopeless", 10.0, (0.0, 0.0, 0.0)), lowered) == UNMAPPED
    assert not lowered
