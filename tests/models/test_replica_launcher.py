"""What is logged and planned of what replicas report."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.domain import (
    Batch,
    BatchTiming,
    Circuit,
    ExitReport,
    PoolId,
    Replica,
    ReplicaLost,
    TellCircuit,
)
from slacktide.domain.crops import Glue
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import Arranged, FeaturesSeen, OpenedModel, RowsMismatch
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.replica_launcher import ReplicaLauncher
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import Catalog, LoadedExits, LoadedVersion, VersionState
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import ClassedTimes, LatencyTable

POOL = PoolId("m", "1")
REPLICA = Replica(0, POOL, "cuda:0", (), 32, "cuda:0")
INTERFACE = ModelInterface(
    (TensorSpec("x", Datatype.FP32, (-1, 4)),), (TensorSpec("y", Datatype.FP32, (-1, 3)),), 32
)
NOTHING: Any = None


class House:
    """A launcher, and the one version it knows."""

    def __init__(self) -> None:
        definition: Any = SimpleNamespace(
            settings=ModelSettings(), client_shapes={}, any_image=False, labels=()
        )
        self.times = ClassedTimes(LatencyTable.flat(0.010, max_batch=32))
        self.version = LoadedVersion(
            "m",
            "1",
            0,
            definition,
            INTERFACE,
            Arena(1 << 16),
            InputCheck(INTERFACE, definition.settings),
            ModelCounters(),
        )
        self.version.add_pool(NOTHING, self.times)
        catalog = self.catalog = Catalog()
        catalog.add(self.version)
        engine: Any = SimpleNamespace(snapshot=lambda: SimpleNamespace(pools={}))
        self.launcher = ReplicaLauncher(catalog, {}, engine)
        self.plans: list[int] = []
        self.launcher.plan_again = lambda: self.plans.append(self.version.interface.max_batch)

    def finished(self, seconds: float) -> None:
        """A batch of one request, told and learnt in the driver's order."""
        self.launcher.finished(Batch(0, REPLICA, (), 1, 0.0, 1.0), BatchTiming(), seconds)
        self.times.observe(seconds, (), 1, 1)


@pytest.fixture
def house() -> Any:
    house = House()
    yield house
    house.version.arena.close()


def test_drift_is_logged_once_when_it_comes_and_once_when_it_goes(house: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="slacktide.models")
    while not house.times.drifted:
        house.finished(0.020)
    for _ in range(100):
        house.finished(0.020)
    assert [record.getMessage() for record in caplog.records] == [
        "m: batch times differ from the profile"
    ]
    while house.times.drifted:
        house.finished(0.010)
    for _ in range(100):
        house.finished(0.010)
    assert [record.getMessage() for record in caplog.records] == [
        "m: batch times differ from the profile",
        "m: batch times match the profile again",
    ]


async def test_a_replica_that_fits_fewer_rows_makes_every_batch_smaller(
    house: Any, caplog: Any
) -> None:
    def ready(rows: int) -> str | None:
        return house.launcher.ready(REPLICA, OpenedModel(replace(INTERFACE, max_batch=rows)))

    assert ready(32) is None
    assert house.plans == []
    assert ready(8) is None
    assert house.plans == [8]
    assert ready(16) is None  # another has room for more; one for all holds
    assert house.plans == [8]
    assert ready(0) is not None  # no batch axis: another model
    assert caplog.messages == ["m: memory suffices for batches of 8 rows, not 32"]


def test_batching_stops_where_rows_of_an_output_are_not_those_of_the_inputs(
    house: Any, caplog: Any
) -> None:
    house.version.ready()
    plans: list[int] = []
    house.launcher.plan_again = lambda: plans.append(house.version.batch_cap)
    stored: list[str] = []
    house.launcher.keep_dependence = lambda pool, reason: stored.append(reason)
    assert house.version.batch_cap == 32
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            house.launcher.rows_mismatch(REPLICA, RowsMismatch(0, "output 'y' has 2 rows for 1"))
    (warning,) = caplog.messages
    assert warning.startswith("m: requests run one at a time")
    assert "max_batch: 0" in warning
    assert plans == [1]
    assert stored == ["output 'y' has 2 rows for 1"]
    assert house.version.interface.max_batch == 32, "requests may have as many rows as before"


def test_a_family_is_available_while_one_of_its_variants_is(house: Any, caplog: Any) -> None:
    version = house.version
    version.state = VersionState.READY
    definition = ModelDefinition("m", "1", Path(), Path(), ModelSettings(), {})
    larger = version.add_pool(NOTHING, house.times, definition=definition.of_variant("64"))
    house.catalog.add(version)
    version.pool.replicas_up.add(0)
    house.launcher.circuit(TellCircuit(larger.id, Circuit.OPEN, "it crashed", 1.0, 0))
    assert version.state is VersionState.READY
    assert caplog.messages == ["m:1: variant 64 is unavailable: it crashed"]
    version.pool.replicas_up.clear()
    house.launcher.circuit(TellCircuit(larger.id, Circuit.OPEN, "it crashed", 1.0, 0))
    assert version.state is VersionState.UNAVAILABLE


