"""The driver on a real event loop, between a real engine and replicas that do as they are told."""

from __future__ import annotations

import asyncio
import errno
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from slacktide.domain import (
    Batch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    BatchTiming,
    Deployment,
    ExitPolicy,
    ExitReport,
    LaneSpec,
    Leaving,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    PublishExits,
    Reason,
    Refused,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    Route,
    Submitted,
    TellCircuit,
)
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.engine import Engine, Snapshot
from slacktide.engine.invariants import check_invariants
from slacktide.engine.ports import PoolParts, PoolView
from slacktide.engine.time_share import SoloProfiling
from slacktide.executors.ports import (
    Arranged,
    BatchOrder,
    FeaturesSeen,
    MembersReleased,
    OpenedModel,
    Outputs,
    Payload,
    Reporter,
    Resized,
    TensorRef,
)
from slacktide.planning import Composer, Draft, JobDone, Owned, PlanField, Planner, Stated
from slacktide.planning.exits import ExitsArranged
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler
from slacktide.server.calls import driver as driver_module
from slacktide.server.calls import replicas as replicas_module
from slacktide.server.calls.driver import Driver
from slacktide.server.calls.driver_timing import ReadCoalescing
from slacktide.server.calls.pending import PendingRequest
from slacktide.wire.errors import ControlError

POOL = PoolId("m", "1")
SPEC = TensorSpec("x", Datatype.FP32, (-1, 1))
INTERFACE = ModelInterface((SPEC,), (SPEC,), 4)


class Puppet:
    """A replica whose reports are the test's business; it notes what it is asked."""

    pid = None

    def __init__(self, replica: Replica, report: Reporter) -> None:
        self.replica = replica
        self.report = report
        self.asked: list[tuple[Any, ...]] = []
        self.batch = -1

    def run(self, order: BatchOrder) -> None:
        self.batch = order.batch
        self.asked.append(("run", [member.tensors[0].offset for member in order.members]))
        if order.leaving is not Leaving.NONE:
            self.asked.append((order.leaving, order.final))

    def publish(self, policy: ExitPolicy) -> None:
        self.asked.append(("publish", policy))

    def release(self, *outputs: bytes, members: tuple[int, ...] = (0,), ramp: int = 2) -> None:
        """A ramp answers some members."""
        tensors = [(((1, 1), data),) for data in outputs]
        self.report(MembersReleased(self.batch, members, ramp), tensors)

    def abort(self, batch: int) -> None:
        self.asked.append(("abort", batch))

    def resize(self, cores: tuple[int, ...]) -> None:
        self.asked.append(("resize", cores))

    def stop(self) -> None:
        self.asked.append(("stop",))

    def kill(self) -> None:
        self.asked.append(("kill",))

    def up(self) -> None:
        self.report(ReplicaUp(self.replica.id), opened=OpenedModel(INTERFACE))

    def lose(self, detail: str) -> None:
        self.report(ReplicaLost(self.replica.id, detail))

    def finish(self, *outputs: bytes | None, exits: ExitReport | None = None) -> None:
        """Every member's answer; None of one that a ramp has answered."""
        tensors = [() if data is None else (((1, 1), data),) for data in outputs]
        self.report(BatchFinished(self.batch, BatchTiming(infer_s=0.001), exits), tensors)


def planned(*pools: PoolId, cores: tuple[int, ...] = (0,)) -> Plan:
    """These pools on one lane."""
    deployments = tuple(Deployment(pool, "lane", 4) for pool in pools)
    routes = tuple(Route(pool.model, pool) for pool in pools)
    return Plan((LaneSpec("lane", cores),), deployments, routes)


class Puppeteer(Planner):
    """Plans what it is told to, once it is urgent."""

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = plans
        self.urgent = False

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.ROUTES) for model in stated)

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        return self.urgent

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        return replace(draft, plan=self.plans.pop(0)) if self.urgent else draft


