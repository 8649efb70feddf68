"""When a worker times its stages: between batches, and never so that they wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors import stage_timing
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.ports import NO_FAULTS
from slacktide.executors.stage_timing import GAPS, ChainTimes, LaneTurn, StageTimer
from slacktide.executors.staged import Stage, StageChain
from slacktide.testing import FakeClock

SPEC = TensorSpec("y", Datatype.FP64, (-1,))
INTERFACE = ModelInterface((SPEC,), (SPEC,), 8)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def turn(clock: FakeClock) -> LaneTurn:
    return LaneTurn(lambda: SimpleNamespace(terminate=False), clock)


def batches(
    turn: LaneTurn, clock: FakeClock, *, every: float, take: float, count: int = GAPS
) -> None:
    """Begin as long after the batch before as there is between them."""
    for _ in range(count):
        clock.now += every - take
        with turn:
            clock.now += take


def test_a_lane_has_room_for_as_long_as_its_gaps_last(turn: LaneTurn, clock: FakeClock) -> None:
    batches(turn, clock, every=0.030, take=0.010)
    assert turn.room() == pytest.approx(0.020)
    clock.now += 0.015
    assert turn.room() == pytest.approx(0.015)
    clock.now += 0.004
    assert turn.room() == pytest.approx(0.019), "a pause may last as long as it has lasted"
    clock.now += 5.0
    assert turn.room() == pytest.approx(5.019)
    with turn:
        clock.now += 1.0
        assert turn.room() == pytest.approx(0.020), "what follows this batch"


def test_one_long_gap_in_four_does_not_count(turn: LaneTurn, clock: FakeClock) -> None:
    for _ in range(GAPS // 4):
        batches(turn, clock, every=9.0, take=1.0, count=1)
        batches(turn, clock, every=1.1, take=1.0, count=3)
    assert turn.room() == pytest.approx(0.1)


def test_whoever_waits_for_room_begins_in_a_gap_or_when_its_time_is_up(
    turn: LaneTurn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches(turn, clock, every=0.03, take=0.01)
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        clock.now += 0.5

    monkeypatch.setattr("time.sleep", look)
    turn.wait_for_room(0.015, until=clock.now + 10.0)
    assert looks == []
    turn.wait_for_room(0.1, until=clock.now + 10.0)
    assert len(looks) == 1, "after half a second without a batch there is room for as long again"
    with turn:
        turn.wait_for_room(0.0, until=clock.now + 0.9)
    assert len(looks) == 3


def test_a_run_begins_only_where_there_is_room_for_it(turn: LaneTurn, clock: FakeClock) -> None:
    batches(turn, clock, every=0.030, take=0.010)
    done: list[bool] = []

    def run(options: Any) -> tuple[float, ...]:
        done.append(options.terminate)
        return (1.0, 2.0)

    assert turn.run_timed(run, 0.025, beside=False) is None
    assert done == []
    assert turn.run_timed(run, 0.015, beside=False) == (1.0, 2.0)
    assert turn.run_timed(run, 0.025, beside=True) == (1.0, 2.0)
    assert done == [False, False]


@pytest.mark.parametrize("beside", [False, True])
def test_a_batch_stops_the_run_that_is_timed(
    turn: LaneTurn, clock: FakeClock, beside: bool
) -> None:
    clock.now += 1.0
    ran = threading.Event()

    def run(options: Any) -> tuple[float, ...]:
        with turn:
            ran.set()
        if options.terminate:
            raise RuntimeError("stopped")
        return (1.0,)

    assert turn.run_timed(run, 0.5, beside=beside) == ((1.0,) if beside else None)
    assert ran.is_set()


def test_an_error_of_a_run_is_raised(turn: LaneTurn, clock: FakeClock) -> None:
    clock.now += 1.0

    def run(options: Any) -> tuple[float, ...]:
        raise ValueError("no such input")

    with pytest.raises(ValueError, match="no such input"):
        turn.run_timed(run, 0.5, beside=False)


class Halves:
    """A stage that does nothing, and says when it has run."""

    def __init__(self, ramp: int, ran: Callable[[int], object]) -> None:
        self.ramp, self.ran = ramp, ran

    def run(self, names: list[str], feeds: Any, options: Any) -> list[Any]:
        self.ran(len(feeds["x"]))
        return [np.zeros(len(feeds["x"])) for _ in names]


class Timed:
    """A chain of two stages on a lane, and what is told of its times."""

    def __init__(self, turn: LaneTurn, on_run: Callable[[int], object]) -> None:
        names = [["exits/0/uncertainty", "exits/0/answer"], ["y", "exits/answer"]]
        stages = [
            Stage(Halves(ramp, on_run), ramp, ("x",), gives, ("x",))
            for ramp, gives in zip((0, -1), names, strict=True)
        ]
        self.chain = StageChain({1: stages}, INTERFACE, set())
        self.stop = threading.Event()
        self.opened = 0
        self.told: list[ChainTimes] = []
        self.timer = StageTimer(turn, self.stop, rows_of, lambda *_: None, self.open)

    def open(self) -> object:
        self.opened += 1
        return object()

    def tell(self, times: ChainTimes) -> None:
        self.told.append(times)

    def measure(self, most: int) -> None:
        self.timer.measure(self.chain, 1, most, self.tell)


def rows_of(rows: int) -> GatheredBatch:
    return GatheredBatch({"x": np.zeros(rows)}, [1] * rows, None, NO_FAULTS, 0.0, 0.0)


def test_an_idle_lane_has_every_size_timed_at_once(turn: LaneTurn, clock: FakeClock) -> None:
    clock.now += 9.0
    sizes: set[int] = set()
    timed = Timed(turn, sizes.add)
    timed.measure(4)
    assert sizes == {1, 4}
    assert timed.told[-1].rows == (1, 4)
    assert [len(ends) for ends in timed.told[-1].stage_s] == [2, 2]


def test_a_lane_without_gaps_has_single_rows_timed_beside_its_batches(
    turn: LaneTurn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_timing, "BESIDE_S", -1.0)
    monkeypatch.setattr(stage_timing, "GIVE_UP_S", -1.0)
    batches(turn, clock, every=0.01, take=0.01)
    sizes: set[int] = set()
    timed = Timed(turn, sizes.add)
    timed.measure(8)
    assert sizes == {1}
    assert [times.rows for times in timed.told] == [(1,)]


@pytest.mark.parametrize("gaps", [True, False])
def test_dear_stages_are_timed_again_where_that_is_soon_done(
    turn: LaneTurn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, gaps: bool
) -> None:
    for name, value in {
        "BESIDE_S": -1.0,
        "RETIME_AFTER_S": 0.0,
        "RETIME_ABOVE": -9.0,
        "RETIME_BELOW": 1e9,
    }.items():
        monkeypatch.setattr(stage_timing, name, value if name != "BESIDE_S" or not gaps else 9.0)
    monkeypatch.setattr(stage_timing, "PATIENCE_S", 60.0)
    monkeypatch.setattr(stage_timing, "GIVE_UP_S", -1.0)
    if gaps:
        clock.now += 9.0
    else:
        batches(turn, clock, every=0.01, take=0.01)
    rows: list[int] = []
    Timed(turn, rows.append).measure(1)
    stages = 2
    assert len(rows) == stages * stage_timing.MOST_RUNS * (2 if gaps else 1)


def test_larger_batches_are_timed_once_the_lane_is_idle(
    turn: LaneTurn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_timing, "BESIDE_S", -1.0)
    batches(turn, clock, every=0.01, take=0.01)
    timed = Timed(turn, lambda rows: None)
    tell_before = timed.tell

    def tell(times: ChainTimes) -> None:
        tell_before(times)
        clock.now += 9.0

    monkeypatch.setattr(timed, "tell", tell)
    timed.measure(8)
    assert [times.rows for times in timed.told] == [(1,), (1, 4, 8)]
    assert timed.opened == 2  # the model whole is closed meanwhile


def test_whoever_wants_other_ramps_ends_it(turn: LaneTurn, clock: FakeClock) -> None:
    clock.now += 9.0
    timed = Timed(turn, lambda rows: timed.stop.set())
    timed.measure(8)
    assert timed.told == []
    assert timed.opened == 1
