"""Thousands of random event orders: nothing is lost, nothing is answered or freed twice.

Hypothesis plays every part around the engine: clients, replicas that finish, fail, die or hang,
lanes that are resized late, never or otherwise than asked, and an operator who changes plans, cores
and batch caps. `World.send` checks the engine's invariants after every event.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from slacktide.domain import (
    AbortBatch,
    Announced,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Deployment,
    ExitMode,
    ExitPolicy,
    LaneResized,
    LaneSpec,
    Leaving,
    MemoryShort,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    PublishExits,
    Reason,
    Refused,
    ReplicaLost,
    ReplicaUp,
    ResizeLane,
    Route,
    RowsReleased,
    RunBatch,
    StartReplica,
    StopReplica,
    Submitted,
    TimerFired,
)
from slacktide.engine.request_table import State
from slacktide.engine.time_share import SoloProfiling

MODELS = ("a", "b")
FAMILY = {"0": (100, ()), "1": (200, ("0",)), "2": (300, ("1", "0"))}
"""Variants: their sizes, and those that help them out."""
SECONDS = {"0": 0.01, "1": 0.1, "2": 0.4}

CORES = (((0,), (0, 2), (0, 2, 4, 6)), ((1,), (1, 3), (3,)))
"""What each lane may have; the two are disjoint."""


class EngineMachine(RuleBasedStateMachine):
    world_class: type  # set by the test from the fixture in conftest
    events = 0
    samples = False
    unmeasured = None
    family = False
    """Whether the versions of a model are variants of one, with a third beside them everywhere."""
    shapes = 2
    exits = False
    """Whether requests may leave early, under policies that change."""

    def __init__(self):
        super().__init__()
        self.world = self.world_class()
        if self.samples:
            self.world.solo = SoloProfiling(lambda request: request.id % 3 > 0, 0.5)
        self.world.unmeasured = self.unmeasured
        self.world.judged = {((6,),)}
        if self.family:
            self.world.variants, self.world.seconds = FAMILY, SECONDS
        self.rescued = {}
        """The pool to which a request was rescued, by its id."""
        self.next_id = 0
        self.running = {}
        self.starting = {}
        self.up = {}
        self.dying = {}
        self.resizes = []
        self.published = {}
        """The exit policy that a replica was told last, by its id."""
        self.policies = {}
        self.plan = Plan()
        self.stopped = set()

    @initialize()
    def deploy(self):
        """Two lanes, three pools, all of them up: plans change under load from the beginning."""
        if self.exits:
            for model, mode in (("a", ExitMode.SHRINK), ("b", ExitMode.AUTO)):
                pool = self.pool(model, "2" if model == "a" else "1")
                self.policies[pool] = ExitPolicy(pool, (1, 3), (0.1, 0.1), mode)
        self.places = {("a", "1", 0), ("a", "2", 1), ("b", "1", 0), ("b", "1", 1)}
        self.plan_changes(self.places, True, tuple(place[-1] for place in CORES), 4, 0)
        for id in sorted(self.starting):
            self.up[id] = self.starting.pop(id)
            self.send(ReplicaUp(id))

    @rule(
        place=st.tuples(st.sampled_from(MODELS), st.sampled_from("12"), st.integers(0, 1)),
        cores=st.tuples(*map(st.sampled_from, CORES)),
    )
    def plan_moves_one(self, place, cores):
        """One pool is put on a lane or taken off it; all others stay where they are."""
        self.plan_changes(self.places ^ {place}, True, cores, 4, 0)

    def pool(self, model, version):
        return PoolId(model, "1", version) if self.family else PoolId(model, version)

    def check_rescued(self, before, events):
        """A request goes to a smaller variant, at most once, and then only where a plan or a crash
        sends it."""
        state = self.world.engine.state
        for id, entry in state.request_table.entries.items():
            if not entry.rescued:
                continue
            was, pool = self.rescued.setdefault(id, entry.pool), entry.pool
            if was is not pool:
                assert was.removed or was.down_reason or was.id not in state.pools
                self.rescued[id] = pool
            elif before.get(id, pool) is not pool:
                assert any(isinstance(event, PlanChanged) for event in events) or (
                    FAMILY[pool.id.variant][0] < FAMILY[before[id].id.variant][0]
                )
        rescued = sum(counts.rescued for counts in state.request_table.counts.values())
        assert len(self.rescued) <= rescued <= self.next_id
        type(self).rescues = max(type(self).rescues, rescued)

    def send(self, *events, after=0.0):
        type(self).events += len(events)
        before = {
            id: entry.pool for id, entry in self.world.engine.state.request_table.entries.items()
        }
        self.deliver(*events, after=after)
        self.check_rescued(before, events)

    def deliver(self, *events, after=0.0):
        for command in self.world.send(*events, after=after):
            if isinstance(command, RunBatch):
                assert command.batch.replica.id in self.up
                lane = self.world.engine.state.lanes[command.batch.replica.lane]
                assert lane.awaited_until == math.inf, "it started before it grew"
                assert len(command.batch.replica.cores) == lane.size
                self.check_leaving(command.batch)
                self.running[command.batch.replica.id] = command.batch
            elif isinstance(command, StartReplica):
                self.starting[command.replica.id] = command.replica
            elif isinstance(command, ResizeLane):
                self.resizes.append(command)
            elif isinstance(command, PublishExits):
                assert command.replica.id in self.up
                self.published[command.replica.id] = command.policy
            elif isinstance(command, AbortBatch):
                assert not command.batch.judged
                assert command.batch.id not in self.stopped, "stopped twice"
                self.stopped.add(command.batch.id)
            elif isinstance(command, StopReplica):
                id = command.replica.id
                alive = self.starting.pop(id, None) or self.up.pop(id, None)
                if command.kill:
                    self.dying[id] = command.replica
                else:
                    assert alive is not None
                    assert id not in self.running, "a busy replica was stopped"

    def check_leaving(self, batch):
        """A batch is run by the policy that its replica knows."""
        policy = self.published.get(batch.replica.id)
        if policy is None or not policy.ramps or batch.solo:
            assert batch.leaving is Leaving.NONE
        elif batch.judged or policy.mode is ExitMode.RELEASE:
            assert batch.leaving is Leaving.RUN_ON
        elif policy.mode is ExitMode.SHRINK:
            assert batch.leaving is Leaving.SHRINK
        else:
            assert batch.leaving is not Leaving.NONE
        type(self).left |= {batch.leaving}

    def request(self, data_slo, model, rows, best_effort, signature):
        self.next_id += 1
        return self.world.request(
            self.next_id,
            slo=data_slo,
            model=model,
            rows=rows,
            best_effort=best_effort,
            signature=((1 + signature % self.shapes,),),
            size=(signature % 4) * 100 if self.family else 0,
            client=f"client {self.next_id % 2}",
            final=self.exits and self.next_id % 5 == 0,
        )

    @rule(
        requests=st.lists(
            st.tuples(
                st.floats(-0.1, 2.0),
                st.sampled_from([*MODELS, "unknown"]),
                st.integers(1, 5),
                st.booleans(),
                st.integers(1, 12),
            ),
            min_size=1,
            max_size=4,
        ),
        after=st.floats(0, 0.2),
    )
    def submit(self, requests, after):
        self.world.now += after
        self.send(*[Submitted(self.request(*fields)) for fields in requests])

    @rule(slo=st.floats(0.01, 1.0), model=st.sampled_from(MODELS), best_effort=st.booleans())
    def announce(self, slo, model, best_effort):
        self.next_id += 1
        now = self.world.now
        notice = Notice(self.next_id, model, now, now + slo, 10, now, best_effort=best_effort)
        self.send(Announced(notice))

    def of_state(self, *states):
        entries = self.world.engine.state.request_table.entries
        return [id for id, entry in entries.items() if entry.state in states]

    @rule(data=st.data(), refuse=st.booleans())
    def body_comes(self, data, refuse):
        ids = self.of_state(State.ANNOUNCED)
        if ids:
            id = data.draw(st.sampled_from(ids))
            model = self.world.engine.state.request_table.entries[id].request.model
            if refuse:
                self.send(Refused(id, model, Reason.BAD_INPUT))
            else:
                self.send(Submitted(self.world.request(id, model=model)))

    @rule(data=st.data())
    def cancel(self, data):
        if self.next_id:
            self.send(Cancelled(data.draw(st.integers(1, self.next_id))))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        end=st.sampled_from(["finish", "finish", "fail", "abort", "release"]),
        after=st.floats(0, 0.3),
    )
    def batch_ends(self, data, end, after):
        replica = data.draw(st.sampled_from(sorted(self.running)))
        batch = self.running[replica]
        if end == "release":
            members = [member.id for member in batch.members if not member.final]
            if members:
                released = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
                self.send(RowsReleased(batch.id, tuple(released), 3), after=after)
                assert all(self.world.answers[id].ramp in (3, None) for id in released)
            return
        del self.running[replica]
        event = {
            "finish": BatchFinished(batch.id),
            "fail": BatchFailed(batch.id, "raised"),
            "abort": BatchAborted(batch.id),
        }[end]
        self.send(event, after=after)

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), after=st.floats(0, 1.0))
    def replica_comes_up(self, data, after):
        id = data.draw(st.sampled_from(sorted(self.starting)))
        self.up[id] = self.starting.pop(id)
        self.send(ReplicaUp(id), after=after)

    @precondition(lambda self: self.starting or self.up or self.dying)
    @rule(data=st.data(), permanent=st.sampled_from([False, False, False, True]))
    def replica_dies(self, data, permanent):
        id = data.draw(st.sampled_from(sorted({*self.starting, *self.up, *self.dying})))
        for group in (self.starting, self.up, self.dying, self.running):
            group.pop(id, None)
        self.send(ReplicaLost(id, "died", permanent))

    @precondition(lambda self: self.unmeasured)
    @rule(model=st.sampled_from(MODELS))
    def shapes_are_forgotten(self, model):
        """Those of the least use go; requests that wait for a batch were judged before."""
        for pool, times in self.world.times.items():
            if pool.model == model:
                times.measured.clear()

    @rule()
    def memory_is_short(self):
        self.send(MemoryShort())
        assert self.of_state(State.HELD) == []

    @rule()
    def time_passes(self):
        at = self.world.engine.next_wakeup()
        if at is not None:
            self.send(TimerFired(), after=max(0.0, at - self.world.now))

    @rule(
        places=st.sets(
            st.tuples(st.sampled_from(MODELS), st.sampled_from("12"), st.integers(0, 1))
        ),
        routed=st.booleans(),
        cores=st.tuples(*map(st.sampled_from, CORES)),
        cap=st.sampled_from([1, 3, 4]),
        generation=st.sampled_from([0, 0, 0, 1]),
    )
    def plan_changes(self, places, routed, cores, cap, generation):
        self.places = places
        deployments = tuple(
            # A pool is opened for four rows; after that a plan may cap its batches.
            Deployment(
                id,
                f"lane{lane}",
                cap if id in self.world.engine.state.pools else 4,
                generation,
            )
            for id, lane in sorted(
                {(self.pool(model, version), lane) for model, version, lane in places}
                | {(self.pool(model, "0"), lane) for model, _, lane in places if self.family}
            )
        )
        pools = {deployment.pool.model: deployment.pool for deployment in deployments}
        routes = tuple(Route(model, pool) for model, pool in pools.items()) if routed else ()
        used = {deployment.lane for deployment in deployments}
        lanes = tuple(
            LaneSpec(name, lane_cores)
            for name, lane_cores in zip(("lane0", "lane1"), cores, strict=True)
            if name in used
        )
        self.plan = Plan(lanes, deployments, routes, (), tuple(self.policies.values()))
        self.send(PlanChanged(self.plan))

    @precondition(lambda self: self.exits)
    @rule(
        model=st.sampled_from(MODELS),
        version=st.sampled_from("12"),
        mode=st.none() | st.sampled_from(ExitMode),
        ramps=st.sampled_from([(), (3,), (1, 3)]),
        feedback=st.sampled_from([0.0, 0.1, 1.0]),
    )
    def exits_change(self, model, version, mode, ramps, feedback):
        """All replicas of the pool hear of it, and no other."""
        pool = self.pool(model, version)
        self.policies.pop(pool, None)
        if mode is not None:
            thresholds = tuple(0.1 for _ in ramps)
            self.policies[pool] = ExitPolicy(pool, ramps, thresholds, mode, feedback)
        before = dict(self.published)
        self.plan = replace(self.plan, exits=tuple(self.policies.values()))
        self.send(PlanChanged(self.plan))
        for id, replica in self.up.items():
            if replica.pool != pool:
                assert self.published.get(id) == before.get(id)
            elif mode is not None:
                assert self.published[id] == self.policies[pool]

    @precondition(lambda self: self.resizes)
    @rule(data=st.data(), as_asked=st.booleans(), after=st.floats(0, 0.1))
    def lane_is_resized(self, data, as_asked, after):
        """One of the resizes under way is confirmed; those before it never will be."""
        index = data.draw(st.integers(0, len(self.resizes) - 1))
        resize = self.resizes[index]
        del self.resizes[: index + 1]
        cores = resize.cores if as_asked else CORES[int(resize.lane[-1])][0]
        self.send(LaneResized(resize.lane, cores), after=after)

    def teardown(self):
        """Let everything end: then every request has one outcome and no payload is named."""
        for replica in sorted(self.running):
            self.send(BatchFinished(self.running.pop(replica).id))
        self.send(PlanChanged(Plan()))
        while self.running:
            _, batch = self.running.popitem()
            self.send(BatchFinished(batch.id))
        table = self.world.engine.state.request_table
        assert table.entries == {}
        counted = sum(counts.requests for counts in table.counts.values())
        assert counted == len(self.world.answers) == len(self.world.freed)


RULES = {"a": {"share": 0.2, "most": 4}, "b": {"refuse": True, "share": 0.0}}
"""Of requests whose shape was never measured, by model."""


@pytest.mark.parametrize(
    ("samples", "unmeasured", "family", "exits"),
    [
        (False, None, False, False),
        (True, None, False, False),
        (False, RULES, False, False),
        (True, {"a": {"share": 1.0}}, False, False),
        (False, None, True, False),
        (False, None, False, True),
        (True, RULES, True, True),
    ],
    ids=["plain", "samples", "unmeasured", "unmeasured and samples", "family", "exits", "all"],
)
def test_no_order_of_events_loses_or_doubles_a_request(
    make_world, samples, unmeasured, family, exits
):
    given = {
        "world_class": make_world,
        "samples": samples,
        "unmeasured": unmeasured,
        "shapes": 2 if unmeasured is None else 6,
        "events": 0,
        "family": family,
        "rescues": 0,
        "exits": exits,
        "left": set(),
    }
    machine = type("Machine", (EngineMachine,), given)
    case = machine.TestCase
    plain = unmeasured is None and not samples
    # Below, every way to leave must have come up: fewer examples do not show all of them.
    examples = max(settings.default.max_examples, 100 if plain and not family else 60)
    case.settings = settings(max_examples=examples, stateful_step_count=60, derandomize=True)
    case().runTest()
    assert machine.events > 1000
    assert not machine.rescues or family
    assert machine.rescues or not (family and plain)
    rare = {Leaving.SHRINK} if unmeasured and exits else set()  # nearly all run to learn their time
    assert machine.left | rare == (set(Leaving) if exits else {Leaving.NONE})