class Stage:
    """A driver, its puppets, and what requests heard."""

    def __init__(self) -> None:
        self.puppets: list[Puppet] = []
        self.calls: dict[int, Asked] = {}
        self.heard: dict[int, tuple[Outcome, Outputs | None]] = {}
        self.freed: list[int] = []
        self.losses: list[str] = []
        self.told: list[TellCircuit] = []
        self.finishes: list[tuple[Batch, BatchTiming, ExitReport | None]] = []
        self.exits: list[Any] = []
        self.unwanted: list[int] = []
        self.refusal: str | None = None
        self.news = asyncio.Event()
        """A replica has started, or was lost."""
        self.times = CorrectedTimes(LatencyTable.flat(0.01, max_batch=4))
        self.solo: SoloProfiling | None = None
        self.driver = Driver(Engine(self._parts), self)
        self.driver.coalescing = ReadCoalescing(cores=1000)  # whatever this machine has

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        if pool.model == "bad":
            raise ZeroDivisionError("no such scheduler")
        scheduler = make_scheduler("edf", {}, max_batch=max_batch, times=self.times, view=view)
        return PoolParts(scheduler, self.times, solo=self.solo)

    # Launcher

    def start(self, replica: Replica, report: Reporter) -> Puppet:
        self.puppets.append(Puppet(replica, report))
        self.news.set()
        return self.puppets[-1]

    def ready(self, replica: Replica, opened: OpenedModel) -> str | None:
        return self.refusal

    def lost(self, replica: Replica, event: ReplicaLost, *, out_of_memory: bool) -> None:
        self.losses.append(event.detail)
        self.news.set()

    def stopped(self, replica: Replica) -> None:
        self.unwanted.append(replica.id)

    def circuit(self, transition: TellCircuit) -> None:
        self.told.append(transition)

    def finished(
        self, batch: Batch, timing: BatchTiming, seconds: float, exits: ExitReport | None = None
    ) -> None:
        assert seconds >= 0
        self.finishes.append((batch, timing, exits))

    def early_exits(self, replica: Replica, event: Any) -> None:
        self.exits.append(event)

    # what tests do

    def deploy(self, *cores: int) -> None:
        self.driver.apply(planned(POOL, cores=cores))

    @property
    def puppet(self) -> Puppet:
        return self.puppets[-1]

    def request(self, budget: float | None = None) -> Request:
        now = self.driver.clock()
        best_effort = budget is None
        return Request(
            self.driver.new_id(), "m", now, now + (budget or 1.0), best_effort=best_effort
        )

    def submit(self, budget: float | None = None) -> int:
        request = self.request(budget)
        call = self.call(request.id)
        call.payload = Payload(1, (TensorRef(64 * request.id, 4, (1, 1)),))
        self.driver.submit(request, call)
        return request.id

    def call(self, id: int) -> Asked:
        self.calls[id] = Asked(self, id)
        return self.calls[id]

    def cancel(self, id: int, reason: Reason = Reason.DISCONNECTED) -> None:
        self.calls[id].waits = False
        self.driver.cancel(id, reason)

    def reason(self, id: int) -> Reason:
        return self.heard[id][0].reason

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for the start, or the loss, of a replica after which this is true."""
        while not reached():
            self.news.clear()
            await self.news.wait()


class Asked(PendingRequest):
    """A request that notes on its stage what becomes of it."""

    def __init__(self, stage: Stage, id: int) -> None:
        super().__init__(id)
        self.stage = stage

    def answered(self, outcome: Outcome) -> None:
        assert self.id not in self.stage.heard, "answered twice"
        self.stage.heard[self.id] = (outcome, self.outputs)

    def released(self) -> None:
        self.stage.freed.append(self.id)


@asynccontextmanager
async def staged(solo: SoloProfiling | None = None) -> AsyncIterator[Stage]:
    """A stage with one replica that is up; in the end nothing may be left."""
    stage = Stage()
    stage.solo = solo
    stage.deploy(0)
    stage.puppet.up()
    async with asyncio.timeout(20):
        yield stage
    check_invariants(stage.driver.engine)
    stage.driver.close()
    assert stage.driver.in_flight == 0


def turn() -> Any:
    """One turn of the loop: what was posted is delivered."""
    return asyncio.sleep(0)


async def test_requests_of_one_turn_share_a_batch():
    async with staged() as stage:
        ids = [stage.submit() for _ in range(3)]
        assert stage.puppet.asked == []
        await turn()
        assert stage.puppet.asked == [("run", [64 * id for id in ids])]
        stage.puppet.finish(b"aaaa", b"bbbb", b"cccc")
        assert [stage.heard[id][1] for id in ids] == [
            (((1, 1), b"aaaa"),),
            (((1, 1), b"bbbb"),),
            (((1, 1), b"cccc"),),
        ]
        assert stage.freed == ids
        assert stage.driver.in_flight == 0


@pytest.mark.replaces_parts
@pytest.mark.parametrize(("lanes", "long_s"), [(1000, 0.001), (1000, 1.0), (0, 0.001)])
async def test_a_batch_waits_for_the_answers_only_where_its_worker_would_take_the_core_for_long(
    lanes: int, long_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver_module, "LONG_BATCH_S", long_s)
    shared = lanes == 1000 and long_s < 0.01

    async with staged() as stage:
        order: list[str] = []
        stage.driver.coalescing.lanes_have(lanes)
        first = stage.submit()
        await turn()
        second = stage.submit()
        await turn()
        run = stage.puppet.run
        stage.puppet.run = lambda batch: (order.append("batch"), run(batch))[1]
        stage.calls[first].answered = lambda outcome: order.append("answer")
        stage.puppet.finish(b"aaaa")
        assert order == (["answer"] if shared else ["batch", "answer"])
        await turn()
        assert order == (["answer", "batch"] if shared else ["batch", "answer"])
        stage.puppet.finish(b"bbbb")
        assert stage.reason(second) is Reason.ON_TIME


async def test_a_replica_that_is_lost_before_it_is_given_its_batch_is_not_given_it():
    async with staged() as stage:
        stage.driver.coalescing.lanes_have(1000)
        stage.submit()
        stage.driver.flush()
        lost = stage.puppet
        lost.lose("gone")
        await turn()
        assert not any(order[0] == "run" for order in lost.asked)


async def test_a_plan_that_the_engine_cannot_have_is_refused_and_the_one_before_holds():
    """Also what the engine had done of it: the lane that it shrank."""

    async with staged() as stage:
        driver = stage.driver
        with pytest.raises(ControlError, match="cannot serve it: ZeroDivisionError"):
            driver.apply(planned(POOL, PoolId("bad", "1"), cores=(1,)))
        assert not driver.broken.is_set()
        assert [puppet.replica.pool for puppet in stage.puppets] == [POOL]
        assert driver.engine.state.lanes["lane"].target == (0,)
        id = stage.submit()
        await turn()
        stage.puppet.finish(b"aaaa")
        assert stage.reason(id) is Reason.ON_TIME
        driver.apply(planned(POOL))
        with pytest.raises(ControlError):
            driver.apply(planned(PoolId("bad", "1")))
        assert not driver.broken.is_set()


@pytest.mark.replaces_parts
async def test_where_no_plan_can_be_had_the_server_is_told_to_end(caplog: pytest.LogCaptureFixture):
    async with staged() as stage:
        stage.driver.engine._deploying.plan_changed = lambda event: 1 / 0
        with pytest.raises(ControlError):
            stage.driver.apply(planned(POOL))
        assert stage.driver.broken.is_set()
        assert "no plan can be applied (ZeroDivisionError" in caplog.text


@pytest.mark.replaces_parts
async def test_a_plan_is_not_to_blame_for_a_scheduler_that_fails(monkeypatch: pytest.MonkeyPatch):
    async with staged() as stage:
        engine, plan = stage.driver.engine, planned(POOL)
        dispatch = engine._batches.dispatch
        monkeypatch.setattr(engine._batches, "dispatch", lambda lane: 1 / 0)
        stage.driver.apply(plan)
        monkeypatch.setattr(engine._batches, "dispatch", dispatch)
        assert (stage.driver.engine.plan, stage.driver.broken.is_set()) == (plan, False)


async def test_a_plan_of_a_planner_that_the_engine_cannot_have_makes_a_pause(
    monkeypatch: pytest.MonkeyPatch,
):
    async with staged() as stage:
        driver = stage.driver
        bad, good = planned(POOL, PoolId("bad", "1")), planned(POOL)
        plans = [bad, good]
        planner = Puppeteer(plans)
        driver.runtime.composer = Composer((planner,))
        driver.apply(good, {"m": None})
        planner.urgent = True
        id = stage.submit()
        await turn()
        assert driver.runtime._paused_until > driver.clock()
        stage.puppet.finish(b"aaaa")
        assert stage.reason(id) is Reason.ON_TIME
        assert plans == [good], "no plan is asked for meanwhile"
        driver.apply(planned(POOL, cores=(1,)), {"m": None})
        stage.submit()
        await turn()
        assert (plans, driver.engine.plan, driver.broken.is_set()) == ([], good, False)


async def test_a_lost_replica_is_started_again_and_its_request_run_again():
    async with staged() as stage:
        id = stage.submit()
        await turn()
        lost = stage.puppet
        lost.lose("killed by signal 9")
        assert stage.losses == ["killed by signal 9"]
        lost.up()  # the dead are not heard
        await stage.until(lambda: stage.puppet is not lost)  # after its pause of 0.1 s
        stage.puppet.up()
        assert stage.puppet.asked == [("run", [64 * id])]
        stage.puppet.finish(b"aaaa")
        assert stage.reason(id) is Reason.ON_TIME
        assert stage.freed == [id]


async def test_a_batch_can_be_cancelled_in_the_breath_in_which_its_replica_is_lost():
    async with staged() as stage:
        id = stage.submit()
        await turn()
        stage.cancel(id)
        stage.puppet.lose("killed by signal 9")
        assert stage.heard == {}
        assert ("abort", 0) not in stage.puppet.asked
        assert len(stage.puppets) == 1
        assert stage.freed == []  # nobody waits for it, but it is to be judged
        await stage.until(lambda: len(stage.puppets) == 2)
        stage.puppet.up()
        stage.puppet.finish(b"aaaa")
        assert (stage.heard, stage.freed) == ({}, [id])


async def test_a_replica_that_cannot_be_started_is_lost():
    async with staged() as stage:

        def fail(replica: Replica, report: Reporter) -> Puppet:
            raise OSError("no more processes")

        stage.start = fail
        stage.puppet.lose("killed")
        await stage.until(lambda: len(stage.losses) == 2)
        assert stage.losses[1] == "could not be started: no more processes"


async def test_a_replica_that_is_ready_with_another_model_is_refused_for_good():
    async with staged() as stage:
        stage.refusal = "not the model that was profiled"
        stage.puppet.lose("killed")
        await stage.until(lambda: len(stage.puppets) == 2)
        stage.puppet.up()
        assert stage.puppet.asked == [("stop",)]
        id = stage.submit()
        await turn()
        assert stage.reason(id) is Reason.UNAVAILABLE
        assert "not the model" in stage.heard[id][0].detail


async def test_a_model_that_raises_fails_its_request():
    async with staged() as stage:
        id = stage.submit()
        await turn()
        stage.puppet.report(BatchFailed(stage.puppet.batch, "index out of range"))
        assert stage.reason(id) is Reason.RUNTIME_ERROR
        assert stage.heard[id][0].detail == "index out of range"
        assert stage.freed == [id]


async def test_who_waits_is_cancelled_at_once_and_never_runs():
    async with staged() as stage:
        first = stage.submit()
        await turn()
        second = stage.submit()
        await turn()
        stage.cancel(second, Reason.CLIENT_CANCELLED)
        await turn()
        assert stage.freed == [second]
        stage.puppet.finish(b"aaaa")
        assert list(stage.heard) == [first]
        assert [order[0] for order in stage.puppet.asked] == ["run"]


async def test_a_batch_is_stopped_when_its_last_member_leaves_and_its_slots_wait_for_that():
    async with staged() as stage:
        ids = [stage.submit(), stage.submit()]
        await turn()
        stage.cancel(ids[0])
        await turn()
        assert [order[0] for order in stage.puppet.asked] == ["run"]
        stage.cancel(ids[1])
        await turn()
        assert stage.puppet.asked[1:] == [("abort", stage.puppet.batch)]
        assert stage.freed == []
        stage.puppet.report(BatchAborted(stage.puppet.batch))
        assert stage.freed == ids
        assert stage.heard == {}


REPORT = ExitReport((2,), ((0.1,), (0.6,)), ((True,), (False,)), (0, -1), (0.001,))


async def test_members_that_a_ramp_answers_have_its_answer_at_once_and_keep_their_slots():
    async with staged() as stage:
        first, second = stage.submit(), stage.submit()
        await turn()
        stage.puppet.release(b"easy")
        outcome, outputs = stage.heard[first]
        assert (outcome.reason, outcome.ramp) == (Reason.EARLY_EXIT, 2)
        assert outputs == (((1, 1), b"easy"),)
        assert stage.calls[first].timing is not None, "statistics count it like any other"
        assert stage.freed == [], "its row still runs on"
        assert stage.driver.waiting() == [stage.calls[second]]
        stage.puppet.finish(None, b"hard", exits=REPORT)
        assert stage.heard[second][1] == (((1, 1), b"hard"),)
        assert stage.calls[first].outputs == (((1, 1), b"easy"),)
        assert stage.freed == [first, second]
        ((_, _, exits),) = stage.finishes
        assert exits == REPORT


async def test_a_worker_killed_after_a_release_has_only_the_others_run_again():
    async with staged() as stage:
        first, second = stage.submit(), stage.submit()
        await turn()
        stage.puppet.release(b"easy")
        lost = stage.puppet
        lost.lose("killed")
        assert stage.freed == [first]
        await stage.until(lambda: stage.puppet is not lost)
        stage.puppet.up()
        await turn()
        assert ("run", [64 * second]) in stage.puppet.asked
        stage.puppet.finish(b"hard")
        assert stage.heard[second][0].reason is Reason.ON_TIME
        assert stage.freed == [first, second]


async def test_a_request_that_is_withdrawn_as_a_ramp_answers_it_has_no_answer():
    async with staged() as stage:
        first, second = stage.submit(), stage.submit()
        await turn()
        stage.cancel(first)
        stage.puppet.release(b"easy")
        assert first not in stage.heard
        assert stage.calls[first].outputs is None
        stage.puppet.finish(None, b"hard")
        assert stage.freed == [first, second]


async def test_a_batch_whose_members_are_all_answered_may_be_stopped_and_counts_as_run():
    async with staged() as stage:
        id = stage.submit()
        await turn()
        stage.puppet.release(b"easy")
        assert stage.freed == []
        stage.puppet.report(BatchAborted(stage.puppet.batch, REPORT))
        assert stage.freed == [id]
        assert stage.reason(id) is Reason.EARLY_EXIT
        ((batch, timing, exits),) = stage.finishes
        assert (batch.rows, exits) == (1, REPORT)
        assert timing.infer_s > 0.0


async def test_replicas_hear_of_policies_after_the_batches_that_were_decided_before():
    async with staged() as stage:
        driver, replica = stage.driver, stage.puppet.replica
        driver.coalescing.lanes_have(1000)
        policy = ExitPolicy(POOL, (2,), (0.1,), revision=1)
        stage.submit()
        driver.flush()
        driver._carry_out(PublishExits(replica, policy, 0))
        assert [order[0] for order in stage.puppet.asked] == ["run", "publish"]
        stage.puppet.finish(b"aaaa")


@pytest.mark.replaces_parts
async def test_reports_of_early_exits_go_to_planners_and_learners():
    async with staged() as stage:
        reports: list[Any] = []
        stage.driver.runtime.composer.observe_exits = lambda events, now: reports.extend(events)
        arranged = Arranged(3, (1, 4), "", (1, 8), (0.01, 0.05), ((0.004, 0.011), (0.02, 0.05)))
        features = FeaturesSeen(1, ("a",), (0.5,), (b"1234",), b"5678")
        stage.puppet.report(arranged)
        stage.puppet.report(features)
        untimed = Arranged(3, (1, 4), untimed="out of memory")
        stage.puppet.report(untimed)
        (planned_for,) = reports
        assert planned_for == ExitsArranged(
            POOL, stage.puppet.replica.id, 3, (1, 4), "", (1, 8), (0.01, 0.05),
            ((0.004, 0.011), (0.02, 0.05)),
        )  # fmt: skip
        assert stage.exits == [arranged, features, untimed]


async def test_a_lane_is_resized_when_all_of_its_replicas_have_moved():
    async with staged() as stage:
        stage.deploy(0, 1)
        assert stage.puppet.asked == [("resize", (0, 1))]
        lane = stage.driver.engine.state.lanes["lane"]
        assert lane.cores == (0,)
        stage.puppet.report(Resized((0, 1)))
        assert lane.cores == (0, 1)


async def test_a_replica_that_is_no_longer_wanted_is_stopped_and_not_heard_of_again():
    async with staged() as stage:
        stage.driver.post(PlanChanged(Plan()))
        stage.driver.flush()
        assert stage.puppet.asked == [("stop",)]
        assert stage.unwanted == [stage.puppet.replica.id]
        stage.puppet.lose("ended")
        assert stage.losses == []


async def test_a_lane_is_resized_although_its_replica_dies_of_it():
    async with staged() as stage:
        stage.deploy(0, 1)
        stage.puppet.lose("killed")
        assert stage.driver.engine.state.lanes["lane"].cores == (0, 1)


async def test_a_deadline_is_kept_by_the_drivers_own_timer():
    async with staged() as stage:
        stage.submit()
        await turn()
        waiting = stage.submit(budget=0.05)
        await turn()
        while waiting not in stage.heard:
            await asyncio.sleep(0.005)
        assert stage.heard[waiting][0].kind is OutcomeKind.DROPPED
        assert stage.freed == [waiting]
        stage.puppet.finish(b"aaaa")


async def test_an_announced_request_becomes_a_real_one():
    async with staged() as stage:
        now = stage.driver.clock()
        id = stage.driver.new_id()
        notice = Notice(id, "m", now, now + 5, payload_bytes=4, complete_at=now)
        call = stage.call(id)
        stage.driver.announce(notice, call)
        await turn()
        assert stage.driver.waiting() == [], "its payload is not here"
        call.payload = Payload(1, (TensorRef(0, 4, (1, 1)),))
        stage.driver.submit(Request(id, "m", now, now + 5), call)
        assert stage.driver.waiting() == [call]
        await turn()
        assert stage.heard == {}
        stage.puppet.finish(b"aaaa")
        assert stage.reason(id) is Reason.ON_TIME
        assert stage.freed == [id]


async def test_a_refusal_is_counted_and_answered():
    async with staged() as stage:
        id = stage.driver.new_id()
        event = Refused(id, "m", Reason.BAD_INPUT, detail="x: expected a number")
        stage.driver.refuse(event, stage.call(id))
        await turn()
        assert stage.reason(id) is Reason.BAD_INPUT
        assert stage.driver.engine.state.request_table.counts["m"].by_reason == {
            Reason.BAD_INPUT: 1
        }


async def test_a_request_refused_after_its_notice_frees_what_the_notice_held():
    async with staged() as stage:
        now = stage.driver.clock()
        id = stage.driver.new_id()
        notice = Notice(id, "m", now, now + 5, payload_bytes=4, complete_at=now)
        stage.driver.announce(notice, stage.call(id))
        await turn()
        stage.driver.refuse(Refused(id, "m", Reason.BAD_INPUT), stage.calls[id])
        await turn()
        assert stage.reason(id) is Reason.BAD_INPUT
        assert stage.freed == [id]
        assert stage.driver.in_flight == 0


class Clockwork(Planner):
    """It wants to be asked at `at`."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.seen: list[str] = []

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.INPUTS) for model in stated)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        return self.at

    def observe(self, events: Sequence[Any], snapshot: Snapshot, *, now: float) -> None:
        self.seen += [type(event).__name__ for event in events]
        if now >= self.at:
            self.at = math.inf

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        return draft


