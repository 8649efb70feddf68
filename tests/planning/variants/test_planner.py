"""The live planner of families: who is mapped where, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.variants.served_family import (
    FAST,
    FILES,
    GAP,
    SIDES,
    SIZES,
    ServedFamily,
    VirtualFamily,
    assert_sound,
    base_plan,
    measured,
    opened,
    pool_of,
)

from slacktide.domain import (
    Cancelled,
    OutcomeKind,
    Plan,
    Reason,
    Request,
    Route,
    Submitted,
    TimerFired,
)
from slacktide.engine.request_table import ModelCounts
from slacktide.lab.simulation import Item
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.planning import Composer, PlannerError, SessionClosed, SessionEvent
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.sessions import SessionMeasured
from slacktide.planning.variants import Family, FamilyVariant, VariantsPlanner
from slacktide.planning.variants.demand import LearnedCaution, LearnedHeadroom
from slacktide.planning.variants.planned_family import PlannedFamily
from slacktide.planning.variants.question import SearchResult

PLENTY = 0.4
"""Seconds within which every variant serves."""


def request(id: int, *, at: float, slo: float = PLENTY, **more: Any) -> Submitted:
    return Submitted(Request(id, "m", at, at + slo, **more))


def family_of_one(**stated: Any) -> ServedFamily:
    """A family with a session, `a`, that has had its plan."""
    family = ServedFamily(**stated)
    family.turn(opened("a", slo=PLENTY), measured("a"), at=1.0)
    family.wait(1.0)
    return family


class TestSessions:
    def test_one_that_opens_is_answered_at_once_and_planned_for_right_after(self) -> None:
        family = ServedFamily()
        family.turn(opened("a", slo=PLENTY), at=1.0)
        assert family.sizes == {"a": "128"}  # its link is not known
        family.turn(measured("a"), at=1.05)
        assert family.compute() == 1
        assert family.sizes == {"a": "608"}
        assert family.route("a") == "608"

    def test_one_that_joins_a_plan_gets_what_that_has_room_for_without_a_search(self) -> None:
        family = family_of_one()
        family.turn(opened("b", slo=PLENTY), measured("b"), at=family.now + GAP)
        assert family.sizes == {"a": "608", "b": "608"}

    def test_one_that_closes_is_gone_at_once(self) -> None:
        family = ServedFamily()
        family.turn(opened("a"), opened("b"), at=1.0)
        family.turn(SessionClosed("a"), SessionClosed("never was"), at=1.1)
        family.wait(0.2)
        assert_sound(family.plan, ["b"])

    def test_a_fall_is_answered_in_the_same_turn(self) -> None:
        family = family_of_one()
        family.turn(measured("a", 1e6, fell=True), at=family.now + GAP)
        assert SIDES.index(int(family.sizes["a"])) < SIDES.index(608)
        family.wait(0.2)
        assert family.route("a") == family.sizes["a"]

    def test_a_link_that_carries_its_frames_no_more_has_fallen(self) -> None:
        family = family_of_one()
        family.turn(measured("a", 1e5), at=family.now + GAP)
        assert family.sizes["a"] != "608"

    def test_a_fall_while_a_search_runs_is_not_undone_by_its_answer(self) -> None:
        family = ServedFamily()
        family.turn(opened("a", slo=PLENTY), measured("a"), at=1.0)
        family.wait(0.9)
        family.turn(TimerFired(), at=2.0)
        (job,) = family.runtime.take_jobs()
        family.turn(measured("a", 1e6, fell=True), at=2.05)
        small = family.sizes["a"]
        assert small != "608"
        family.turn(job.run(), at=2.2)
        assert family.sizes["a"] == small
        family.wait(0.01)  # and it is planned for right after
        assert family.planner.status()["m"].plans >= 3

    def test_nothing_passes_so_it_is_mapped_nowhere_and_told_so(self) -> None:
        family = ServedFamily()
        family.turn(opened("a"), measured("a", 0.0), at=1.0)
        family.wait(1.0)
        assert family.sizes == {"a": ""}
        assert family.route("a") == "128"  # what comes all the same
        assert family.reports[-1] == ("m", 1, 1)
        family.turn(measured("a", FAST))
        family.wait(REPORTED)
        assert family.sizes["a"] != ""
        assert family.reports[-1] == ("m", 0, 1)

    def test_a_floor_of_accuracy_is_kept_or_the_session_is_not_mapped(self) -> None:
        family = ServedFamily()
        family.turn(opened("a", floor=0.35), measured("a"), at=1.0)
        family.turn(opened("b", slo=0.1, floor=0.45), measured("b"))
        family.wait(1.0)
        assert family.sizes == {"a": "608", "b": ""}

    def test_without_urgency_all_waits_for_the_next_period(self) -> None:
        family = ServedFamily(options={"urgent": False})
        family.wait(0.6)
        family.turn(opened("a", slo=PLENTY), measured("a"))
        assert family.sizes == {}
        family.wait(0.6)
        assert family.sizes == {"a": "608"}

    def test_one_that_was_there_before_its_model_is_planned_for(self) -> None:
        planned = ServedFamily(base=replace(base_plan(1), deployments=(), routes=()))
        planned.turn(opened("a"), at=1.0)
        planned.rebase(base_plan(2))
        planned.come_up()
        assert_sound(planned.plan, ["a"])


REPORTED = 11.0


class TestRequestsWithoutASession:
    def test_the_plain_route_leads_to_the_largest_variant_that_has_time_for_them(self) -> None:
        family = ServedFamily()
        assert family.plain == "128"
        for number in range(20):
            family.turn(request(number, at=1.0 + 0.1 * number), at=1.0 + 0.1 * number)
            family.wait(0.05)
        assert family.plain == "608"

    def test_more_than_one_lane_serves_is_planned_for_in_parts(self) -> None:
        family = ServedFamily(lanes=2)
        for number in range(300):
            family.turn(request(number, at=1.0 + number / 250), at=1.0 + number / 250)
        family.wait(0.5)
        assert family.plain in ("128", "256")

    def test_one_that_asks_for_a_size_is_planned_for_at_that_size(self) -> None:
        family = ServedFamily()
        for number in range(20):
            family.turn(request(number, at=1.0 + number / 20, size=300), at=1.0 + number / 20)
        family.wait(0.5)
        assert "416" in family.lane("lane0", standby=False)

    def test_one_that_asks_for_a_size_is_served_at_it_beside_sessions(self) -> None:
        family = ServedFamily()
        family.turn(opened("a", slo=0.1), measured("a"), at=1.0)
        family.wait(0.5)
        planned = family.lane("lane0", standby=False)
        assert "608" not in planned
        at = family.now + 0.2
        family.turn(request(1, at=at, size=608), at=at)
        assert family.lane("lane0", standby=False) == {*planned, "608"}
        family.wait(30.0)
        assert "608" not in family.lane("lane0", standby=False)

    def test_frames_of_a_session_are_not_counted_again(self) -> None:
        family = ServedFamily()
        family.turn(opened("a", slo=0.1), measured("a"), at=1.0)
        for number in range(20):
            family.turn(request(number, at=1.0 + 0.1 * number, client="a"), at=1.0 + 0.1 * number)
        family.wait(0.5)
        assert family.sizes == {"a": "416"}
        assert family.plain == "416"  # nothing else is served


class TestLanes:
    def test_variants_of_one_process_are_on_every_lane(self) -> None:
        family = family_of_one(lanes=3)
        for number in range(3):
            assert family.lane(f"lane{number}") == {size.name for size in SIZES}
        status = family.planner.status()["m"]
        assert status.switches > 0
        assert status.mismatches == 0

    @pytest.mark.parametrize(
        ("lanes", "serving"),
        [
            ("own", {"416"}),
            ("smallest", {"128", "416"}),
            ("smaller", {"128", "256", "416"}),
            ("all", {"128", "256", "416", "608"}),
        ],
    )
    def test_a_lane_serves_its_own_variant_and_others_as_stated(
        self, lanes: str, serving: set[str]
    ) -> None:
        family = ServedFamily(lanes=1, options={"lanes": lanes})
        family.turn(opened("a", slo=0.1), measured("a"), at=1.0)
        family.wait(1.0)
        assert family.sizes == {"a": "416"}
        assert family.lane("lane0", standby=False) == serving

    def test_files_are_on_lanes_with_their_neighbours_only(self) -> None:
        family = ServedFamily(variants=FILES, resident=2)
        assert family.lane("lane0") == {"128", "256"}

    def test_memory_bounds_what_is_loaded(self) -> None:
        family = ServedFamily(variants=FILES, memory=1000)
        assert family.lane("lane0") == {"128"}

    def test_clients_follow_a_file_once_it_is_up(self) -> None:
        family = ServedFamily(variants=FILES, resident=2, lanes=1)
        family.turn(opened("a", slo=PLENTY), measured("a"), at=1.0)
        routes = []
        for _ in range(8):
            family.wait(0.6)
            up = family.runtime.engine.snapshot(now=family.now).pools
            assert any(replica.free_in < math.inf for replica in up.values())
            assert len(family.lane("lane0")) <= 2
            routes.append(family.route("a"))
            family.come_up()
            assert family.runtime.engine.snapshot().pools[pool_of(family.route("a"))].replicas
        assert routes[-1] == "608"
        assert routes == sorted(routes, key=int)  # from one to its neighbour

    def test_a_variant_that_is_not_loaded_is_a_mismatch(self) -> None:
        family = ServedFamily(variants=FILES, resident=3, lanes=1)
        family.turn(opened("a", slo=PLENTY), measured("a"), at=1.0)
        for _ in range(6):
            family.wait(1.0)
            family.come_up()
        assert family.route("a") == "608"
        before = family.planner.status()["m"].mismatches
        family.turn(measured("a", 2.5e5, fell=True))
        family.wait(1.0)
        assert family.planner.status()["m"].mismatches == before + 1
        assert family.route("a") != "608"

    def test_requests_that_are_pinned_to_a_load_keep_their_routes(self) -> None:
        old, new = base_plan(2, pin="1.0"), base_plan(2, pin="1.7", generation=7)
        family = family_of_one(base=old)
        both = Plan(old.lanes, old.deployments + new.deployments, old.routes + new.routes)
        family.rebase(both)
        routes = {(route.version, route.client): route.pool for route in family.plan.routes}
        assert routes["1.0", "a"] == pool_of("608")
        assert routes["1.7", "a"] == pool_of("608", generation=7)
        family.rebase(new)
        assert {route.pool.generation for route in family.plan.routes} == {7}

    def test_routes_of_others_stay(self) -> None:
        base = base_plan(1)
        other = Route("m", pool_of("608"), application="stills")
        family = ServedFamily(base=replace(base, routes=(*base.routes, other)))
        assert other in family.plan.routes


class TestFaults:
    def test_a_search_that_raises_costs_its_own_family_a_pause(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        family = family_of_one()
        monkeypatch.setattr(SearchResult, "__init__", lambda *_: 1 / 0)
        family.wait(1.0)
        assert len(family.faults) == 1
        assert "m keeps its last target" in family.faults[0]
        assert family.sizes == {"a": "608"}
        monkeypatch.undo()
        family.turn(measured("a", 2e5, fell=True), at=family.now + GAP)
        assert family.sizes["a"] != "608"  # answered all the same

    def test_a_family_that_cannot_be_planned_is_left_alone_for_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        family = family_of_one()
        monkeypatch.setattr(PlannedFamily, "write", lambda *_, **__: 1 / 0)
        for number in range(20):
            family.turn(opened(f"b{number}", slo=PLENTY), at=family.now + GAP)
            family.wait(0.3)
        assert len(family.faults) == 2
        assert family.sizes == {"a": "608"}
        family.wait(3.0)
        monkeypatch.undo()
        family.wait(10.0)
        assert len(family.sizes) == 21
        assert len(family.faults) == 2

    def test_options_that_cannot_be_name_the_model(self) -> None:
        with pytest.raises(PlannerError, match="m: variants: perod: unknown key"):
            ServedFamily(options={"perod": 1.0})

    def test_no_field_has_two_owners(self) -> None:
        composer = Composer((ScalingPlanner((0, 1)), VariantsPlanner()))
        family = Family(SIZES)
        stated = {"m": (ScaledModel(ScalingLimits(1, 2)), family), "n": family}
        engine = ServedFamily().runtime.engine
        composer.rebase(base_plan(2), stated, engine.snapshot(), now=0.0)
        assert not composer.idle

    def test_a_family_may_name_no_planner(self) -> None:
        stated = {"m": Family(SIZES, planner="none")}
        assert VariantsPlanner().owns(stated) == frozenset()


numbers = st.sampled_from((-1.0, 0.0, 1e-9, 0.02, 0.1, 0.4, 10.0, 30.0, 1e9, math.inf, math.nan))
rates = st.sampled_from((0.0, 1e3, 1e5, 1e6, 1e7, math.inf, math.nan))


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[float, SessionEvent | Submitted | Cancelled]]:
    """What happens within three seconds, some of it mad."""
    happenings: list[tuple[float, SessionEvent | Submitted | Cancelled]] = []
    ids = [f"s:{number}" for number in range(draw(st.integers(1, 5)))]
    for number in range(draw(st.integers(1, 60))):
        at, id = draw(st.floats(0.0, 3.0)), draw(st.sampled_from(ids))
        match draw(st.sampled_from("ommmffrrrrcx")):
            case "o":
                happenings.append((at, opened(id, rate=draw(numbers), slo=draw(numbers))))
            case "m" | "f" as kind:
                more = {"rate": draw(numbers), "overhead": draw(numbers), "fell": kind == "f"}
                happenings.append((at, measured(id, draw(rates), **more)))
            case "c":
                happenings.append((at, SessionClosed(id)))
            case "x":
                happenings.append((at, Cancelled(draw(st.integers(0, 60)))))
            case _:
                size = draw(st.sampled_from((0, 0, *SIDES)))
                client = draw(st.sampled_from((id, "")))
                slo = draw(st.sampled_from((0.02, 0.1, 0.4)))
                happenings.append((at, request(number, at=at, slo=slo, client=client, size=size)))
    return sorted(happenings, key=lambda happening: happening[0])


def items_of(happens: list[tuple[float, SessionEvent | Submitted | Cancelled]]) -> list[Item]:
    return [
        event.request if isinstance(event, Submitted) else ExternalEvent(at, event)
        for at, event in happens
    ]


@pytest.mark.slow
@given(sessions(), st.sampled_from((SIZES, FILES)), st.integers(1, 3), st.booleans())
def test_no_request_is_lost_and_every_plan_is_sound(
    happens: list[tuple[float, SessionEvent | Submitted | Cancelled]],
    variants: Any,
    lanes: int,
    slow: bool,
) -> None:
    settings = {
        "variants": variants,
        "lanes": lanes,
        "job_s": 0.3 if slow else 0.0,
        "start_s": 0.15,
    }
    ran = VirtualFamily(items_of(happens), **settings)
    requests = [event.request for _, event in happens if isinstance(event, Submitted)]
    assert set(ran.outcomes) == {request.id for request in requests}
    for when, plan in ran.plans:
        open_ids = set()
        for at, event in happens:
            if at < when and not isinstance(event, Submitted | Cancelled):
                (open_ids.discard if isinstance(event, SessionClosed) else open_ids.add)(event.id)
        clients = {stated.client for stated in plan.inputs}
        assert_sound(plan, clients)
        assert len(plan.deployments) == len({(d.pool, d.lane) for d in plan.deployments})
    again = VirtualFamily(items_of(happens), **settings)
    assert again.plans == ran.plans
    assert again.outcomes == ran.outcomes


def test_a_client_that_lies_takes_no_more_than_there_is_to_share() -> None:
    honest = [f"s:{number}" for number in range(6)]

    def accuracy(*lies: SessionEvent) -> dict[str, int]:
        family = ServedFamily(lanes=2)
        for id in honest:
            family.turn(opened(id, rate=10.0, slo=0.2), measured(id), at=1.0)
        family.turn(*lies)
        family.wait(2.0)
        assert family.faults == []
        return {id: SIDES.index(int(size)) for id, size in family.sizes.items() if id in honest}

    alone = accuracy()
    for lie in (
        [opened("liar", rate=math.inf, slo=0.2, weight=1e9), measured("liar", math.inf)],
        [opened("liar", rate=1e12, slo=1e-9), measured("liar", 1e12)],
        [opened("liar", rate=10.0, slo=math.nan, floor=math.nan), measured("liar", math.nan)],
        [opened("liar", rate=0.0, slo=-1.0), measured("liar", -1.0, rate=-5.0)],
    ):
        beside = accuracy(*lie)
        assert set(beside) == set(alone)  # each of them still has a variant
        assert sum(beside.values()) >= sum(alone.values()) / 2


def test_thousands_that_join_within_a_second_are_a_bounded_number_of_searches() -> None:
    happens: list[tuple[float, Any]] = [
        (1.0 + number / 300, event)
        for number in range(300)
        for event in (opened(f"s:{number}", rate=0.5), measured(f"s:{number}"))
    ]
    ran = VirtualFamily(items_of(happens), lanes=4, job_s=0.1)
    assert ran.planner.status()["m"].plans <= 25
    assert ran.planner.status()["m"].sessions == 300


def test_of_a_thousand_that_join_within_a_second_each_is_mapped_before_a_search_is_done() -> None:
    happens: list[tuple[float, Any]] = [
        (0.1, opened("first", slo=PLENTY)),
        (0.1, measured("first")),
    ]
    joins = {f"s:{number}": 1.0 + number / 1000 for number in range(1000)}
    happens += [(at, opened(id, rate=0.5, slo=PLENTY)) for id, at in joins.items()]
    happens += [(at + 0.2, measured(id)) for id, at in joins.items()]
    ran = VirtualFamily(
        items_of(sorted(happens, key=lambda happening: happening[0])), lanes=4, job_s=0.5
    )
    mapped: dict[str, float] = {}
    for at, plan in ran.plans:
        lost = [
            stated.client
            for stated in plan.inputs
            if not stated.variant and stated.client in mapped
        ]
        assert not lost
        for stated in plan.inputs:
            if stated.variant:
                mapped.setdefault(stated.client, at)
    assert max(mapped[id] - at for id, at in joins.items()) < 0.2


class TestMakingRoom:
    def test_others_send_less_at_once_where_a_lane_is_full(self) -> None:
        family = family_of_one(lanes=1, options={"lanes": "own"})
        assert family.sizes == {"a": "608"}
        family.turn(TimerFired(), at=family.now + 1.0)
        (job,) = family.runtime.take_jobs()
        family.turn(opened("b", rate=30.0, slo=PLENTY), measured("b"), at=family.now + GAP)
        assert "" not in family.sizes.values()
        assert family.route("a") == family.route("b") == family.sizes["a"] != "608"
        family.turn(job.run(), at=family.now + GAP)  # it was asked before, and knows of one
        assert "" not in family.sizes.values()
        assert_sound(family.plan, ["a", "b"])

    def test_lanes_end_their_turns_where_batches_serve_more(self) -> None:
        family = ServedFamily(lanes=1)
        family.turn(opened("slow", rate=5.0, slo=0.3), measured("slow", 2e5), at=1.0)
        family.turn(opened("fast", rate=5.0, slo=PLENTY), measured("fast"))
        family.wait(2.0)
        assert family.sizes["slow"] < family.sizes["fast"]  # by turns
        joins = [f"s:{number}" for number in range(120)]
        family.turn(*(opened(id, rate=1.0, slo=PLENTY) for id in joins), at=family.now + GAP)
        assert set(family.sizes) == {"slow", "fast", *joins}
        assert "" not in family.sizes.values()
        assert family.lane("lane0", standby=False) == {"128"}
        assert_sound(family.plan, family.sizes)

    def test_none_is_sent_below_its_floor(self) -> None:
        family = ServedFamily(lanes=1, options={"lanes": "own"})
        family.turn(opened("a", slo=PLENTY, floor=0.5), measured("a"), at=1.0)
        family.wait(1.0)
        family.turn(opened("b", rate=30.0, slo=PLENTY), measured("b"), at=family.now + GAP)
        assert family.sizes == {"a": "608", "b": ""}

    def test_files_are_not_loaded_for_it(self) -> None:
        family = ServedFamily(lanes=1, variants=FILES)
        family.turn(opened("a", slo=PLENTY), measured("a"), at=1.0)
        for _ in range(4):
            family.wait(1.0)
            family.come_up()
        before = family.lane("lane0")
        family.turn(opened("b", rate=30.0, slo=PLENTY), measured("b"), at=family.now + GAP)
        assert family.lane("lane0") == before


def test_frames_are_answered_by_the_variant_they_are_mapped_to() -> None:
    happens: list[tuple[float, Any]] = [(0.5, opened("a", slo=PLENTY)), (0.5, measured("a"))]
    happens += [(1.0 + n / 10, request(n, at=1.0 + n / 10, client="a")) for n in range(20)]
    ran = VirtualFamily(items_of(happens))
    kinds = {outcome.kind for outcome in ran.outcomes.values()}
    assert kinds == {OutcomeKind.SERVED}
    assert {round(outcome.compute_s, 6) for outcome in ran.outcomes.values()} == {0.06}


def test_frames_that_name_a_variant_are_answered_by_it_and_not_as_their_session_is_mapped() -> None:
    """The first of them already, as it is then served beside the one of the session."""
    happens: list[tuple[float, Any]] = [(0.5, opened("a", slo=PLENTY)), (0.5, measured("a"))]
    for n in range(40):
        at = 1.0 + n / 10
        named: dict[str, Any] = {"size": 128, "names_variant": True} if n % 2 else {}
        happens.append((at, request(n, at=at, client="a", **named)))
    ran = VirtualFamily(items_of(happens), options={"lanes": "own"})
    took = [round(ran.outcomes[n].compute_s, 6) for n in range(40)]
    assert set(took[::2]) == {0.06}
    assert set(took[1::2]) == {0.01}


class TestLearnedRoom:
    def test_it_falls_while_too_many_are_lost_and_rises_again(self) -> None:
        room = LearnedHeadroom(0.01)
        lost = ended = 0
        for _ in range(60):
            lost, ended = lost + 3, ended + 100
            room.learn(lost, ended, seconds=0.5)
        fallen = room.share
        assert room.least <= fallen < 0.9
        for _ in range(600):
            ended += 100
            room.learn(lost, ended, seconds=0.5)
        assert room.share == 1.0

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0.0, 1e6))))
    def test_it_stays_within_its_bounds(self, measured: list[tuple[int, int, float]]) -> None:
        room = LearnedHeadroom(0.002)
        lost = ended = 0
        for missed, others, seconds in measured:
            lost, ended = lost + missed, ended + missed + others
            room.learn(lost, ended, seconds=seconds)
            assert room.least <= room.share <= 1.0

    def test_times_that_scatter_are_planned_near_the_median_unless_frames_are_lost(self) -> None:
        caution = LearnedCaution(0.003)
        caution.scatters(1.1)
        assert caution.share == 0.0  # p99s, as long as these are near the medians
        for number in range(200):
            caution.learn(0, 100 * number, seconds=0.5)
        assert caution.share == 1.0
        caution.scatters(3.0)
        for number in range(200, 400):
            caution.learn(50 * number, 100 * number, seconds=0.5)
        assert 3.0 ** (1.0 - caution.share) == pytest.approx(LearnedCaution.ROOM)

    def test_a_planner_that_loses_frames_for_want_of_time_plans_with_less(self) -> None:
        happens: list[tuple[float, Any]] = [(0.5, opened("a", rate=10.0, slo=PLENTY))]
        happens += [(0.5, measured("a", rate=10.0))]
        # It sends ten times what it says.
        happens += [
            (1.0 + n / 100, request(n, at=1.0 + n / 100, slo=0.1, client="a")) for n in range(800)
        ]
        ran = VirtualFamily(items_of(happens), lanes=1)
        assert ran.planner.status()["m"].headroom.capacity < 1.0

    def test_rooms_are_learnt_from_frames_of_sessions_where_these_are_known(self) -> None:
        state = PlannedFamily("m", Family((FamilyVariant("1", 0.5, 128),)), now=0.0)
        counts = ModelCounts(requests=1000, by_reason={Reason.EXPIRED: 1000})
        for number in range(1, 100):
            session = SessionMeasured("s", 1e6, 0.0, 0.5, ended=10 * number, lost_on_lanes=number)
            state.learnt.count(
                session, replace(session, ended=session.ended - 10, lost_on_lanes=number - 1)
            )
            state.learnt.learn(counts, seconds=0.5)
        assert state.learnt.headroom.bandwidth == 1.0
        assert state.learnt.headroom.capacity < 1.0
        for number in range(100, 400):
            session = SessionMeasured("s", 1e6, 0.0, 0.5, ended=10 * number, lost_on_lanes=99)
            state.learnt.count(session, replace(session, ended=session.ended - 10))
            state.learnt.learn(counts, seconds=0.5)
        assert state.learnt.headroom == (1.0, 1.0)
