"""When planners are asked, what they see, and what plan comes of what they wish for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.planning.scaling.scripted_scaling import (
    ScriptedScaling,
    base_plan,
    scaled,
    serving,
)

from slacktide.domain import (
    Announced,
    BatchFinished,
    LaneResized,
    LaneSpec,
    Notice,
    PlanChanged,
    PoolId,
    ReplicaUp,
    TimerFired,
)
from slacktide.domain.options import OptionError
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingTarget
from slacktide.planning.scaling.view import Waiting

M = PoolId("m", "1")


class TestWhenPlannersAreAsked:
    def test_as_soon_as_the_pool_is_there_and_then_once_in_a_period(self):
        world = serving("m")
        planner = world.scripts["m"]
        assert {now for now, _ in planner.views} == {0.0}
        planner.views.clear()
        assert world.next_look() == 1.0
        world.tick()
        world.tick()
        assert [now for now, _ in planner.views] == [1.0, 2.0]

    def test_at_once_and_before_the_request_if_somebody_would_be_late(self):
        world = serving("m")
        world.scripts["m"].endangered, world.scripts["m"].target = True, ScalingTarget(1, 4, 2)
        world.submit(1, after=0.5)
        assert world.sizes == {"m": (1, 4)}
        assert world.batches == [], "it waits for the cores"
        world.settle()
        assert len(world.batches[0].batch.replica.cores) == 4
        assert world.next_look() == pytest.approx(1.5), "a period from that plan"

    def test_nobody_looks_more_often_than_the_interval(self):
        world = serving("m")
        for id in range(1, 8):
            world.submit(id, after=0.001)
        assert world.scripts["m"].looks == [pytest.approx(0.001), pytest.approx(0.006)]
        assert world.next_look() == pytest.approx(0.011), "the last are looked at too"

    def test_a_look_in_vain_is_not_soon_followed_by_another(self):
        world = serving("m")
        world.scripts["m"].endangered = True
        for id in range(1, 150):
            world.submit(id, after=0.001)
        assert world.scripts["m"].looks == [pytest.approx(0.001), pytest.approx(0.101)]

    def test_the_more_requests_wait_the_less_often_they_are_looked_at(self):
        world = serving("m")
        world.submit(*range(1, 2001), slo=1e4)
        before = len(world.scripts["m"].looks)
        world.submit(2001, after=0.015)
        world.submit(2002, after=0.01)
        assert world.scripts["m"].looks[before:] == [pytest.approx(world.now)]

    def test_a_batch_that_takes_longer_than_expected_is_a_reason_to_look(self):
        world = serving("m")
        world.submit(1)
        world.finish(after=0.1)
        assert world.scripts["m"].looks == [0.0]
        world.submit(2)
        world.scripts["m"].looks.clear()
        world.finish(after=0.2)
        assert world.scripts["m"].looks == [pytest.approx(0.3)]

    def test_when_a_replica_has_come_up(self):
        world = ScriptedScaling()
        world.state(base_plan("m"), m=scaled())
        world.settle()
        world.scripts["m"].views.clear()
        world.turn(ReplicaUp(world.starting.pop()), after=0.3)
        world.tick()
        (now, view) = world.scripts["m"].views[-1]
        assert now == pytest.approx(0.3)
        assert view.replicas[0].ready_at == now

    def test_a_planner_that_never_changes_its_mind_wants_no_timer(self):
        world = ScriptedScaling()
        fixed = ScaledModel(ScalingLimits(1, 8, batch_max=8), "static", {"cores": 3})
        world.serve(base_plan("m"), m=fixed)
        assert world.sizes == {"m": (3, 3)}
        assert world.next_look() is None

    def test_unknown_planners_are_refused(self):
        with pytest.raises(OptionError, match="expected a scaling policy, got 'verticle'"):
            ScriptedScaling().state(base_plan("m"), m=ScaledModel(ScalingLimits(), "verticle"))


class TestWhatPlannersSee:
    def test_who_waits_who_is_announced_and_who_is_just_coming(self):
        world = serving("m")
        world.submit(1, 2, 3)  # the first batch takes all of them
        world.submit(4, slo=2.0)
        world.turn(Announced(Notice(5, "m", world.now, world.now + 0.9, 100, world.now + 0.4)))
        world.turn(Announced(Notice(6, "m", 0.0, 0.5, 100, 0.2, best_effort=True)))
        world.scripts["m"].endangered = True
        world.submit(7, slo=0.7, after=0.005)
        now, view = world.scripts["m"].views[-1]
        assert view.waiting == (
            Waiting(now, now + 0.7),
            Waiting(0.4, 0.9),
            Waiting(0.0, 2.0),
            Waiting(0.2, math.inf),
        )
        (replica,) = view.replicas
        assert (replica.cores, replica.ready_at) == (1, now)
        assert replica.free_at == pytest.approx(0.31, abs=0.02)
        assert view.arrived == 7
        assert view.batch == 8
        assert view.rate > 0.0
        assert view.limits.batch_max == 8

    def test_a_request_is_counted_once_whether_announced_or_not(self):
        world = serving("m")
        world.turn(Announced(Notice(1, "m", 0.0, 1.0, 100, 0.3)))
        world.submit(1, after=0.3)
        world.tick()
        assert world.scripts["m"].views[-1][1].arrived == 1

    def test_the_body_tells_what_its_notice_could_not(self):
        """Headers name neither rows nor, mostly, a deadline; before the engine hears of the body,
        the planner has."""
        world = serving("m")
        world.submit(1, slo=9.0)  # the lane is busy: what comes next is looked at, not run
        world.turn(Announced(Notice(2, "m", world.now, math.inf, 100, 0.3, best_effort=True)))
        world.scripts["m"].endangered = True
        world.submit(2, slo=0.2, rows=4, after=0.3)
        now, view = world.scripts["m"].views[-1]
        assert now == 0.3
        assert view.waiting == (Waiting(0.3, 0.5, rows=4),)
        assert view.arrived == 5
        assert view.budget == pytest.approx(0.2)

    def test_requests_that_no_cores_can_save_change_nothing(self):
        """One row takes 22.5 ms on all eight cores: 20 ms are too few, and 25 ms are not."""
        views = {}
        for hopeless in (False, True):
            world = ScriptedScaling()
            world.serve(base_plan("m"), m=scaled("with" if hopeless else "without"))
            for k in range(60):
                world.submit(k, slo=0.025, after=0.04)
                if hopeless:
                    world.submit(1_000 + k, slo=0.02)
                    late = Notice(2_000 + k, "m", world.now, world.now + 0.4, 100, world.now + 0.39)
                    world.turn(Announced(late))
            world.tick()
            _, views[hopeless] = world.scripts["with" if hopeless else "without"].views[-1]
        with_them, without = views[True], views[False]
        assert with_them.arrived == without.arrived == 60
        assert with_them.rate == pytest.approx(without.rate)
        assert with_them.burst == pytest.approx(without.burst)
        assert with_them.budget == pytest.approx(0.025)

    @pytest.mark.parametrize(
        ("promised", "came", "counted"),
        [(0.1, 0.1, 1), (0.1, 0.49, 0), (0.49, 0.1, 1), (0.49, 0.49, 0)],
    )
    def test_whether_a_request_can_be_saved_is_known_for_good_with_its_body(
        self, promised, came, counted
    ):
        world = serving("m")
        world.submit(1, slo=9.0)
        world.turn(Announced(Notice(2, "m", 0.0, 0.5, 100, promised)))
        world.submit(2, slo=0.5 - came, after=came)
        world.tick()
        _, view = world.scripts["m"].views[-1]
        assert view.arrived == 1 + counted
        budgets = [0.5 - at for at in (promised, came) if at < 0.4]
        assert view.budget == pytest.approx(min([9.0, *budgets]))

    def test_a_starting_replica_is_ready_when_it_is_expected_to(self):
        world = ScriptedScaling()
        world.state(base_plan("m"), m=scaled())
        world.settle()
        _, view = world.scripts["m"].views[-1]
        assert view.replicas[0].ready_at == view.start_time == 0.5

    def test_a_shared_lane_leaves_less_time(self):
        world = serving("m", "n", lanes=("l", "l"))
        for id in range(20):
            world.submit(id, model="n", after=0.05)
        world.tick()
        _, view = world.scripts["m"].views[-1]
        rate = world.status("n").rate
        assert rate > 5.0
        alone = 0.1 / 4 + 0.01
        share = 0.8 / 4 + 0.01  # of eight rows of n on four cores
        assert view.times.of(1, 4).expected == pytest.approx(alone / (1 - share * rate / 8))
        _, other = world.scripts["n"].views[-1]
        assert other.times.of(1, 4).expected == pytest.approx(alone)


class TestWhatComesOfWishes:
    def test_two_models_that_want_too_much_wait_for_each_others_cores(self):
        world = serving("m", "n", machine=6)
        world.reach(m=ScalingTarget(1, 5, 8))
        assert world.sizes == {"m": (5, 5), "n": (1, 1)}
        world.aim(n=ScalingTarget(1, 5, 8))
        assert world.sizes == {"m": (5, 3), "n": (1, 1)}, "it has not let go of them"
        world.settle()
        assert world.sizes == {"m": (3, 3), "n": (3, 3)}
        standing = world.status("n")
        assert (standing.target.cores, standing.lanes) == (5, {"n": (3, 3)})

    def test_cores_of_a_lane_that_goes_are_handed_on_when_its_last_batch_has_ended(self):
        world = ScriptedScaling(4)
        world.serve(base_plan("m", "n"), m=scaled(replicas=2, cores=1), n=scaled("n"))
        world.reach(m=ScalingTarget(2, 1, 1))
        world.bring_up()
        world.settle()
        world.submit(1, 2, model="m")
        assert len(world.batches) == 2
        world.reach(m=ScalingTarget(1, 1, 1), n=ScalingTarget(1, 3, 8))
        assert world.sizes["n"] == (2, 2), "the second replica still runs on its core"
        before = world.now
        for batch in (world.batches[1], world.batches[0]):
            world.turn(BatchFinished(batch.batch.id), after=0.001)
        world.settle()
        assert world.sizes == {"m": (1, 1), "n": (3, 3)}
        assert world.now - before < 0.1, "not only when the planner looks again"

    def test_the_model_under_more_pressure_is_cut_less(self):
        world = serving("m", "n", machine=9)
        world.scripts["m"].target = world.scripts["n"].target = ScalingTarget(1, 8, 8)
        world.submit(1, 2, model="m", slo=0.05)
        world.submit(3, 4, model="n", slo=0.5)
        world.tick()
        world.settle()
        assert world.sizes["m"][0] > world.sizes["n"][0]

    def test_models_on_one_lane_have_its_size_together_and_caps_of_their_own(self):
        world = serving("m", "n", lanes=("l", "l"))
        world.aim(m=ScalingTarget(1, 2, 3), n=ScalingTarget(1, 4, 5))
        world.tick()
        world.settle()
        assert world.sizes == {"l": (4, 4)}
        pools = world.engine.state.pools
        caps = {id.model: pool.placements[0].replica.max_batch for id, pool in pools.items()}
        assert caps == {"m": 3, "n": 5}

    def test_unscaled_models_keep_their_cores(self):
        world = ScriptedScaling()
        world.serve(base_plan("m", "fixed", cores=2), m=scaled())
        world.reach(m=ScalingTarget(1, 8, 1))
        assert world.sizes == {"fixed": (2, 2), "m": (6, 6)}
        assert world.engine.state.lanes["fixed"].cores == (2, 3)

    def test_a_fixed_lane_gets_cores_that_are_given_up_whichever_it_states(self):
        world = serving("m", machine=4)
        world.reach(m=ScalingTarget(1, 4, 8))
        stated = base_plan("m", "fixed")
        assert stated.lanes[1].cores == (1,)
        world.state(stated, m=scaled())
        world.settle()
        world.bring_up()
        world.settle()
        lanes = world.engine.state.lanes
        assert lanes["m"].cores == (0, 1, 2)
        assert lanes["fixed"].cores == (3,)

    def test_replicas_get_lanes_of_their_own_and_those_that_serve_stay(self):
        world = ScriptedScaling()
        world.serve(base_plan("m"), m=scaled(cores=2, replicas=4))
        world.reach(m=ScalingTarget(3, 2, 4, start_cores=1))
        assert world.sizes == {"m": (2, 2), "m+1": (1, 1), "m+2": (1, 1)}
        world.turn(ReplicaUp(world.starting.pop()))
        world.settle()
        assert world.sizes == {"m": (2, 2), "m+1": (1, 1), "m+2": (2, 2)}
        world.reach(m=ScalingTarget(2, 2, 4))
        assert world.sizes == {"m": (2, 2), "m+2": (2, 2)}
        placements = world.engine.state.pools[M].placements
        assert [placement.replica.max_batch for placement in placements] == [4, 4]

    def test_there_are_no_more_replicas_than_there_is_room_for(self):
        world = ScriptedScaling(5)
        world.serve(base_plan("m", cores=2), m=scaled(cores=4, replicas=4, least=2))
        world.reach(m=ScalingTarget(4, 2, 8, needed=6))
        assert {name: size for name, (size, _) in world.sizes.items()} == {"m": 3, "m+1": 2} or {
            name: size for name, (size, _) in world.sizes.items()
        } == {"m": 2, "m+1": 2}
        standing = world.status("m")
        assert (standing.target.replicas, standing.target.needed, len(standing.lanes)) == (4, 6, 2)

    def test_a_wish_to_restart_starts_the_replica_anew(self):
        world = serving("m")
        world.aim(m=ScalingTarget(1, 4, 8, restart=True))
        assert len(world.starting) == 1
        world.submit(1)
        assert world.batches == []
        world.bring_up()
        world.settle()
        assert len(world.batches[0].batch.replica.cores) == 4
        world.tick()
        assert world.starting == [], "once for each change"

    def test_a_resize_that_nobody_confirms_is_told_of(self):
        world = serving("m")
        world.aim(m=ScalingTarget(1, 2, 8))
        assert world.status("m").lanes == {"m": (1, 2)}
        world.confirm()
        assert world.status("m").lanes == {"m": (2, 2)}


class TestRebasing:
    def test_sizes_and_what_planners_know_outlive_a_new_base(self):
        world = serving("m")
        world.reach(m=ScalingTarget(1, 8, 3))
        planner = world.scripts["m"]
        world.scripts.clear()
        world.state(base_plan("m", "n"), m=scaled(), n=scaled("n"))
        assert world.scripts.get("m") is None, "its planner was not made anew"
        assert world.engine.state.lanes["n"].target, "a new model gets cores that others give up"
        assert world.sizes["m"] == (8, 7)
        assert world.engine.state.pools[M].placements[0].replica.max_batch == 3
        assert planner.views

    def test_a_lane_that_comes_back_leaves_its_core_to_the_model_that_was_given_it(self):
        """A busy replica is to go, a new model starts on its core, the replica is wanted again."""
        world = ScriptedScaling(3)
        two = scaled(cores=1, replicas=2)
        world.serve(base_plan("m"), m=two)
        world.aim(m=ScalingTarget(2, 1, 1))
        world.bring_up()
        world.serve(base_plan("m", "o"), m=two, o=scaled("o"))
        world.submit(1, 2, slo=9.0)
        world.submit(3, model="o", slo=9.0)
        busy = {run.batch.replica.cores: run.batch.id for run in world.batches}
        assert set(busy) == {(0,), (1,), (2,)}
        world.aim(m=ScalingTarget(1, 1, 1))
        world.state(base_plan("m", "n"), m=two, n=scaled("n"))
        lanes = world.engine.state.lanes
        assert lanes["m+1"].removed
        assert lanes["m+1"].cores == lanes["n"].target == (1,)
        world.turn(BatchFinished(busy[(2,)]), after=0.01)
        world.aim(m=ScalingTarget(2, 1, 1))
        assert {name: lane.target for name, lane in lanes.items()} == {
            "m": (0,),
            "m+1": (2,),
            "n": (1,),
        }

    def test_a_model_that_is_loaded_again_while_its_lane_still_runs_has_a_core(self):
        """All cores are taken: `o` starts on the one of `m`, and `m` goes to that of `p`."""
        world = serving("m", "p", machine=3)
        world.submit(1, slo=9.0)
        world.submit(2, model="p", slo=9.0)
        others = {"n": scaled("n"), "o": scaled("o")}
        world.state(base_plan("n", "o"), **others)
        lanes = world.engine.state.lanes
        assert (lanes["m"].removed, lanes["o"].target) == (True, (0,))
        world.state(base_plan("n", "o", "m"), **others, m=scaled())
        assert {name: lanes[name].target for name in "nom"} == {"n": (2,), "o": (0,), "m": (1,)}

    def test_a_replica_more_waits_until_its_core_is_free_also_where_models_are_loaded(self):
        world = ScriptedScaling(3)
        two = scaled(cores=2, replicas=2)
        world.serve(base_plan("m"), m=two)
        world.aim(m=ScalingTarget(1, 2, 8))
        world.scripts["m"].target = ScalingTarget(2, 1, 8)
        world.state(base_plan("m", "n"), m=two, n=scaled("n"))
        world.tick()
        world.state(base_plan("m", "n"), m=two, n=scaled("n"))
        world.bring_up()
        assert world.sizes == {"m": (1, 1), "n": (1, 1)}, "m was told to run on core 1, and may"
        del world.resizes[:-1]  # what was superseded is not confirmed
        world.settle()
        world.bring_up()
        assert world.sizes == {"m": (1, 1), "m+1": (1, 1), "n": (1, 1)}

    def test_nothing_is_planned_between_a_rebase_and_its_plan(self):
        world = serving("m")
        world.scripts["m"].target = ScalingTarget(1, 4, 8)
        plan = world.runtime.rebase(base_plan("m", "n"), {"m": scaled()}, now=world.now)
        assert world.next_look() is None
        world.turn(TimerFired(), after=2.0)
        assert world.sizes == {"m": (1, 1)}
        world.turn(PlanChanged(plan))
        world.tick()
        assert world.sizes["m"] == (1, 4)

    def test_a_model_that_goes_is_forgotten(self):
        world = serving("m", "n")
        world.state(base_plan("n"), n=scaled("n"))
        assert set(world.planner.status(world.engine.snapshot())) == {"n"}
        assert set(world.sizes) == {"n"}

    def test_accelerators_are_none_of_its_business(self):
        world = ScriptedScaling()
        base = base_plan("m", "g")
        gpu = LaneSpec("g", (), "cuda")
        world.serve(replace(base, lanes=(base.lanes[0], gpu)), m=scaled())
        world.reach(m=ScalingTarget(1, 8, 8))
        assert world.sizes == {"g": (0, 0), "m": (8, 8)}


WISHES = st.builds(
    ScalingTarget,
    replicas=st.integers(1, 3),
    cores=st.integers(1, 8),
    batch=st.integers(1, 8),
    start_cores=st.integers(0, 2),
    restart=st.booleans(),
)


@settings(derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_no_core_is_held_twice(data):
    """`ScriptedScaling.turn` checks the cores and the engine after every event."""
    machine = data.draw(st.integers(3, 9))
    world = ScriptedScaling(machine)
    base = base_plan("m", "n", "o", lanes=("m", "n", "n"))
    models = {key: scaled(key, cores=8, replicas=3) for key in "mno"}
    world.state(base, **models)
    id = 0
    for _ in range(25):
        for planner in world.scripts.values():
            planner.target = data.draw(WISHES)
            planner.endangered = data.draw(st.booleans())
        step = data.draw(st.sampled_from(["tick", "submit", "confirm", "up", "finish", "base"]))
        if step == "tick" and world.next_look() is not None:
            world.tick()
        elif step == "submit":
            id += 1
            world.submit(id, model=data.draw(st.sampled_from("mno")), after=0.01)
        elif step == "confirm" and world.resizes:
            index = data.draw(st.integers(0, len(world.resizes) - 1))
            resize = world.resizes[index]
            del world.resizes[: index + 1]
            lane = world.engine.state.lanes.get(resize.lane)
            if lane is not None and lane.target == resize.cores:
                world.turn(LaneResized(resize.lane, resize.cores), after=0.001)
        elif step == "up" and world.starting:
            world.turn(ReplicaUp(world.starting.pop(0)), after=0.1)
        elif step == "finish":
            running = list(world.engine.state.running)
            if running:
                world.turn(BatchFinished(running[0]), after=0.05)
        elif step == "base":
            world.state(base, **models)
        total = sum(len(lane.target) for lane in world.engine.state.lanes.values())
        assert total <= machine
