"""`measure` against a replica whose times are scripted, under a clock that only it moves."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import (
    BatchFailed,
    BatchFinished,
    BatchTiming,
    ExitPolicy,
    PoolId,
    Replica,
    ReplicaLost,
)
from slacktide.domain.padding import PaddedInput, Padding
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.cores import available_cores, hardware_fingerprint
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.tensor_io import decode_strings
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import FEWEST, Measurement, measure, measure_stages
from slacktide.executors.ports import (
    Arranged,
    BatchOrder,
    Executor,
    FunctionSource,
    ModelSource,
    Payload,
    Report,
    Reporter,
    Resized,
)
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.executors.timed_replica import MeasuringError
from slacktide.profiles import ENOUGH_SAMPLES
from slacktide.testing import FakeExecutor, FakeReplica

IMAGES = ModelInterface(
    (TensorSpec("x", Datatype.FP32, (-1, 3, -1)),), (TensorSpec("y", Datatype.FP32, (-1, 10)),), 8
)
SOURCE = ModelSource("m", "1", Path("m.onnx"), Path())


@dataclass
class ScriptedExecutor(FakeExecutor):
    """Also fails, dies and falls silent as its fields say."""

    seconds: Callable[[int, int], float]
    interface: ModelInterface = IMAGES
    cpu_share: Callable[[int], float] = lambda cores: 0.0
    """CPU time ÷ wall time that batches report, by cores."""
    start_s: float = 0.1
    start_report: ReplicaLost | None = None
    fail_from: int = 1 << 30
    """Rows from which batches fail."""
    fails: Callable[[tuple[int, ...], int], bool] = lambda shape, rows: False
    """By the shape of a row and the number of rows."""
    lose_at: int = 1 << 30
    """Running number of the batch at which the replica dies."""
    mute_at: int = 1 << 30
    """Running number of the batch that is never answered."""
    per_length: bool = False
    """Whether `seconds` are for one position of the last axis."""
    resized: Callable[[tuple[int, ...]], Report] = Resized
    """What is reported of a resize."""
    arranged: Sequence[Arranged] = ()
    """What is reported when a policy of early exits is published."""

    def __post_init__(self) -> None:
        super().__init__(self.interface, self.seconds)

    def make(self, replica: Replica, report: Reporter) -> ScriptedReplica:
        running = [handle for handle in self.replicas if handle.state == "running"]
        assert not running, "two replicas at a time would disturb each other"
        return ScriptedReplica(self, replica, report)

    def up(self, replica: Replica) -> Report:
        return self.start_report or super().up(replica)

    def outcome(self, order: BatchOrder, cores: int) -> tuple[float, Report]:
        members = order.members
        number, rows = len(self.batches) - 1, sum(member.rows for member in members)
        if number == self.lose_at:
            return 0.001, ReplicaLost(0, "killed by signal 9")
        if rows >= self.fail_from or self.fails(members[0].tensors[0].shape[1:], rows):
            return 0.001, BatchFailed(order.batch, "out of memory")
        seconds = self.seconds(rows, cores)
        if self.per_length:
            seconds *= max(member.tensors[0].shape[-1] for member in members)
        timing = BatchTiming(infer_s=seconds, thread_s=self.cpu_share(cores) * seconds)
        return seconds, BatchFinished(order.batch, timing)

    async def close(self) -> None:
        raise AssertionError("the executor is the caller's")

    @property
    def started(self) -> list[Replica]:
        return [handle.replica for handle in self.replicas]

    def count(self, state: str) -> int:
        """Replicas that are `running`, `stopped` or `killed`."""
        return sum(handle.state == state for handle in self.replicas)


class ScriptedReplica(FakeReplica):
    executor: ScriptedExecutor

    def tell(self, after: float, event: Report, *args: Any, **kwargs: Any) -> None:
        executor = self.executor
        if isinstance(event, BatchFinished) and len(executor.batches) - 1 == executor.mute_at:
            return
        if isinstance(event, Resized):
            event = self.executor.resized(event.cores)
        super().tell(after, event, *args, **kwargs)

    def abort(self, batch: int) -> None:
        raise AssertionError("nothing is aborted")

    def publish(self, policy: ExitPolicy) -> None:
        for arranged in self.executor.arranged:
            self.tell(0.0001, arranged)


def run(executor: ScriptedExecutor, source: ModelSource = SOURCE, **options: Any) -> Measurement:
    options.setdefault("cores", [(0,)])
    source = replace(source, max_batch=executor.interface.max_batch)
    return asyncio.run(measure(executor, source, clock=executor.clock, **options))


def test_every_point_is_measured_as_the_driver_sees_it() -> None:
    executor = ScriptedExecutor(lambda rows, cores: (0.010 + 0.002 * rows) / cores)
    profile = run(executor, cores=[(2, 3), (0,)])
    assert profile.record.table.batches == (1, 2, 4, 8)
    assert profile.record.table.cores == (1, 2)
    for batch, row in zip(profile.record.table.batches, profile.record.table.p50_s, strict=True):
        assert row == pytest.approx([0.010 + 0.002 * batch, 0.005 + 0.001 * batch])
    assert [replica.cores for replica in executor.started] == [(2, 3)]
    assert executor.resizes == [(0,), (2, 3)]
    assert executor.count("stopped") == 1
    assert profile.record.skipped == ()
    assert profile.record.shapes == {"x": (3, 1)}


def test_the_lowest_share_of_cpu_is_kept() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01, cpu_share=lambda cores: 0.9 / cores)
    assert run(executor, cores=[(0,), (1, 2)]).record.cpu_share == pytest.approx(0.45)
    assert run(executor).record.cpu_share == pytest.approx(0.9)
    assert run(executor, device="cuda:0").record.cpu_share is None
    function = FunctionSource("module:waits", {})
    waiting = dataclasses.replace(SOURCE, function=function)
    assert run(executor, waiting).record.cpu_share is None
    silent = ScriptedExecutor(lambda rows, cores: 0.01)
    assert run(silent).record.cpu_share is None


def test_the_replica_has_the_sessions_of_one_that_is_resized() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01)
    sets = [(0,), (0, 1), tuple(range(6))]
    profile = run(executor, cores=sets, budget_s=1.0)
    assert executor.sources[0].threads == profile.record.threads == (1, 2, 4, 6)
    assert profile.record.threads == (1, 2, 4, 6)
    run(executor, dataclasses.replace(SOURCE, threads=(6,)), cores=sets, budget_s=1.0)
    run(executor, cores=[(3, 5)], budget_s=1.0)
    assert [source.threads for source in executor.sources[1:]] == [(6,), (2,)]
    assert executor.resizes == sets * 2  # a single set needs none


def test_cores_that_it_does_not_get_are_not_measured() -> None:
    executor = ScriptedExecutor(
        lambda rows, cores: 0.01,
        resized=lambda cores: Resized(cores[:1], "cannot run on cores 0, 9"),
    )
    with pytest.raises(MeasuringError, match="cannot run on cores 0, 9"):
        run(executor, cores=[(0, 9), (0,)])
    assert executor.count("stopped") == 1


PADDED = dataclasses.replace(
    SOURCE, warmup_shapes={"x": (3, 8)}, padding=Padding({"x": PaddedInput(2)}, {}, (4, 8, 32))
)


def test_other_lengths_are_measured_beside_the_table() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.001 * rows / cores, per_length=True)
    profile = run(executor, PADDED, cores=[(0,), (1, 2)])
    assert profile.record.shapes == {"x": (3, 8)}
    assert profile.record.table.p50_s[0] == pytest.approx((0.008, 0.004))
    times = {(size.rows, size.cores, size.size): size.seconds for size in profile.record.sizes}
    assert times == pytest.approx(
        {
            (rows, cores, length): 0.008 * rows * length / cores
            for rows in (1, 8)
            for cores in (1, 2)
            for length in (0.5, 4.0)
        }
    )


def test_lengths_that_would_use_up_the_budget_are_left_out() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.001 * rows, per_length=True)
    profile = run(executor, PADDED, budget_s=1.1)
    # 8 rows of length 32 take 256 ms, four times: more than half the budget.
    assert {(size.rows, size.size) for size in profile.record.sizes} == {
        (1, 0.5),
        (8, 0.5),
        (1, 4.0),
    }
    assert len(run(executor, PADDED, budget_s=1.1, thorough=True).record.sizes) == 4


PICTURES = ModelInterface(
    (TensorSpec("x", Datatype.FP32, (-1, 3, -1, -1)),), (TensorSpec("y", Datatype.FP32, (-1,)),), 4
)
PICTURE = replace(SOURCE, warmup_shapes={"x": (3, 48, 320)})


def sizes_of(executor: ScriptedExecutor, source: ModelSource = PICTURE) -> dict[Any, list[int]]:
    """Rows measured by shape, apart from those of the table."""
    rows_by_signature: dict[Any, list[int]] = {}
    for size in run(executor, source).record.sizes:
        ((channels, height, width),) = size.signature
        assert size.size == pytest.approx(channels * height * width / (3 * 48 * 320))
        assert size.seconds == pytest.approx(1e-5 * size.rows * width)
        rows_by_signature.setdefault(size.signature[0], []).append(size.rows)
    return rows_by_signature


def pictures(fails: Callable[[tuple[int, ...], int], bool]) -> ScriptedExecutor:
    return ScriptedExecutor(lambda rows, cores: 1e-5 * rows, PICTURES, per_length=True, fails=fails)


def test_rows_of_half_and_twice_the_extent_are_measured_where_axes_are_free() -> None:
    sizes = sizes_of(pictures(lambda shape, rows: False))
    assert sizes == {(3, 24, 160): [1, 4], (3, 96, 640): [1, 4]}


def test_where_that_does_not_run_the_longest_axis_alone_is_scaled() -> None:
    sizes = sizes_of(pictures(lambda shape, rows: shape[1] != 48))
    assert sizes == {(3, 48, 160): [1, 4], (3, 48, 640): [1, 4]}
    assert sizes_of(pictures(lambda shape, rows: shape != (3, 48, 320))) == {}


def test_a_batch_that_is_too_large_leaves_what_one_row_takes() -> None:
    sizes = sizes_of(pictures(lambda shape, rows: rows > 1 and shape[2] > 320))
    assert sizes == {(3, 24, 160): [1, 4], (3, 96, 640): [1]}


def test_shapes_that_are_listed_are_measured_instead_and_must_run() -> None:
    listed = replace(PICTURE, more_shapes=({"x": (3, 32, 32)}, {"x": (3, 48, 320)}))
    assert sizes_of(pictures(lambda shape, rows: False), listed) == {(3, 32, 32): [1, 4]}
    with pytest.raises(MeasuringError, match=r"^inputs\.x\.shapes: x \[3, 32, 32\] does not run"):
        run(pictures(lambda shape, rows: shape[1] == 32), listed)


def test_a_listed_shape_that_does_not_run_is_found_whatever_the_budget() -> None:
    listed = replace(PICTURE, more_shapes=({"x": (3, 32, 32)},))
    assert run(pictures(lambda shape, rows: False), listed, budget_s=1e-6).record.sizes == ()
    with pytest.raises(MeasuringError, match=r"x \[3, 32, 32\] does not run: out of memory"):
        run(pictures(lambda shape, rows: shape[1] == 32), listed, budget_s=1e-6)


def test_inputs_are_made_beside_the_loop_and_given_back_after_each_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arenas: list[Arena] = []
    used: list[int] = []
    make = SyntheticRows.payloads

    def payloads(rows: SyntheticRows, shapes: Any, arena: Arena, **options: Any) -> list[Payload]:
        assert threading.current_thread() is not threading.main_thread()
        arenas.append(arena)
        used.append(arena.bytes_in_use)
        return make(rows, shapes, arena, **options)

    monkeypatch.setattr(SyntheticRows, "payloads", payloads)
    shapes = tuple({"x": (3, 32, 32 * n)} for n in range(1, 5))
    profile = run(pictures(lambda shape, rows: False), replace(PICTURE, more_shapes=shapes))
    assert len(profile.record.sizes) == 8
    of_table = used[1]
    assert used == [0, *4 * [of_table]]
    assert arenas[0].bytes_in_use == of_table


def test_a_fast_model_stops_when_every_p99_is_its_own() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 20e-6)
    profile = run(executor)
    assert {count for row in profile.record.table.samples for count in row} == {ENOUGH_SAMPLES}
    assert not any(flag for row in profile.record.table.estimated for flag in row)
    assert profile.seconds < 1.0


def test_the_budget_is_kept_and_small_batches_get_more_of_it() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.050 * rows / cores)
    profile = run(executor, cores=[(0,), (0, 1)], budget_s=20.0)
    assert profile.seconds == pytest.approx(20.0, abs=0.5)
    samples = profile.record.table.samples
    for column in (0, 1):
        counts = [row[column] for row in samples]
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] >= FEWEST
        # Proportional to one over the square root of the time: √8 between batch 1 and batch 8.
        assert counts[0] / counts[-1] == pytest.approx(math.sqrt(8), rel=0.25)
    assert all(flag for row in profile.record.table.estimated for flag in row)


def test_sizes_take_turns_so_that_a_slowdown_hits_all() -> None:
    def throttled(rows: int, cores: int) -> float:
        return 0.02 * (2.0 if executor.clock.now > 1005.0 else 1.0)

    executor = ScriptedExecutor(throttled)
    profile = run(executor, budget_s=10.0)
    medians = [row[0] for row in profile.record.table.p50_s]
    assert max(medians) / min(medians) < 1.05
    turns = Counter(executor.batches[8:][:40])
    assert all(9 <= count <= 11 for count in turns.values())


def test_slow_models_get_three_samples_and_fewer_sizes() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.7 * rows)
    profile = run(executor, budget_s=10.0)
    assert profile.record.table.batches == (1, 2)
    assert profile.record.skipped == (4, 8)
    assert profile.note == "a batch of 4 takes too long for 10 s"
    assert all(count >= FEWEST for row in profile.record.table.samples for count in row)
    assert profile.seconds < 20.0
    assert profile.record.table.expected(4, 1) == pytest.approx(2.8)


def test_one_slow_row_is_measured_whatever_it_takes() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 8.0)
    profile = run(executor, budget_s=10.0)
    assert profile.record.table.batches == (1,)
    assert profile.record.table.samples == ((FEWEST,),)
    assert len(executor.batches) == FEWEST
    assert (profile.record.skipped, profile.note) == (
        (2, 4, 8),
        "a batch of 2 takes too long for 10 s",
    )


def test_the_budget_that_a_slow_model_needs_measures_all_sizes() -> None:
    for most in (2, 8, 20, 32):
        wide = dataclasses.replace(IMAGES, max_batch=most)
        executor = ScriptedExecutor(lambda rows, cores: 0.1 + 0.4 * rows, wide)
        profile = run(executor, budget_s=2.0)
        assert profile.record.skipped
        enough = run(executor, budget_s=profile.needed_s)
        assert enough.record.skipped == ()
        assert enough.seconds < 1.6 * profile.needed_s


def test_sizes_of_a_model_of_medium_speed_are_all_measured() -> None:
    wide = dataclasses.replace(IMAGES, max_batch=32)
    executor = ScriptedExecutor(lambda rows, cores: 0.0125 * rows, wide)
    profile = run(executor, budget_s=2.0)
    assert profile.record.table.batches == (1, 2, 4, 8, 16, 32)
    assert profile.seconds < 4.0


def test_the_budget_bounds_a_slow_model_and_says_what_it_would_need() -> None:
    executor = ScriptedExecutor(
        lambda rows, cores: 0.3 / 320 * rows / cores, PICTURES, per_length=True
    )
    shapes = tuple({"x": (3, 32, 32 * n)} for n in range(1, 9))
    source = replace(PICTURE, more_shapes=shapes)
    profile = run(executor, source, budget_s=2.0, cores=[(0,), (0, 1)], check_rows=True)
    single_runs = 8 * 0.3 + 8 * 0.15  # of each stated shape one, lest it fail later
    assert profile.seconds < 2.0 + single_runs + 10 * 0.3
    assert executor.sources[0].warm_up_s == 0.25  # of two sessions each
    assert profile.record.skipped == (2, 4)
    assert profile.untimed == 7
    enough = run(executor, source, budget_s=profile.needed_s, cores=[(0,), (0, 1)])
    assert (enough.record.skipped, enough.untimed, enough.needed_s) == ((), 0, 0.0)


def test_thorough_goes_on_until_nothing_is_estimated() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.5 * rows)
    profile = run(executor, thorough=True, budget_s=1.0)
    assert profile.record.table.batches == (1, 2, 4, 8)
    assert {count for row in profile.record.table.samples for count in row} == {ENOUGH_SAMPLES}


def test_a_size_that_fails_is_left_out_and_said() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01, fail_from=4)
    profile = run(executor, budget_s=2.0)
    assert profile.record.table.batches == (1, 2)
    assert profile.record.skipped == (4, 8)
    assert profile.note == "a batch of 4 fails: out of memory"


def test_a_model_without_a_batch_axis_has_one_size() -> None:
    plain = ModelInterface((TensorSpec("x", Datatype.FP32, (-1,)),), (), 0)
    profile = run(ScriptedExecutor(lambda rows, cores: 0.01, plain), budget_s=2.0)
    assert profile.record.table.batches == (1,)
    assert profile.record.shapes == {"x": (1,)}


@pytest.mark.parametrize(
    ("script", "message", "permanent"),
    [
        (
            {"start_report": ReplicaLost(0, "no such operator", permanent=True)},
            "no such operator",
            True,
        ),
        ({"start_report": ReplicaLost(0, "out of memory")}, "out of memory", False),
        ({"fail_from": 1}, "a single row fails: out of memory", False),
        ({"lose_at": 0}, "killed by signal 9", False),
        ({"lose_at": 60}, "killed by signal 9", False),
    ],
)
def test_a_model_that_cannot_be_measured_says_why(
    script: dict[str, Any], message: str, permanent: bool
) -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01, **script)
    with pytest.raises(MeasuringError, match=message) as caught:
        run(executor)
    assert caught.value.permanent is permanent
    dead = isinstance(script.get("start_report"), ReplicaLost) or "lose_at" in script
    assert executor.count("stopped") == (0 if dead else 1)


def test_a_replica_that_does_not_answer_is_killed() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01, mute_at=3)
    with pytest.raises(MeasuringError, match=r"took more than 0\.2 s to run a batch of 2"):
        run(executor, patience_s=0.2)
    assert (executor.count("killed"), executor.count("stopped")) == (1, 0)


async def test_a_cancelled_measurement_leaves_nothing_running() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01, mute_at=10)

    task = asyncio.create_task(measure(executor, SOURCE, cores=[(0,)], clock=executor.clock))
    while len(executor.batches) <= 10:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert executor.count("running") == 0


@pytest.mark.parametrize("cores", [[], [()], [(0,), (1,)]])
def test_core_sets_must_make_sense(cores: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="core sets"):
        run(ScriptedExecutor(lambda rows, cores: 0.01), cores=cores)


def test_progress_rises_to_one() -> None:
    steps: list[tuple[float, str]] = []
    executor = ScriptedExecutor(lambda rows, cores: 0.05)
    run(executor, cores=[(0,), (0, 1)], progress=lambda share, text: steps.append((share, text)))
    shares = [share for share, _ in steps]
    assert shares == sorted(shares)
    assert (shares[0], steps[-1]) == (0.0, (1.0, "done"))
    assert 20 < len(steps) < 250
    texts = {text for _, text in steps}
    assert {"starting on 2 cores", "moving to 1 core", "moving to 2 cores"} <= texts


def test_the_record_says_how_it_was_measured() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.01)
    profile = run(executor, budget_s=1.0, device="cuda:1")
    assert [replica.device for replica in executor.started] == ["cuda:1"]
    record = profile.record
    assert (record.device, record.shapes, record.table) == (
        "cuda:1",
        profile.record.shapes,
        profile.record.table,
    )
    assert record.hardware is not None
    assert record.hardware["cpu"] == hardware_fingerprint().cpu


@pytest.mark.parametrize("kind", [InProcessExecutor, ProcessExecutor])
def test_a_real_model_is_measured(models: Any, kind: Callable[[], Executor]) -> None:
    path = models.matmul()
    core = available_cores()[:1]

    async def body() -> Measurement:
        executor = kind()
        try:
            source = ModelSource("m", "1", path, path.parent, max_batch=5)
            return await measure(executor, source, cores=[core], thorough=True)
        finally:
            await executor.close()

    profile = asyncio.run(body())
    assert profile.record.table.batches == (1, 2, 4, 5)
    assert profile.record.table.cores == (1,)
    assert {count for row in profile.record.table.samples for count in row} == {ENOUGH_SAMPLES}
    assert profile.record.shapes == {"x": (4,)}
    assert profile.record.table.expected(1, 1) > 0.0


def test_a_broken_model_says_so_and_leaves_the_executor_usable(models: Any) -> None:
    path = models.matmul()
    broken = path.with_name("broken.onnx")
    broken.write_bytes(b"no model")
    core = available_cores()[:1]

    async def body() -> Measurement:
        executor = InProcessExecutor()
        try:
            with pytest.raises(MeasuringError) as caught:
                await measure(executor, ModelSource("m", "1", broken, path.parent), cores=[core])
            assert caught.value.permanent
            source = ModelSource("m", "1", path, path.parent, max_batch=1)
            return await measure(executor, source, cores=[core], budget_s=0.1)
        finally:
            await executor.close()

    assert asyncio.run(body()).record.table.batches == (1,)


# Made-up inputs


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((4, 128), r"expected a shape that fits \[3, -1\], got \[4, 128\]"),
        ((3, 0), "is empty"),
        ((3, 2**31), "takes 25769803776 bytes, above 1073741824"),
    ],
)
def test_no_inputs_are_made_that_the_model_cannot_have(shape: tuple[int, ...], why: str) -> None:
    source = ModelSource("m", "1", Path(), Path(), warmup_shapes={"x": shape})
    with pytest.raises(ValueError, match=rf"'?x.*{why}"):
        SyntheticRows(IMAGES, source).shapes()


def test_input_whose_axis_is_always_0_is_empty_in_made_up_rows() -> None:
    past = TensorSpec("past", Datatype.FP32, (-1, 0, 8))
    with_past = replace(IMAGES, inputs=(*IMAGES.inputs, past))
    rows = SyntheticRows(with_past, SOURCE)
    assert rows.shapes() == {"x": (3, 1), "past": (0, 8)}
    assert rows.arrays(rows.shapes(), 2, np.random.default_rng(1))["past"].shape == (2, 0, 8)
    with pytest.raises(ValueError, match=r"a row of shape \[0, 8\] is empty"):
        SyntheticRows(replace(with_past, inputs=(past,)), SOURCE)


def test_free_axes_come_from_the_warm_up_shapes() -> None:
    source = ModelSource("m", "1", Path(), Path(), warmup_shapes={"x": (3, 128)})
    assert SyntheticRows(IMAGES, source).shapes() == {"x": (3, 128)}
    wrong = ModelSource("m", "1", Path(), Path(), warmup_shapes={"x": (128,)})
    message = r"inputs\.x\.shape: expected a shape that fits \[3, -1\], got \[128\]"
    with pytest.raises(ValueError, match=message):
        SyntheticRows(IMAGES, wrong)
    with pytest.raises(MeasuringError, match=message):
        run(ScriptedExecutor(lambda rows, cores: 0.01), wrong)


@pytest.mark.parametrize("datatype", list(Datatype))
def test_every_datatype_has_inputs_that_decode(datatype: Datatype) -> None:
    interface = ModelInterface((TensorSpec("x", datatype, (-1, 40)),), (), 4)
    arena = Arena(1 << 20)
    rows = SyntheticRows(interface, SOURCE)
    payloads = rows.payloads({"x": (40,)}, arena, generator=np.random.default_rng(1))
    again = rows.payloads({"x": (40,)}, arena, generator=np.random.default_rng(1))
    assert len(payloads) == 16
    for payload, same in zip(payloads, again, strict=True):
        (ref,), (twin,) = payload.tensors, same.tensors
        assert (payload.rows, ref.shape) == (1, (1, 40))
        data = bytes(arena.view(Slot(ref.offset, ref.nbytes)))
        assert data == bytes(arena.view(Slot(twin.offset, twin.nbytes)))
        if datatype is Datatype.BYTES:
            values = decode_strings(data)
            assert all(0 < len(word) < 10 for word in values)
        else:
            array = np.frombuffer(data, datatype.dtype)
            values = array.tolist()
            assert datatype.is_float or set(values) <= {0, 1}
        assert len(values) == 40
        assert len(set(values)) > 1
    arena.close()


def test_large_inputs_are_few() -> None:
    interface = ModelInterface((TensorSpec("x", Datatype.UINT8, (-1, 30 << 20)),), (), 4)
    arena = Arena(1 << 30)
    rows = SyntheticRows(interface, SOURCE)
    payloads = rows.payloads({"x": (30 << 20,)}, arena, generator=np.random.default_rng(1))
    assert len(payloads) == 2
    arena.close()


def test_sizes_without_room_in_memory_are_left_out_of_the_profile() -> None:
    executor = ScriptedExecutor(lambda rows, cores: 0.010)
    profile = asyncio.run(measure(executor, SOURCE, clock=executor.clock, cores=[(0,)]))
    assert executor.interface.max_batch == 8  # of the 32 that any model gets
    assert profile.record.table.batches == (1, 2, 4, 8)
    assert profile.record.skipped == (16, 32)
    assert profile.record.mismatch(cores=[1], max_batch=32) is None


def stages(*arranged: Arranged) -> Arranged:
    script = ScriptedExecutor(lambda rows, cores: 0.001, arranged=arranged)
    policy = ExitPolicy(PoolId("m", "1"), (0,), (0.0,), revision=1)
    try:
        return asyncio.run(measure_stages(script, SOURCE, policy, cores=(0,)))
    finally:
        assert (script.count("stopped"), script.count("killed")) == (1, 0)


def test_stages_are_waited_for_until_they_are_timed_or_cannot_be():
    opened = Arranged(1, (0,))
    timed = Arranged(1, (0,), "", (1,), (0.01,), ((0.004, 0.011),))
    assert stages(opened, timed) == timed
    with pytest.raises(MeasuringError, match=r"^timing the stages failed: out of memory$"):
        stages(opened, Arranged(1, (0,), untimed="out of memory"))
    with pytest.raises(MeasuringError, match=r"^it has no ramp$"):
        stages(Arranged(1, (0,), "it has no ramp"))