def test_a_family_is_available_while_another_variant_comes_back(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a process: as one is made unavailable, no replica of any is up."""
    version = house.version
    version.state = VersionState.READY
    definition = ModelDefinition("m", "1", Path(), Path(), ModelSettings(), {})
    larger = version.add_pool(NOTHING, house.times, definition=definition.of_variant("64"))
    house.catalog.add(version)
    in_service = SimpleNamespace(in_service=True)
    snapshot = SimpleNamespace(pools={version.pool.id: in_service})
    monkeypatch.setattr(house.launcher, "_engine", SimpleNamespace(snapshot=lambda: snapshot))
    house.launcher.circuit(TellCircuit(larger.id, Circuit.OPEN, "it crashed", 1.0, 0))
    assert version.state is VersionState.READY
    in_service.in_service = False
    house.launcher.circuit(TellCircuit(larger.id, Circuit.OPEN, "it crashed", 1.0, 0))
    assert version.state is VersionState.UNAVAILABLE


def test_a_loss_that_counts_against_another_variant_is_not_counted_twice(house: Any) -> None:
    house.catalog.add(house.version)
    house.launcher.lost(REPLICA, ReplicaLost(0, "killed", shared=True), out_of_memory=True)
    assert house.version.counters.crashes == house.version.counters.out_of_memory == 0
    house.launcher.lost(REPLICA, ReplicaLost(0, "killed"), out_of_memory=True)
    assert house.version.counters.crashes == house.version.counters.out_of_memory == 1


async def test_a_replica_that_a_planner_has_taken_back_is_not_waited_for(house: Any) -> None:
    waiting = house.launcher.await_up(POOL)
    house.launcher.stopped(REPLICA)
    assert not waiting.done(), "the only pool of a model is"
    house.version.family = Family((FamilyVariant("64", 0.5),))
    house.launcher.stopped(REPLICA)
    assert waiting.result() is None


def test_verdicts_of_ramps_are_counted_with_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    counters = house.version.counters
    # Four rows: two leave at the first ramp, and the second of these runs on.
    report = ExitReport(
        (1, 4),
        ((0.1,), (0.1, 0.1), (0.6, 0.2), (0.6, 0.7)),
        ((), (True, True), (False, True), (False, False)),
        (0, 0, 1, -1),
        (0.002, 0.006),
    )
    batch = Batch(0, REPLICA, (), 4, 0.0, 1.0)
    house.launcher.finished(batch, BatchTiming(infer_s=0.010), 0.010, report)
    house.launcher.finished(batch, BatchTiming(infer_s=0.010), 0.010)
    assert counters.judged == {1: (3, 1), 4: (3, 2)}
    assert counters.exits_saved_s == pytest.approx(0.008 + 0.008 + 0.004)
    assert counters.executions == 2


def test_new_stages_are_logged_and_features_go_to_what_learns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="slacktide.models")
    house = House()
    learnt: list[Any] = []
    house.launcher.learn = lambda pool, features: learnt.append((pool, features))
    features = FeaturesSeen(1, ("early", "late"), (0.2, 0.8), (b"", b""), b"")
    house.launcher.early_exits(REPLICA, features)
    assert learnt == [], "its settings state none"
    house.version.pool.exits = LoadedExits(("y",), revision=1, names=("early", "late"))
    house.launcher.early_exits(REPLICA, features)
    assert learnt == [(POOL, features)]
    house.launcher.early_exits(REPLICA, Arranged(1, (0, 1)))
    house.launcher.early_exits(REPLICA, Arranged(1, ()))
    house.launcher.early_exits(REPLICA, Arranged(1, (0,), "early is no tensor of the model"))
    house.launcher.early_exits(REPLICA, Arranged(1, (0,), untimed="out of memory"))
    assert [record.getMessage() for record in caplog.records] == [
        "m: early exits: early, late",
        "m: early exits: none",
        "m: early exits are unchanged: early is no tensor of the model",
        "m: early exits work, but could not be timed: out of memory",
    ]


class Attaching:
    """An executor whose replicas note the frame arenas that they are told of."""

    def __init__(self) -> None:
        self.arenas: list[list[int]] = []

    def start(self, *_: Any) -> Any:
        numbers: list[int] = []
        self.arenas.append(numbers)
        return SimpleNamespace(
            attach=lambda n, arena, glue: numbers.append(n), detach=numbers.remove
        )


def test_replicas_are_told_of_frame_arenas_also_those_that_start_later(house: Any) -> None:
    executor = Attaching()
    launcher = ReplicaLauncher(house.catalog, {"worker": executor}, house.launcher._engine)
    arena, second, third = house.version.arena, replace(REPLICA, id=1), replace(REPLICA, id=2)
    for replica in (REPLICA, second):
        launcher.start(replica, NOTHING)
    house.version.attach(4, arena, Glue())
    house.version.attach(5, arena, Glue(0.5))
    launcher.start(third, NOTHING)
    assert executor.arenas == [[4, 5]] * 3
    launcher.stopped(REPLICA)
    launcher.lost(second, ReplicaLost(1, "gone"), out_of_memory=False)
    house.version.detach(4)
    assert executor.arenas == [[4, 5], [4, 5], [5]]
