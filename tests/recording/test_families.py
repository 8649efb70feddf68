"""A family in virtual time: what is rescued is answered once, and replayed to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.domain import (
    Command,
    Deployment,
    Event,
    InputSize,
    LaneSpec,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Route,
    RunBatch,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView, check_invariants
from slacktide.lab.replay import replay
from slacktide.lab.simulation import ByProfile, Item, SimulatedUpload, Simulation
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import PoolOpened, Recorder, Recording
from slacktide.recording.records import Call
from slacktide.recording.times import export_times
from slacktide.scheduling import POLICIES, PoolRecipe

FACTOR = {"100": 1.0, "200": 4.0, "300": 9.0}
"""How long each variant takes, smallest first."""
POOLS = [PoolId("a", "1", name) for name in FACTOR]


def latency(pool: PoolId, slower: float = 1.0) -> LatencyTable:
    factor = FACTOR[pool.variant] * slower
    return LatencyTable.linear(0.002 * factor, 0.001 * factor, 8, spread=1.2)


def plan(route: str, **clients: str) -> Plan:
    """All variants on two lanes; `clients` by their variants."""
    lanes = (LaneSpec("one", (0,)), LaneSpec("two", (1,)))
    by_name = dict(zip(FACTOR, POOLS, strict=True))
    return Plan(
        lanes,
        tuple(Deployment(pool, lane.name, 8) for pool in POOLS for lane in lanes),
        (
            Route("a", by_name[route]),
            *[Route("a", by_name[variant], client=name) for name, variant in clients.items()],
        ),
        tuple(InputSize("a", name, variant) for name, variant in clients.items()),
    )


class RecordedFamily:
    """One model in three sizes on two lanes, recorded."""

    def __init__(self, path: Path, *, rescue: bool = True, policy: str = "slack") -> None:
        settings = EngineSettings(hang_floor=0.5)
        self.recorder = Recorder(path, settings, limit=64 << 20)
        self.engine = Engine(self._parts, settings)
        self.times: dict[PoolId, CorrectedTimes] = {}
        self.answers: dict[int, OutcomeKind] = {}
        self.ran: dict[int, list[str]] = {}
        self._recipe, self._rescue = PoolRecipe(policy), rescue

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        smaller = [name for name in FACTOR if int(name) < int(pool.variant)]
        rescue = tuple(reversed(smaller)) if self._rescue else ()
        recipe = replace(self._recipe, size=int(pool.variant), rescue=rescue)
        # As in a server: a pool that comes back goes on with what it has learnt.
        times = self.times.setdefault(pool, CorrectedTimes(latency(pool)))
        self.recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(times, max_batch=max_batch, view=view)

    def seconds(self, batch: Any, cores: int) -> float:
        return self._drawn[batch.replica.pool].seconds(batch, cores)

    def run(self, items: Sequence[Item], seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self._drawn = {
            pool: ByProfile(CorrectedTimes(latency(pool, 1.1)), generator) for pool in POOLS
        }
        Simulation(self.engine, plan("300"), self, watch=self._watch, start_s=0.01).run(items)
        self.recorder.close()

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        self.recorder.called(events, now, commands)
        self.recorder.encode()
        check_invariants(self.engine)
        for command in commands:
            if isinstance(command, RunBatch):
                for member in command.batch.members:
                    variant = command.batch.replica.pool.variant
                    self.ran.setdefault(member.id, []).append(variant)
            elif (kind := getattr(command, "kind", None)) is not None:
                assert command.id not in self.answers, "answered twice"
                self.answers[command.id] = kind

    def served(self) -> int:
        return list(self.answers.values()).count(OutcomeKind.SERVED)


def sized(items: Sequence[Item], seed: int) -> list[Item]:
    """`items` of one model, each of a client, some at a size of their own; plans change between."""
    chance = np.random.default_rng(seed)
    items_sized: list[Item] = []
    for item in items:
        client, size = f"c{chance.integers(4)}", int(chance.choice((0, 0, 64, 100, 250, 999)))
        fields: dict[str, Any] = {"model": "a", "client": client, "size": size, "signature": ()}
        fields["names_variant"] = size > 0 and bool(chance.random() < 0.3)
        if isinstance(item, ExternalEvent):
            continue
        if isinstance(item, SimulatedUpload):
            notice = replace(item.notice, model="a", client=client)
            body = None if item.request is None else replace(item.request, **fields)
            items_sized.append(replace(item, notice=notice, request=body))
        elif hasattr(item, "deadline"):
            items_sized.append(replace(item, **fields))
    for at, changed in (
        (0.2, plan("200", c0="100", c1="300")),
        (0.4, plan("300", c0="200")),
        (0.5, plan("100", c0="300", c3="300")),
        (0.8, plan("300")),
    ):
        items_sized.append(ExternalEvent(at, PlanChanged(changed)))
    return sorted(items_sized, key=lambda item: item.arrival)


@pytest.fixture
def families(tmp_path: Path) -> Callable[..., RecordedFamily]:
    return lambda **how: RecordedFamily(tmp_path / "family.rec", **how)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_replay_is_identical_under_every_policy(
    policy: str, families: Any, happenings: Any
) -> None:
    recorded = families(policy=policy)
    recorded.run(sized(happenings(seed=3), 3), 3)
    replayed = replay(Recording(recorded.recorder.path))
    assert replayed.difference is None
    counts = replayed.engine.state.request_table.counts
    assert counts == recorded.engine.state.request_table.counts
    assert counts["a"].requests == len(recorded.answers)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([50.0, 300.0, 1000.0]))
def test_no_request_is_lost_or_answered_twice(
    seed: int, rate: float, families: Any, happenings: Any
) -> None:
    recorded = families()
    items = sized(happenings(seed, 200, rate=rate), seed)
    recorded.run(items, seed)
    counts = recorded.engine.state.request_table.counts["a"]
    assert counts.in_flight == 0
    assert counts.requests == len(recorded.answers)
    assert replay(Recording(recorded.recorder.path)).difference is None


def test_a_variant_that_goes_and_comes_back_is_replayed_to_the_bit(
    families: Any, happenings: Any
) -> None:
    recorded = families()
    items = [
        replace(happening, model="a") for happening in happenings(seed=5, count=800, trouble=False)
    ]
    last = items[-1].arrival
    whole = plan("300")
    less = replace(whole, deployments=tuple(d for d in whole.deployments if d.pool != POOLS[1]))
    turns = enumerate((plan("200"), less, plan("200"), less, plan("200")), 1)
    plans = [ExternalEvent(last * n / 6, PlanChanged(plan)) for n, plan in turns]
    recorded.run(sorted([*items, *plans], key=lambda item: item.arrival))
    opened = [
        record.pool
        for record in (line.record for line in Recording(recorded.recorder.path).lines())
        if isinstance(record, PoolOpened)
    ]
    assert opened.count(POOLS[1]) == 3
    assert recorded.times[POOLS[1]].batches > 50
    assert replay(Recording(recorded.recorder.path)).difference is None


def test_more_are_served_than_without(families: Any, happenings: Any) -> None:
    items = [
        replace(happening, model="a") for happening in happenings(seed=1, count=800, trouble=False)
    ]
    with_rescue = families()
    with_rescue.run(items)
    without = families(rescue=False)
    without.run(items)
    assert with_rescue.engine.snapshot().counts["a"].rescued > 50
    assert with_rescue.served() > 1.2 * without.served()
    assert len(with_rescue.answers) == len(without.answers) == len(items)


def test_input_sizes_stand_in_the_recording(families: Any, happenings: Any) -> None:
    recorded = families()
    recorded.run(sized(happenings(seed=2, count=50), 2))
    calls = [line.record for line in Recording(recorded.recorder.path).lines()]
    plans = [
        event.plan
        for call in calls
        if isinstance(call, Call)
        for event in call.events
        if isinstance(event, PlanChanged)
    ]
    assert [plan.inputs for plan in plans][1] == (
        InputSize("a", "c0", "100"),
        InputSize("a", "c1", "300"),
    )
