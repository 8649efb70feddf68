"""Which variants run: sound, repeatable, no worse than the smallest, close to the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.variants.fleets import VARIANTS, assert_sound, drawn, fleets

from slacktide.planning.variants import Client, Fleet, Variant, published, search
from slacktide.planning.variants.mapping import map_clients
from slacktide.planning.variants.moves import _State, improved
from slacktide_papers.bounds.exact import bound, optimum
from slacktide_papers.jellyfish.setting import KBIT, SIDES, load_data


@given(fleets(), st.lists(st.integers(0, len(VARIANTS) - 1), max_size=3))
def test_a_plan_is_sound_and_maps_no_fewer_clients_than_the_smallest_variant(
    fleet: Fleet, start: list[int]
) -> None:
    smallest = fleet.score(map_clients(fleet, [0] * fleet.replicas))
    for assignment in (
        search(fleet, start=start, candidates=40),
        published(fleet, start=[0] * fleet.replicas),
    ):
        assert_sound(fleet, assignment)
        assert fleet.score(assignment).mapped >= smallest.mapped


@given(fleets(), st.lists(st.integers(0, len(VARIANTS) - 1), min_size=3, max_size=3))
def test_moves_never_make_a_plan_worse(fleet: Fleet, variants: list[int]) -> None:
    before = map_clients(fleet, variants[: fleet.replicas])
    after = improved(fleet, before)
    assert_sound(fleet, after)
    assert fleet.score(after) >= fleet.score(before)


def test_runs_repeat() -> None:
    fleet = drawn(4, 20, 1)
    assert search(fleet, seed=3) == search(fleet, seed=3)
    assert published(fleet, seed=3) == published(fleet, seed=3)


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_better_than_the_optimum_and_none_better_than_the_bound(seed: int) -> None:
    fleet = drawn(2, 6, seed)
    best = optimum(fleet, seconds=30.0)
    assert best is not None
    assert best.proven
    assert_sound(fleet, best.assignment)
    score = fleet.score(search(fleet))
    assert best.score.mapped >= score.mapped >= best.score.mapped - 1
    assert score.accuracy <= best.score.accuracy + 1e-6 or score.mapped < best.score.mapped
    assert score.accuracy >= 0.9 * best.score.accuracy
    for whole in (True, False):
        most = bound(fleet, mapped=best.score.mapped, whole=whole)
        assert most is not None
        assert best.score.accuracy <= most + 1e-4


def test_a_fleet_of_many_replicas_is_cut_into_parts_and_joined() -> None:
    fleet = drawn(40, 120, 0)
    assignment = search(fleet, candidates=40)
    assert_sound(fleet, assignment)
    assert fleet.score(assignment) >= fleet.score(map_clients(fleet, [0] * 40))


@given(fleets(most_clients=8, most_replicas=4), st.data())
def test_where_variants_must_load_nearly_equal_plans_are_near(fleet, data):
    some = st.integers(0, len(VARIANTS) - 1)
    start = data.draw(st.lists(some, min_size=fleet.replicas, max_size=fleet.replicas))

    def leaps(variants):
        pairs = zip(sorted(variants), sorted(start), strict=True)
        return sum(abs(new - old) > 1 for new, old in pairs)

    best, near = search(fleet, start=start), search(fleet, start=start, reach=1)
    assert_sound(fleet, near)
    assert fleet.score(near).mapped >= fleet.score(best).mapped
    assert fleet.score(near).accuracy >= 0.95 * fleet.score(best).accuracy - 1e-9
    assert leaps(near.variants) <= leaps(best.variants)


def test_one_that_is_left_out_may_take_the_place_of_another() -> None:
    """Fifteen of sixteen clients have a place. Which one has none decides what variants run."""
    data, random = load_data(None), np.random.default_rng((1, 2, 16, 31))
    kbits, clients = np.array([data.frame_bytes[side] for side in SIDES]) / KBIT, []
    for number in range(16):
        rate, slo = (
            float(random.choice((10.0, 15.0, 25.0))),
            float(random.choice((0.075, 0.1, 0.15))),
        )
        seconds = kbits / (random.uniform(7.5, 50.0) * 1000)
        budgets = np.where(seconds * rate < 1.0, slo - seconds, 0.0)
        clients.append(Client(f"client {number}", rate, tuple(budgets.tolist())))
    fleet = Fleet(data.variants, clients, 2)
    assignment = search(fleet)
    assert_sound(fleet, assignment)
    assert assignment.variants == (1, 0)
    assert fleet.score(assignment).mapped == 15
    assert fleet.score(assignment).accuracy == pytest.approx(63.085)  # the proven optimum


def test_choosing_clients_anew_ends_also_where_sums_are_rounded() -> None:
    clients = [Client(str(number), 2.0, (1.0,)) for number in range(1000)]
    fleet = Fleet([Variant("only", 0.4, (1 / 1429,))], clients, 1)
    state = _State(fleet, map_clients(fleet, [0]))
    assert (state.at == 0).sum() == 714
    assert not state.refill()
