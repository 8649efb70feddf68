"""A worker's stages of a model with exits of its own: rows leave on the word of its judge."""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.domain import NEVER, Batch, ExitMode, ExitPolicy, Leaving, PoolId, Replica, Request
from slacktide.domain.preprocessing import PicturePlacement, StatedPreprocessing
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.arranging import Arranger
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import NO_FAULTS, Arranged, ExitSource
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import SessionPool
from slacktide.executors.staged import Stage, StageChain, StagedBatch
from slacktide.exits.own_exits import OwnExit
from slacktide.lab.examples import example
from slacktide.lab.examples.street import Street
from slacktide.lab.simulation.exit_tables import ExitTable, TableExits

WHOLE = ("boxes", "scores", "classes")
EXITS = tuple(
    OwnExit({name: f"depth{depth}/{name}" for name in WHOLE}, f"depth{depth}/quality")
    for depth in (1, 2)
)
SIDE = 96
POOL = PoolId("m", "1")
UNSURE = st.floats(0, 1, width=32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(example("street_depth").onnx())
    return path


def opened(kit: Any, path: Path, *exits: OwnExit, **more: Any) -> ModelSession:
    source = kit.source(
        path,
        max_batch=8,
        **(more or {"warmup_shapes": {"image": (SIDE, SIDE, 3)}}),
        outputs={name: name for name in WHOLE},
        exits=ExitSource(path.parent / "exits"),
        own_exits=exits,
    )
    return SessionPool.open(source, cores=1, device="cpu").session


def arrange(kit: Any, session: ModelSession, *, enlarge: bool = False) -> Arranged:
    arrangements: queue.SimpleQueue[Arranged] = queue.SimpleQueue()
    Arranger(session, [1], arrangements.put).publish(
        ExitPolicy(POOL, (0, 1), (0.5, 0.5), revision=1, enlarge=enlarge)
    )
    while not ((arranged := arrangements.get(timeout=kit.PATIENCE)).rows or arranged.detail):
        pass  # open, but not yet timed
    return arranged


def pictures(count: int) -> NDArray[np.uint8]:
    """Streets: of noise, some processors compute a quality of 0 for every picture."""
    return np.stack([Street(seed).scene(size=SIDE).picture for seed in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_rows_leave_with_what_the_early_head_found(kit: Any, path: Path, leaving: Leaving) -> None:
    images = pictures(6)
    session = opened(kit, path, *EXITS)
    assert [spec.name for spec in session.interface.outputs] == list(WHOLE)
    names = [*WHOLE, *EXITS[0].outputs.values(), EXITS[0].quality, EXITS[1].quality]
    source = kit.source(path, max_batch=8, warmup_shapes={"image": (SIDE, SIDE, 3)})
    full = ModelSession.open(source, threads=1).whole.run(names, {"image": images})
    expected = dict(zip(names, full, strict=True))
    arranged = arrange(kit, session)
    assert arranged.detail == ""
    assert [len(times) for times in arranged.stage_s] == [3] * len(arranged.rows)
    quality = expected["depth1/quality"].reshape(-1)
    threshold = float(1.0 - np.median(quality))
    leaves = np.flatnonzero(1.0 - quality < threshold).tolist()
    assert 0 < len(leaves) < len(images)
    chain = session.stages
    assert chain is not None
    batch = GatheredBatch(
        {"image": images}, [1] * len(images), None, NO_FAULTS, time.perf_counter(), 0.0
    )
    run = StagedBatch(chain, batch, {0: threshold, 1: 0.0}, leaving, ())
    (released,) = run.run(chain.stages(1))
    assert (released.ramp, released.places) == (0, leaves)
    for name, array in zip(WHOLE, released.arrays, strict=True):
        np.testing.assert_allclose(array, expected[f"depth1/{name}"][leaves], atol=1e-5)
    stay = [place for place in range(len(images)) if place not in leaves]
    arrays, rows = run.end_outputs()
    assert len(rows) == (len(stay) if leaving is Leaving.SHRINK else len(images))
    for name, array in zip(WHOLE, run.unanswered(arrays), strict=True):
        np.testing.assert_allclose(array, expected[name][stay], atol=1e-5)
    report = run.report()
    assert report is not None
    assert [left == 0 for left in report.left] == [place in leaves for place in range(len(images))]
    assert set(report.agrees) == {()}, "there is no class that could be the same"


@pytest.mark.slow
def test_boxes_of_exits_are_mapped_back_as_those_of_the_end(kit: Any, path: Path) -> None:
    image = StatedPreprocessing("image", size=(SIDE, SIDE), scale=1.0, resize="letterbox")
    session = opened(kit, path, *EXITS, image=image, images=True)
    feeds = {"image": pictures(3)}
    places = [PicturePlacement(0, 24, SIDE, 48)] * 3
    batch = GatheredBatch(feeds, [1] * 3, None, NO_FAULTS, 0.0, 0.0, 0, places)
    boxes = np.float32([[[0.25, 0.5, 0.5, 0.75], [0, 0, 1, 1]]] * 2)
    mapped, *others = session.decode([boxes, None, None], batch, [0, 2])
    np.testing.assert_allclose(mapped[1], [[0.25, 0.5, 0.5, 1.0], [0, 0, 1, 1]])
    assert others == [None, None]


def test_an_exit_that_is_not_there_is_told_when_the_model_is_opened(kit: Any, path: Path) -> None:
    wrong = OwnExit({"boxes": "depth1/bxes"}, "depth1/quality")
    message = r"early_exit.judged\[0\].outputs.boxes: the model has no output 'depth1/bxes'"
    with pytest.raises(ModelError, match=message):
        opened(kit, path, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("enlarge", [True, False])
def test_batches_are_planned_to_end_early_only_where_that_is_stated(
    kit: Any, path: Path, enlarge: bool
) -> None:
    session = opened(kit, path, *EXITS)
    assert arrange(kit, session, enlarge=enlarge).detail == ""
    assert session.stages is not None
    assert session.stages.planned_end == (1 if enlarge else -1)


class Judge:
    """A stage that says this of its rows, whose inputs are what it is to say."""

    def __init__(self, stage: int) -> None:
        self.stage = stage

    def run(self, gives: list[str], feeds: dict[str, NDArray[Any]], options: Any) -> list[Any]:
        outputs = feeds["x"][:, min(self.stage, 1)]
        return [outputs if name.endswith("uncertainty") else feeds["x"] for name in gives]


def planned(sizes: list[int], ends: list[list[float]]) -> StageChain:
    """A chain of three stages that is planned to end at the second of its exits."""
    spec = TensorSpec("x", Datatype.FP32, (-1, 2))
    stages = [
        Stage(Judge(at), at, ("x",), [f"exits/{at}/uncertainty", f"exits/{at}/y"], ("x",))
        for at in (0, 1)
    ]
    stages.append(Stage(Judge(2), -1, ("x",), ["y"], ("x",)))
    interface = ModelInterface((spec,), (replace(spec, name="y"),), 64)
    chain = StageChain({1: stages}, interface, {"y"})
    chain.enlarge(sizes, ends)
    return chain


@given(
    st.lists(st.tuples(UNSURE, UNSURE), min_size=1, max_size=12),
    UNSURE,
    st.tuples(*[st.floats(0.1, 9.0)] * 3),
    st.sets(st.integers(0, 11)),
)
def test_rows_go_on_only_in_the_time_that_others_have_left(
    judged_rows: list[tuple[float, float]], threshold: float, cost: Any, final: set[int]
) -> None:
    first, second, third = cost
    chain = planned([1, 4], [[n * first, n * (first + second), n * sum(cost)] for n in (1, 4)])
    rows, final = (
        np.array(judged_rows, np.float32),
        {place for place in final if place < len(judged_rows)},
    )
    batch = GatheredBatch({"x": rows}, [1] * len(judged_rows), None, NO_FAULTS, 0.0, 0.0)
    run = StagedBatch(chain, batch, {0: threshold, 1: 0.0}, Leaving.SHRINK, sorted(final))
    left = {released.ramp: released.places for released in run.run(chain.stages(1))}
    gone = left.get(0, [])
    assert gone == [
        p for p in range(len(judged_rows)) if float(rows[p, 0]) < threshold and p not in final
    ]
    stay = [p for p in range(len(judged_rows)) if p not in gone and p not in left.get(1, [])]
    took = (len(judged_rows) - len(gone)) * second + len(stay) * third
    if not final:
        assert took <= len(judged_rows) * second + 1e-6
        if len(stay) + len(gone) < len(judged_rows):
            assert took + third > len(judged_rows) * second - 1e-6, "one more would have had time"
    assert final <= set(stay)
    least = min((rows[p, 1] for p in stay if p not in final), default=1.0)
    assert all(rows[p, 1] <= least for p in left.get(1, []))


@given(
    st.lists(st.tuples(UNSURE, UNSURE, st.integers(1, 3), st.booleans()), min_size=1, max_size=9),
    st.tuples(UNSURE, UNSURE),
    st.lists(st.floats(0.1, 9.0), min_size=6, max_size=6),
    st.booleans(),
    st.floats(0.5, 2.0),
)
def test_virtual_time_has_the_same_rows_leave_as_the_worker(
    members: list[tuple[float, float, int, bool]],
    limits: tuple[float, float],
    costs: list[float],
    enlarge: bool,
    slower: float,
) -> None:
    """Also where batches take longer than what was measured says, all of it alike."""
    ends = np.cumsum(np.array(costs).reshape(2, 3) * [[1.0], [4.0]], axis=1)
    ends[1] = np.maximum(*ends)
    chain = planned([1, 4], ends.tolist())
    chain.planned_end = 1 if enlarge else -1
    judged_rows = np.array([[a, b] for a, b, rows, _ in members for _ in range(rows)], np.float32)
    final = [place for place, (*_, final) in enumerate(members) if final]
    rows = [rows for _, _, rows, _ in members]
    gathered = GatheredBatch({"x": judged_rows}, rows, None, NO_FAULTS, 0.0, 0.0)
    run = StagedBatch(chain, gathered, dict(enumerate(limits)), Leaving.SHRINK, final)
    served = [(answer.ramp, tuple(answer.places)) for answer in run.run(chain.stages(1))]
    report = run.report()
    assert report is not None

    agrees, sizes = np.ones(judged_rows.shape, np.bool_), np.array([1, 4])
    numbers = (judged_rows.astype(float), agrees, np.ones(2), sizes, ends[:, 2], ends[:, :2])
    table = ExitTable("judged", 0.0, ("a", "b"), *numbers, np.zeros((2, 2)))
    starts = np.cumsum([0, *rows]).tolist()  # rows of a request are consecutive inputs
    requests = [
        Request(at, "m", 0.0, 9.0, rows=count, final=place in final)
        for place, (at, count) in enumerate(zip(starts, rows, strict=False))
    ]
    lane = Replica(1, POOL, "l", (0,), 64)
    batch = Batch(1, lane, tuple(requests), len(judged_rows), 0.0, 9.0, leaving=Leaving.SHRINK)
    batch = replace(batch, held=tuple(final))
    policy = ExitPolicy(POOL, (0, 1), limits, ExitMode.SHRINK, feedback=0.0, enlarge=enlarge)
    took = slower * float(table.seconds(table.whole, len(judged_rows)))
    course = TableExits(table).course(batch, policy, took)
    assert course.report.left == report.left
    assert course.report.uncertainty == report.uncertainty
    assert [
        (event.ramp, tuple(starts.index(id) for id in event.ids)) for _, event in course.released
    ] == served


class Classifier:
    """A session whose rows state the class and the uncertainty."""

    def run(self, names: list[str], feeds: dict[str, Any], options: Any) -> list[Any]:
        rows = feeds["x"]
        return [rows[:, 0].astype(int) if "answer" in name else rows[:, 1] for name in names]


@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_a_ramp_never_gives_a_class_of_the_whole_model(leaving: Leaving) -> None:
    spec = TensorSpec("x", Datatype.FP32, (-1, 2))
    names = ["exits/0/uncertainty", "exits/0/answer", "exits/0/y"]
    stages = [
        Stage(Classifier(), 0, ("x",), names, ("x",)),
        Stage(Classifier(), -1, ("x",), ["y", "exits/answer"], ("x",)),
    ]
    interface = ModelInterface((spec,), (replace(spec, name="y"),), 64)
    chain = StageChain({1: stages}, interface, {"y"}, None, (2,))
    rows = np.array([[0, 0.1], [2, 0.1], [1, 0.9]], np.float32)
    batch = GatheredBatch({"x": rows}, [1, 1, 1], None, NO_FAULTS, 0.0, 0.0)
    run = StagedBatch(chain, batch, {0: 0.5}, leaving, ())
    assert [released.places for released in run.run(chain.stages(1))] == [[0]]
    report = run.report()
    assert report is not None
    assert report.left == (0, -1, -1)
    assert report.uncertainty[1] == (NEVER,)
    assert report.answers == ((0, 2, 1) if leaving is Leaving.RUN_ON else (-1, 2, 1))