async def test_the_driver_wakes_for_its_planners_though_the_engine_waits_for_nothing():
    async with staged() as stage:
        planner = Clockwork(stage.driver.clock() + 0.02)
        stage.driver.runtime.composer = Composer((planner,))
        assert stage.driver.engine.next_wakeup() is None
        stage.driver.apply(planned(POOL), {"m": None})
        planner.seen.clear()
        while planner.at < math.inf:
            await asyncio.sleep(0.001)
        assert planner.seen == ["TimerFired"]


async def test_the_earlier_of_engine_and_planners_decides_when_the_driver_wakes():
    async with staged() as stage:
        stage.submit(budget=3.0)
        await turn()
        runtime = stage.driver.runtime
        engine = runtime.engine.next_wakeup()
        assert engine is not None
        planner = Clockwork(engine)
        runtime.composer = Composer((planner,))
        stage.driver.apply(planned(POOL), {"m": None})
        for at in (math.inf, engine - 1.0, engine + 1.0):
            planner.at = at
            assert runtime.next_wakeup() == min(at, engine)
        stage.puppet.finish(b"aaaa")


class Thinker(Planner):
    """Has a plan computed off the loop as soon as it is asked."""

    def __init__(self, plan: Plan) -> None:
        self.answer: Plan | None = None
        self.asked = False
        self._plan = plan
        self.threads: list[str] = []

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.PLACEMENT) for model in stated)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        return math.inf if self.asked else 0.0

    def observe(self, events: Sequence[Any], snapshot: Snapshot, *, now: float) -> None:
        for event in events:
            if isinstance(event, JobDone):
                self.answer = event.answer

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        return self.answer is not None or not self.asked

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        def compute() -> Plan:
            self.threads.append(threading.current_thread().name)
            return self._plan

        first, self.asked = not self.asked, True
        return compute if first else None

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        return replace(draft, plan=self.answer or draft.plan)


