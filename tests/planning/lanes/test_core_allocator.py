"""Cores of one machine: nobody is given what another holds, nobody wants while a core lies idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.engine import LaneSnapshot
from slacktide.planning.lanes.core_allocator import Claim, CoreAllocator, shares

LANES = ("a", "b", "c", "d")


def claims_of(sizes):
    return [
        Claim(lane, least, least + more, pressure)
        for lane, (least, more, pressure) in zip(LANES, sizes, strict=False)
    ]


def holding(cores, target, held=None, *, leaving=False):
    """A lane with these cores confirmed, aimed at and held."""
    held = tuple({*cores, *target}) if held is None else held
    return LaneSnapshot("lane", "cpu", cores, target, held, leaving, True, 0.0, None)


CLAIMS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 12), st.floats(0.0, 1.0)), min_size=1, max_size=4
).map(claims_of)


class TestShares:
    @given(CLAIMS, st.integers(0, 40))
    def test_within_bounds_and_work_conserving(self, claims, total):
        allotted = shares(claims, total)
        assert sum(allotted.values()) <= total
        for claim in claims:
            if claim.lane in allotted:
                assert claim.least <= allotted[claim.lane] <= claim.target
        wanted = sum(claim.target for claim in claims if claim.lane in allotted)
        assert sum(allotted.values()) == min(total, wanted) or not allotted

    @given(CLAIMS, st.integers(0, 40))
    def test_more_pressure_never_means_fewer_cores(self, claims, total):
        first = claims[0]
        pressed = Claim(first.lane, first.least, first.target, 2.0 * first.pressure)
        before, after = shares(claims, total), shares([pressed, *claims[1:]], total)
        assert after.get(first.lane, 0) >= before.get(first.lane, 0)

    def test_equal_pressure_cuts_all_wishes_alike(self):
        claims = [Claim("a", 1, 12, 0.5), Claim("b", 1, 4, 0.5)]
        assert shares(claims, 8) == {"a": 6, "b": 2}

    def test_a_lane_twice_as_pressed_is_cut_half_as_much(self):
        claims = [Claim("a", 1, 12, 1.0), Claim("b", 1, 12, 0.5)]
        assert shares(claims, 15) == {"a": 9, "b": 6}

    def test_without_deadlines_wishes_are_met_all_the_same(self):
        assert shares([Claim("a", 1, 4), Claim("b", 1, 4)], 6) == {"a": 3, "b": 3}

    def test_a_claim_must_make_sense(self):
        with pytest.raises(ValueError, match="lane 'a': expected >= 3, got 2"):
            Claim("a", 3, 2)


class TestCores:
    def test_a_lane_grows_and_shrinks_where_it_is(self):
        ledger = CoreAllocator(range(8))
        holdings = {"a": holding((2, 5), (2, 5)), "b": holding((0,), (0,))}
        assert ledger.cores_for({"a": 4, "b": 1}, holdings) == {"a": (1, 2, 3, 5), "b": (0,)}
        assert ledger.cores_for({"a": 1, "b": 1}, holdings) == {"a": (2,), "b": (0,)}

    def test_cores_of_a_shrinking_lane_are_given_on_once_it_is_confirmed(self):
        ledger = CoreAllocator(range(4))
        given = {"a": 1, "b": 3}
        before = {"a": holding((0, 1, 2), (0, 1, 2)), "b": holding((3,), (3,))}
        assert ledger.cores_for(given, before) == {"a": (0,), "b": (3,)}
        shrinking = {**before, "a": holding((0, 1, 2), (0,))}
        assert ledger.cores_for(given, shrinking) == {"a": (0,), "b": (3,)}
        confirmed = {**before, "a": holding((0,), (0,))}
        assert ledger.cores_for(given, confirmed) == {"a": (0,), "b": (1, 2, 3)}

    def test_a_lane_takes_back_what_it_has_not_let_go(self):
        ledger = CoreAllocator(range(4))
        holdings = {"a": holding((0, 1, 2, 3), (0,))}
        assert ledger.cores_for({"a": 4}, holdings) == {"a": (0, 1, 2, 3)}

    def test_a_core_that_was_promised_is_held_until_all_is_settled(self):
        ledger = CoreAllocator(range(3))
        holdings = {"a": holding((0,), (0,), (0, 1)), "b": holding((2,), (2,))}
        assert ledger.cores_for({"a": 1, "b": 2}, holdings) == {"a": (0,), "b": (2,)}

    def test_a_lane_that_goes_holds_its_cores_until_it_is_gone(self):
        ledger = CoreAllocator(range(2))
        holdings = {"old": holding((0, 1), (0, 1))}
        assert ledger.cores_for({"new": 2}, holdings) == {}
        assert ledger.cores_for({"new": 2}, holdings, borrowing={"new"}) == {"new": (0, 1)}

    def test_a_lane_that_comes_back_does_not_take_what_was_promised_meanwhile(self):
        ledger = CoreAllocator(range(2))
        holdings = {"a": holding((0,), (0,), (0,), leaving=True), "b": holding((0,), (0,))}
        assert ledger.cores_for({"a": 1, "b": 1}, holdings) == {"a": (1,), "b": (0,)}

    def test_a_lane_that_comes_back_has_its_cores_again_if_nobody_else_is_promised_them(self):
        ledger = CoreAllocator(range(3))
        holdings = {"a": holding((0,), (0, 1), (0, 1), leaving=True), "b": holding((2,), (2,))}
        assert ledger.cores_for({"a": 2, "b": 1}, holdings) == {"a": (0, 1), "b": (2,)}

    def test_a_core_that_was_borrowed_in_vain_goes_back_to_one_of_the_two(self):
        """`b` came to life on core 1 of `a`, and neither is to have it now."""
        ledger = CoreAllocator(range(4))
        holdings = {"a": holding((0, 1), (0,)), "b": holding((1, 2), (2,))}
        assert ledger.cores_for({"a": 2, "b": 2}, holdings) == {"a": (0, 1), "b": (2, 3)}

    @given(st.data())
    def test_given_cores_are_disjoint_whatever_lanes_hold(self, data):
        machine = data.draw(st.integers(1, 6))
        some = st.sets(st.integers(0, machine - 1)).map(lambda cores: tuple(sorted(cores)))
        holdings = {}
        for lane in data.draw(st.permutations(LANES[:3])):
            cores, target = data.draw(some), data.draw(some)
            held = tuple({*cores, *target})
            holdings[lane] = holding(cores, target, held, leaving=data.draw(st.booleans()))
        given_ = {lane: data.draw(st.integers(1, machine)) for lane in LANES}
        allotted = CoreAllocator(range(machine)).cores_for(given_, holdings, borrowing=LANES[3:])
        every = [core for cores in allotted.values() for core in cores]
        assert len(every) == len(set(every))
        assert all(len(cores) <= given_[lane] for lane, cores in allotted.items())

    @given(st.data())
    def test_no_core_is_held_twice_however_late_resizes_are_confirmed(self, data):
        machine = data.draw(st.integers(1, 12))
        ledger = CoreAllocator(range(machine))
        holdings: dict[str, LaneSnapshot] = {}
        for _ in range(12):
            claims = data.draw(CLAIMS)
            given_ = shares(claims, machine)
            allotted = ledger.cores_for(given_, holdings)
            for lane, cores in allotted.items():
                assert len(cores) <= given_[lane]
                before = holdings.get(lane)
                if before is not None and before.cores == before.target:
                    stays = set(cores) & set(before.cores)
                    assert len(stays) == min(len(cores), len(before.cores))
            free = machine - len(
                {c for holding in holdings.values() for c in (*holding.cores, *holding.target)}
            )
            short = sum(given_[lane] - len(allotted.get(lane, ())) for lane in given_)
            grown = sum(
                len(set(cores) - set(holdings[lane].cores) - set(holdings[lane].target))
                if lane in holdings
                else len(cores)
                for lane, cores in allotted.items()
            )
            assert not short or grown == free, "a core lay idle that somebody was given"
            for lane in LANES:
                if lane in allotted:
                    now = holdings[lane].cores if lane in holdings else allotted[lane]
                    holdings[lane] = holding(now, allotted[lane])
                elif lane in holdings and data.draw(st.booleans()):
                    del holdings[lane]  # its last batch is done
            for lane in tuple(holdings):
                if data.draw(st.booleans()):
                    holdings[lane] = holding(holdings[lane].target, holdings[lane].target)
            held = [
                core for holding in holdings.values() for core in {*holding.cores, *holding.target}
            ]
            assert len(held) == len(set(held))
            assert set(held) <= set(range(machine))
