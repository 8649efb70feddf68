"""The offered share: rows of clients in the last seconds over what the lanes can do in time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.domain import Outcome, PoolId, Reason
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.profiles import ClassedTimes, LatencyTable
from slacktide.server.offered import TICK_S, WINDOW_TICKS, OfferedShare, lane_groups

TIMES = ClassedTimes(LatencyTable.flat(0.010, max_batch=4))  # 2.5 ms a row at best


class Scene:
    """Models `a`, `b`, … on the lanes given by name."""

    def __init__(self, slo: float | None = None, **lanes: str) -> None:
        self.now = 100.0
        self.later: list[Callable[[], None]] = []
        self.versions: dict[str, Any] = {}
        pools: dict[PoolId, Any] = {}
        for name, names in lanes.items():
            id = PoolId(name, "1", "", 0)
            settings = SimpleNamespace(slo=slo)
            self.versions[name] = SimpleNamespace(
                name=name, pin="1.0", stages={}, counters=ModelCounters(),
                pool=SimpleNamespace(id=id), definition=SimpleNamespace(settings=settings),
            )  # fmt: skip
            replicas = [SimpleNamespace(replica=SimpleNamespace(lane=lane)) for lane in names]
            pools[id] = SimpleNamespace(
                id=id, in_service=True, replicas=replicas, times=TIMES, cores=1, max_batch=4
            )
        engine = SimpleNamespace(now=0.0, snapshot=lambda now: SimpleNamespace(pools=pools))
        catalog: Any = SimpleNamespace(all=lambda: tuple(self.versions.values()))
        self.offered = OfferedShare(
            catalog, engine, lambda: self.now, lambda _, tick: self.later.append(tick)
        )
        self.offered.start()

    def answer(self, name: str, rows: int, reason: Reason = Reason.ON_TIME) -> None:
        self.versions[name].counters.answered(Outcome(reason, self.now), rows, None)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.later.pop()()


def test_answered_and_refused_rows_count_and_invalid_ones_do_not():
    scene = Scene(a="x")
    scene.answer("a", 100)
    scene.answer("a", 90, Reason.BEHIND_WORK)
    scene.answer("a", 10, Reason.EXPIRED)
    for _ in range(50):
        scene.answer("a", 1, Reason.BAD_INPUT)
    scene.pass_time(1.0)
    assert scene.offered.share() == pytest.approx(200 * 0.0025)


def test_only_the_last_seconds_count():
    scene = Scene(a="xy")
    scene.answer("a", 800)
    scene.pass_time(1.0)
    assert scene.offered.share() == pytest.approx(1.0)
    scene.pass_time((WINDOW_TICKS + 1) * TICK_S)
    assert scene.offered.share() == 0.0


def test_a_row_alone_counts_if_no_batch_is_in_time():
    scene = Scene(slo=0.001, a="x")
    scene.answer("a", 50)
    scene.pass_time(1.0)
    assert scene.offered.share() == pytest.approx(0.5)


def test_the_busiest_group_of_lanes_counts():
    scene = Scene(a="xy", b="y", c="z")
    scene.answer("a", 400)
    scene.answer("b", 400)
    scene.answer("c", 300)
    scene.pass_time(1.0)
    assert scene.offered.share() == pytest.approx(1.0)  # a and b share two lanes; c needs .75
    assert lane_groups(["xy", "y", "z", "zw"]) == [{"x", "y"}, {"z", "w"}]


def scene_of_a_pipeline() -> tuple[Scene, Any, Any]:
    """A scene, its only model, and a pipeline whose stage that is."""
    scene = Scene(a="x")
    stage = scene.versions["a"]
    pipeline = SimpleNamespace(
        name="p", pin="1.1", stages={"s": stage}, counters=ModelCounters(), pool=None,
        definition=stage.definition,
    )  # fmt: skip
    scene.versions["p"] = pipeline
    scene.pass_time(TICK_S * WINDOW_TICKS)
    return scene, stage, pipeline


def test_the_rows_of_refused_frames_count_for_the_stages():
    scene, stage, pipeline = scene_of_a_pipeline()
    for _ in range(10):
        pipeline.counters.answered(Outcome(Reason.ON_TIME, 0.0), 1, None)
        pipeline.counters.answered(Outcome(Reason.BEHIND_WORK, 0.0), 1, None)
    stage.counters.batch_rows.add(30.0)  # three for each frame that was answered
    scene.now += TICK_S
    scene.later.pop()()
    assert scene.offered.share() > 0.0
    seconds = scene.now - scene.offered._samples[0][0]
    assert scene.offered.share() * seconds == pytest.approx(60 * 0.0025)


def test_frames_that_are_dropped_after_a_stage_count_once():
    scene, stage, pipeline = scene_of_a_pipeline()
    pipeline.counters.answered(Outcome(Reason.ON_TIME, 0.0), 1, None)
    for _ in range(99):
        pipeline.counters.answered(Outcome(Reason.EXPIRED, 0.0), 1, None)
    stage.counters.batch_rows.add(100.0)
    scene.now += TICK_S
    scene.later.pop()()
    seconds = scene.now - scene.offered._samples[0][0]
    assert scene.offered.share() * seconds == pytest.approx(100 * 0.0025)