async def test_a_planners_job_runs_on_a_thread_and_is_merged():
    async with staged() as stage:
        planner = Thinker(planned(POOL, cores=(1,)))
        stage.driver.runtime.composer = Composer((planner,))
        stage.driver.apply(planned(POOL), {"m": None})
        while stage.driver.engine.plan != planned(POOL, cores=(1,)):
            await asyncio.sleep(0.001)
        assert planner.threads
        assert threading.current_thread().name not in planner.threads


async def test_a_field_with_two_owners_fails_the_load_and_what_serves_goes_on():
    async with staged() as stage:
        first, other = Clockwork(math.inf), Clockwork(math.inf)
        other.name = "another"
        stage.driver.runtime.composer = Composer((first, other))
        with pytest.raises(ControlError, match="m: the planners 'planner' and 'another' both"):
            stage.driver.apply(planned(POOL, cores=(1,)), {"m": None})
        assert stage.driver.engine.plan == planned(POOL)
        stage.driver.apply(planned(POOL), {})
        id = stage.submit()
        await turn()
        stage.puppet.finish(b"aaaa")
        assert stage.reason(id) is Reason.ON_TIME


class Brake:
    """Moderation that always wants a pause, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.shares_core = self.may_pause = True
        self.pauses: list[Sequence[int]] = []
        self.resumed = 0

    def arrived(self, at: float) -> None:
        """Nothing is averaged."""

    def pause_for(self, **facts: Any) -> float:
        self.asked.append(facts)
        return 0.001

    def pause(self, seconds: float, reports: Sequence[int], *, now: float) -> None:
        self.pauses.append(list(reports))

    def resume(self) -> None:
        self.resumed += 1


@pytest.mark.replaces_parts
@pytest.mark.parametrize("descriptors", [(7, 8), (7, None)])
async def test_the_loop_pauses_only_while_every_lane_is_busy_and_can_end_the_pause(
    descriptors: tuple[int | None, int | None],
):
    async with staged() as stage:
        other = PoolId("n", "1")
        plan = Plan(
            (LaneSpec("lane", (0,)), LaneSpec("other", (1, 2))),
            (Deployment(POOL, "lane", 4), Deployment(other, "other", 4)),
            (Route("m", POOL), Route("n", other)),
        )
        stage.driver.post(PlanChanged(plan))
        stage.driver.flush()
        stage.puppet.up()
        await turn()
        brake = Brake()
        stage.driver.coalescing = brake  # type: ignore[assignment]
        ids = [puppet.replica.id for puppet in stage.puppets]
        stage.driver.replicas.descriptor = dict(zip(ids, descriptors, strict=True)).get
        stage.submit()
        await turn()
        await turn()
        assert brake.asked == [], "a lane is free"
        late = stage.request()
        call = stage.call(late.id)
        call.payload = Payload(1, (TensorRef(0, 4, (1, 1)),))
        stage.driver.submit(Request(late.id, "n", late.arrival, late.deadline), call)
        await turn()
        await turn()
        running = [lane.running for lane in stage.driver.engine.state.lanes.values()]
        ends = [batch.expected_end for batch in running if batch is not None]
        (question,) = brake.asked
        assert question["soonest_end"] == min(ends)
        assert question["shortest_batch"] == pytest.approx(0.01)
        # Where a report could not end the pause, there is none.
        assert brake.pauses == ([[7, 8]] if None not in descriptors else [])
        await turn()
        assert brake.resumed == len(brake.pauses)
        for puppet in stage.puppets:
            puppet.finish(b"aaaa")


@pytest.mark.replaces_parts
async def test_a_worker_has_its_batch_before_the_loop_pauses():
    async with staged() as stage:

        class Watching(Brake):
            def pause(self, seconds: float, reports: Sequence[int], *, now: float) -> None:
                super().pause(seconds, reports, now=now)
                given.append(len(stage.puppet.asked))

        given: list[int] = []
        brake = Watching()
        stage.driver.coalescing = brake  # type: ignore[assignment]
        stage.driver.replicas.descriptor = lambda id: 7
        stage.submit()
        await turn()
        await turn()
        await turn()
        given.clear()
        stage.submit()
        stage.driver.flush()  # a pause is due
        stage.puppet.finish(b"aaaa")  # and in the same turn the next batch is decided
        await turn()
        assert given == [len(stage.puppet.asked)] == [2]
        stage.puppet.finish(b"bbbb")


async def test_answers_given_before_an_event_that_fails_are_delivered(caplog):
    async with staged() as stage:
        first = stage.submit()
        await turn()
        refused, again = stage.driver.new_id(), stage.request()
        stage.driver.refuse(Refused(refused, "m", Reason.BAD_INPUT), stage.call(refused))
        stage.driver.post(Submitted(Request(first, "m", again.arrival, again.deadline)))
        second = stage.submit()
        await turn()
        assert stage.reason(refused) is Reason.BAD_INPUT
        assert "could not handle" in caplog.text
        stage.puppet.finish(b"aaaa")
        stage.puppet.finish(b"bbbb")
        assert {stage.reason(first), stage.reason(second)} == {Reason.ON_TIME}
        caplog.clear()


async def test_an_answer_that_cannot_be_delivered_harms_nobody(caplog: pytest.LogCaptureFixture):
    class Broken(Asked):
        def answered(self, outcome: Outcome) -> None:
            raise RuntimeError("the connection is in a strange state")

    async with staged() as stage:
        request = stage.request()
        call = Broken(stage, request.id)
        call.payload = Payload(1, (TensorRef(0, 4, (1, 1)),))
        stage.driver.submit(request, call)
        other = stage.submit()
        await turn()
        stage.puppet.finish(b"aaaa", b"bbbb")
        assert stage.reason(other) is Reason.ON_TIME
        assert "could not be delivered" in caplog.text


async def test_closing_answers_who_still_waits():
    async with staged() as stage:
        ids = [stage.submit()]
        await turn()
        ids.append(stage.submit())
        stage.driver.close()
        assert [stage.reason(id) for id in ids] == [Reason.DRAINING] * 2
        assert sorted(stage.freed) == ids
        assert stage.puppet.asked[-1] == ("stop",)
        stage.puppet.lose("stopped")  # too late to matter
        assert stage.losses == []
        assert stage.driver.in_flight == 0


async def test_an_event_beyond_the_engine_costs_nobody_else_an_answer(caplog):
    async with staged() as stage:
        first = stage.submit()
        again = stage.request()
        doubled = Request(first, "m", again.arrival, again.deadline)
        stage.driver.post(Submitted(doubled))  # the id is in use
        second = stage.submit()
        await turn()
        stage.puppet.finish(b"aaaa", b"bbbb")
        assert {stage.reason(first), stage.reason(second)} == {Reason.ON_TIME}
        assert "could not handle" in caplog.text
        caplog.clear()


async def test_a_replica_that_finds_no_descriptor_waits_and_is_not_a_crash(monkeypatch):
    monkeypatch.setattr(replicas_module, "START_AGAIN_S", 0.0)

    stage = Stage()
    works, tries = stage.start, []

    def start(replica: Replica, report: Reporter) -> Puppet:
        tries.append(replica.id)
        if len(tries) <= 6:
            raise OSError(errno.EMFILE, "Too many open files")
        return works(replica, report)

    stage.start = start  # type: ignore[method-assign]  # a launcher that fails at first
    stage.deploy(0)
    async with asyncio.timeout(20):
        while not stage.puppets:
            await turn()
    assert stage.losses == []
    assert tries == [tries[0]] * 7
    stage.driver.close()


async def test_a_replica_that_waits_for_a_descriptor_starts_on_the_cores_of_its_lane(monkeypatch):
    monkeypatch.setattr(replicas_module, "START_AGAIN_S", 0.01)

    stage = Stage()
    works, full = stage.start, True

    def start(replica: Replica, report: Reporter) -> Puppet:
        if full:
            raise OSError(errno.EMFILE, "Too many open files")
        return works(replica, report)

    stage.start = start  # type: ignore[method-assign]  # a launcher that fails at first
    stage.deploy(0, 1)
    stage.deploy(0)
    await turn()
    assert stage.driver.engine.state.lanes["lane"].held == (0,), "1 may be somebody else's"
    full = False
    async with asyncio.timeout(20):
        while not stage.puppets:
            await asyncio.sleep(0.001)
    assert stage.puppet.replica.cores == (0,)
    stage.driver.close()


async def test_a_sample_runs_like_a_batch_and_answers_nobody():
    solo = SoloProfiling(lambda request: True, 1.0)
    async with staged(solo) as stage:
        ids = [stage.submit(), stage.submit()]
        await turn()
        batch = stage.puppet.batch
        stage.puppet.finish(b"aaaa", b"bbbb")
        assert sorted(stage.heard) == ids
        kept = ids[batch % 2]
        assert stage.freed == [id for id in ids if id != kept]
        while len(stage.puppet.asked) < 2:  # until it has been earned
            await asyncio.sleep(0.001)
        assert stage.puppet.asked[-1] == ("run", [64 * kept])
        before = dict(stage.heard)
        stage.puppet.finish(b"cccc")
        assert stage.heard == before
        assert sorted(stage.freed) == ids
        assert stage.driver.in_flight == 0
        assert solo.counts.run == 1


async def test_held_payloads_are_reclaimed_at_once():
    async with staged(SoloProfiling(lambda request: True, 1e-6)) as stage:
        ids = [stage.submit(), stage.submit()]
        await turn()
        assert not stage.driver.reclaim()
        stage.puppet.finish(b"aaaa", b"bbbb")
        assert len(stage.freed) == 1
        assert stage.driver.reclaim()
        assert sorted(stage.freed) == ids
        assert not stage.driver.reclaim()


async def test_the_end_gives_samples_back():
    async with staged(SoloProfiling(lambda request: True, 1e-6)) as stage:
        stage.submit()
        stage.submit()
        await turn()
        stage.puppet.finish(b"aaaa", b"bbbb")
        assert stage.driver.in_flight == 1
