"""A model cut into stages gives what it gives whole, and answers its members early."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.exits.classifiers import find_positions

from slacktide.domain import (
    BatchFinished,
    ExitPolicy,
    ExitReport,
    Leaving,
    PoolId,
    ReplicaLost,
)
from slacktide.executors.arranging import Arranger
from slacktide.executors.exit_frames import decode_features, decode_released
from slacktide.executors.hand_over.arena import map_read_only
from slacktide.executors.hand_over.output_file import OutputReader, OutputWriter, make_output_file
from slacktide.executors.hand_over.protocol import (
    FrameKind,
    FrameReader,
    decode_aborted,
    decode_finished,
    encode_batch,
)
from slacktide.executors.hand_over.worker import BatchRunner
from slacktide.executors.idle_features import IdleFeatures
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import measure_stages
from slacktide.executors.ports import (
    Arranged,
    BatchOrder,
    DecodeSource,
    ExitSource,
    MembersReleased,
)
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.session import ModelSession
from slacktide.executors.session_opener import SessionOpener
from slacktide.executors.session_pool import SessionPool
from slacktide.executors.stage_timing import GAPS
from slacktide.executors.timed_replica import MeasuringError
from slacktide.exits.manifest import read_manifest
from slacktide.exits.ramp_graph import with_ramps

POOL = PoolId("m", "1")


def policy(*ramps: int, threshold: float = 0.0, revision: int = 1, **more: Any) -> ExitPolicy:
    return ExitPolicy(POOL, ramps, (threshold,) * len(ramps), revision=revision, **more)


class Bench:
    """What a worker is made of, without its process."""

    def __init__(self, kit: Any, arena: Any, path: Path, **source: Any) -> None:
        self.kit, self.arena = kit, arena
        self.pool = SessionPool.open(kit.source(path, **source), cores=1, device="cpu")
        self.session: ModelSession = self.pool.session
        self.arranged: queue.SimpleQueue[Arranged] = queue.SimpleQueue()
        threads = [size.threads for size in self.pool.sizes]
        self.arranger = Arranger(self.session, threads, self.arranged.put)
        self.later: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Frames that are sent on another thread."""
        self.idle_features = IdleFeatures(self.arranger.turn, self.later.put)
        fd = make_output_file()
        self.reader = OutputReader(fd)
        self.sent: list[bytes] = []
        self.on_send: Callable[[bytes], object] = self.sent.append
        self.runner = BatchRunner(
            self.session,
            map_read_only(arena.fd),
            OutputWriter(fd),
            lambda data: self.on_send(data),
            lambda: self.arranger.thresholds,
            self.arranger.samples,
            self.idle_features,
        )

    def arrange(self, policy: ExitPolicy) -> Arranged:
        self.arranger.publish(policy)
        return self.placed()

    def placed(self) -> Arranged:
        """What is said of the next chain as soon as it is in place, or cannot be."""
        while (arranged := self.told()).rows:
            pass
        return arranged

    def told(self) -> Arranged:
        return self.arranged.get(timeout=self.kit.PATIENCE)

    def run(
        self,
        *members: Any,
        batch: int = 1,
        leaving: Leaving = Leaving.NONE,
        final: Sequence[int] = (),
    ) -> Ran:
        """Each member's answer: where it was released, and its outputs as arrays."""
        payloads = [self.kit.put(self.arena, member) for member in members]
        ((_, body),) = FrameReader().feed(
            encode_batch(BatchOrder(batch, payloads, 0, leaving, final))
        )
        self.sent.clear()
        frames = self.runner.execute(body)
        return self.read(b"".join([*self.sent, frames]), len(members))

    def read(self, data: bytes, members: int) -> Ran:
        ran = Ran({}, {}, None, None, [])
        for kind, body in FrameReader().feed(data):
            ran.kinds.append(kind)
            if kind is FrameKind.RELEASED:
                message = decode_released(body, members)
                for place, outputs in zip(message.members, self.reader.take(message), strict=True):
                    assert place not in ran.outputs
                    ran.ramps[place], ran.outputs[place] = message.ramp, self.arrays(outputs)
            elif kind is FrameKind.FINISHED:
                message_ = decode_finished(body)
                rest = [place for place in range(members) if place not in ran.outputs]
                for place, outputs in zip(rest, self.reader.take(message_), strict=True):
                    ran.outputs[place] = self.arrays(outputs)
                ran.report = message_.exits
            elif kind is FrameKind.ABORTED:
                ran.report = decode_aborted(body)[1]
            elif kind is FrameKind.FEATURES:
                ran.features = decode_features(body)
        return ran

    def arrays(self, outputs: Any) -> list[np.ndarray]:
        return [
            np.frombuffer(data, spec.datatype.dtype).reshape(shape or (0,))
            for spec, (shape, data) in zip(self.session.interface.outputs, outputs, strict=True)
        ]


@dataclass
class Ran:
    outputs: dict[int, list[np.ndarray]]
    ramps: dict[int, int]
    """Of members that were released."""
    report: ExitReport | None
    features: Any
    kinds: list[FrameKind]


def images(*rows: int, seed: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((count, 3, 8, 8)).astype(np.float32) for count in rows]


def reference(path: Path, exits: ExitSource, batch: np.ndarray) -> dict[str, np.ndarray]:
    """Everything that the uncut model with all its ramps gives."""
    model = onnx.load(str(path))
    graph = find_positions(model)
    ramps = read_manifest(exits.folder).ramps
    session = onnxruntime.InferenceSession(
        with_ramps(model, graph, ramps).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": batch}), strict=True))


@pytest.fixture
def layers(models: Any, kit: Any) -> tuple[Path, ExitSource]:
    path = models.layers()
    return path, kit.write_ramps(path)


@pytest.fixture
def bench(layers: Any, kit: Any, arena: Any) -> Bench:
    path, exits = layers
    return Bench(kit, arena, path, exits=exits, threads=(1, 2))


def middle(values: np.ndarray) -> float:
    """A threshold that about half of these are below."""
    ordered = np.sort(values.ravel())
    return float((ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2)


def test_stages_give_what_the_model_gives(bench: Bench, layers: Any) -> None:
    members = images(1, 2, 1, 4)
    whole = bench.run(*members)
    assert whole.report is None
    arranged = bench.arrange(policy(0, 1))
    assert arranged == Arranged(1, (0, 1))
    for threads in (1, 2):
        bench.pool.use(threads)
        ran = bench.run(*members)
        assert ran.ramps == {}
        for place, outputs in whole.outputs.items():
            for expected_output, other in zip(outputs, ran.outputs[place], strict=True):
                np.testing.assert_allclose(other, expected_output, atol=1e-5)
        reference_outputs = reference(*layers, np.concatenate(members))
        assert ran.report is not None
        assert ran.report.ramps == (0, 1)
        np.testing.assert_allclose(
            ran.report.uncertainty,
            np.stack(
                [
                    reference_outputs["exits/0/uncertainty"],
                    reference_outputs["exits/1/uncertainty"],
                ],
                1,
            ),
            atol=1e-5,
        )
        same = [
            reference_outputs[f"exits/{ramp}/answer"] == reference_outputs["exits/answer"]
            for ramp in (0, 1)
        ]
        assert ran.report.agrees == tuple(
            zip(*[agreement.tolist() for agreement in same], strict=True)
        )
        assert ran.report.left == (-1,) * 8
        assert list(ran.report.stage_s) == sorted(ran.report.stage_s)


@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_members_leave_with_the_answer_of_their_ramp(
    bench: Bench, layers: Any, leaving: Leaving
) -> None:
    members = images(1, 1, 2, 1, 1, 1, 1)
    reference_outputs = reference(*layers, np.concatenate(members))
    limits = [middle(reference_outputs[f"exits/{ramp}/uncertainty"]) for ramp in (0, 1)]
    bench.arrange(replace(policy(0, 1), thresholds=tuple(limits)))
    ran = bench.run(*members, leaving=leaving, final=(1,))
    ends = np.cumsum([len(member) for member in members])
    assert ran.report is not None
    assert {0, 1} <= {*ran.ramps.values()}
    for place, member in enumerate(members):
        rows = slice(ends[place] - len(member), ends[place])
        leaves = [
            ramp
            for ramp in (0, 1)
            if (reference_outputs[f"exits/{ramp}/uncertainty"][rows] < limits[ramp]).all()
            and place != 1
        ]
        names = [f"exits/{leaves[0]}/y" if leaves else "y", "embedding"]
        assert ran.ramps.get(place) == (leaves[0] if leaves else None)
        np.testing.assert_allclose(
            ran.outputs[place][0], reference_outputs[names[0]][rows], atol=1e-5
        )
        assert ran.outputs[place][1].size == (
            0 if leaves else reference_outputs["embedding"][rows].size
        )
        judged = leaves[0] + 1 if leaves and leaving is Leaving.SHRINK else 2
        for row in range(rows.start, rows.stop):
            assert len(ran.report.uncertainty[row]) == judged
            assert ran.report.left[row] == (leaves[0] if leaves else -1)
            stayed = not leaves or leaving is Leaving.RUN_ON
            assert len(ran.report.agrees[row]) == (2 if stayed else 0)


@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_a_decoder_reads_what_exits_and_the_end_give(
    bench: Bench, layers: Any, kit: Any, arena: Any, leaving: Leaving
) -> None:
    path, exits = layers
    source = DecodeSource("softmax", ("y",), top=2, probabilities=True)
    decoding = Bench(kit, arena, path, exits=exits, decode=source)
    members = images(1, 1, 2, 1, 1, 1, 1)
    reference_outputs = reference(*layers, np.concatenate(members))
    limits = tuple(middle(reference_outputs[f"exits/{ramp}/uncertainty"]) for ramp in (0, 1))
    raw, decoded = (
        setup.run(*members, leaving=leaving, final=(1,))
        for setup in (bench, decoding)
        if setup.arrange(replace(policy(0, 1), thresholds=limits))
    )
    assert 0 < len(raw.ramps) < len(members)
    assert decoded.ramps == raw.ramps
    assert [spec.name for spec in decoding.session.interface.outputs] == ["scores", "classes"]
    for place, (probabilities, _) in raw.outputs.items():
        scores, classes = decoded.outputs[place]
        order = np.argsort(-probabilities, axis=1)[:, :2]
        np.testing.assert_array_equal(classes, order)
        np.testing.assert_allclose(scores, np.take_along_axis(probabilities, order, 1), atol=1e-5)


def test_a_decoder_of_an_output_that_no_exit_makes_is_an_error(
    layers: Any, kit: Any, arena: Any
) -> None:
    source = DecodeSource("sigmoid", ("embedding",))
    decoding = Bench(kit, arena, layers[0], exits=layers[1], decode=source)
    detail = "early_exit: 'decode' reads output 'embedding', which exits do not make"
    assert decoding.arrange(policy(0)).detail == detail
    assert decoding.run(*images(2)).outputs[0][1].shape == (2, 5)  # at the model's end


@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_a_batch_whose_members_have_all_left_ends(bench: Bench, leaving: Leaving) -> None:
    bench.arrange(policy(0, 1, threshold=2.0))
    ran = bench.run(*images(1, 3), leaving=leaving)
    assert ran.ramps == {0: 0, 1: 0}
    assert ran.kinds == [FrameKind.RELEASED, FrameKind.FINISHED]
    assert ran.report is not None
    assert ran.report.left == (0, 0, 0, 0)
    ends = leaving is Leaving.RUN_ON
    assert [len(agrees) for agrees in ran.report.agrees] == [2 if ends else 0] * 4
    assert len(ran.report.stage_s) == (2 if ends else 1)


def test_no_member_leaves_a_batch_that_none_may_leave(bench: Bench) -> None:
    bench.arrange(policy(0, threshold=2.0))
    ran = bench.run(*images(1, 1))
    assert ran.ramps == {}
    assert ran.report is not None
    assert ran.report.left == (-1, -1)


def test_rows_of_no_number_never_leave(bench: Bench) -> None:
    bench.arrange(policy(0, 1, threshold=2.0))
    good, bad = images(1, 1)
    bad[0, 0, 0, 0] = np.nan
    ran = bench.run(good, bad, leaving=Leaving.SHRINK)
    assert ran.ramps == {0: 0}
    assert np.isnan(ran.outputs[1][0]).all()
    assert ran.report is not None
    assert ran.report.uncertainty[1] == (1.0, 1.0)


def test_a_batch_is_stopped_between_stages(bench: Bench) -> None:
    bench.arrange(policy(0, 1, threshold=2.0))

    def stop(data: bytes) -> None:
        bench.sent.append(data)
        bench.runner.abort(5)

    bench.on_send = stop
    ran = bench.run(*images(1, 1), batch=5, leaving=Leaving.RUN_ON)
    assert ran.kinds == [FrameKind.RELEASED, FrameKind.ABORTED]
    assert ran.report is not None
    assert ran.report.left == (0, 0)
    assert ran.report.agrees == ((), ())
    ran = bench.run(*images(1, 1), batch=6)
    assert ran.kinds == [FrameKind.FINISHED]


def test_thresholds_change_at_once_and_ramps_when_they_are_open(bench: Bench) -> None:
    bench.arrange(policy(1, threshold=0.0))
    bench.arranger.publish(policy(1, threshold=2.0))
    assert bench.run(*images(1), leaving=Leaving.RUN_ON).ramps == {0: 1}
    with bench.arranger.turn:  # so that nothing is put in place
        bench.arranger.publish(policy(0, threshold=2.0))
        ran = bench.run(*images(1), leaving=Leaving.RUN_ON)
        assert ran.ramps == {0: 1}, "rows go on leaving while the next ramp is opened"
        bench.arranger.publish(policy(0, threshold=0.0))
        assert bench.run(*images(1), leaving=Leaving.RUN_ON).ramps == {}, "none after an alarm"
        bench.arranger.publish(policy(0, threshold=2.0))
        ran = bench.run(*images(1), leaving=Leaving.RUN_ON)
        assert ran.ramps == {}, "nor where thresholds are found again: not for this ramp"
        assert ran.report is not None
        assert ran.report.ramps == (1,)
    assert bench.placed().ramps == (0,)
    assert bench.run(*images(1), leaving=Leaving.RUN_ON).ramps == {0: 0}


def test_stage_times_are_reported_once_the_lane_has_room(bench: Bench) -> None:
    bench.arrange(policy(0, 1))
    while (arranged := bench.told()).rows != (1, 4, 8):
        assert arranged.rows in ((1,), (1, 4))  # larger ones came to be timed only later
    assert (arranged.ramps, arranged.detail) == ((0, 1), "")
    assert len(arranged.whole_s) == 3
    assert [len(times) for times in arranged.stage_s] == [3, 3, 3]
    assert all(sorted(times) == list(times) for times in arranged.stage_s)


def test_the_model_is_whole_again_without_ramps(bench: Bench) -> None:
    members = images(1, 2)
    before = bench.run(*members)
    bench.arrange(policy(0))
    assert bench.session.whole is None
    assert bench.arrange(policy()) == Arranged(1, ())
    after = bench.run(*members)
    assert after.report is None
    for place in (0, 1):
        np.testing.assert_array_equal(after.outputs[place][0], before.outputs[place][0])


def gaps(bench: Bench, seconds: float) -> None:
    """Let the lane's last gaps have been this long."""
    bench.arranger.turn._gaps.extend([seconds] * GAPS)


def settle(bench: Bench) -> None:
    """Wait until no features are still to be reported."""
    while bench.idle_features._is_busy:
        time.sleep(0.001)


def test_features_are_reported_after_the_answer_if_the_lane_has_gaps(bench: Bench) -> None:
    members = images(1, 2)
    bench.arrange(policy(0, 1, features=True, feature_share=1.0))
    with bench.arranger.turn:
        at_once = bench.run(*members).features
    assert at_once is not None, "no pass has been timed"
    gaps(bench, 10.0)
    with bench.arranger.turn:
        assert bench.run(*members).features is None
        assert bench.later.empty()
    ((kind, body),) = FrameReader().feed(bench.later.get(timeout=bench.kit.PATIENCE))
    assert kind is FrameKind.FEATURES
    assert decode_features(body) == at_once


def test_a_batch_reports_its_features_itself_after_one_that_found_no_gap(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.arrange(policy(0, 1, features=True, feature_share=1.0))
    bench.run(*images(1))
    gaps(bench, 10.0)
    assert bench.run(*images(1), batch=2).features is None
    bench.later.get(timeout=bench.kit.PATIENCE)
    settle(bench)
    turn = bench.arranger.turn

    def give_way(run: Any, seconds: float, *, beside: bool) -> None:
        with turn:  # the next batch begins
            pass

    monkeypatch.setattr(turn, "run_timed", give_way)
    assert bench.run(*images(1), batch=3).features is None
    settle(bench)
    assert bench.run(*images(1), batch=4).features is not None
    assert bench.run(*images(1), batch=5).features is None
    settle(bench)
    assert bench.later.empty()


def test_features_are_not_sent_once_another_batch_has_begun(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes them for those of the last batch, whose members may be of other clients."""
    bench.arrange(policy(0, 1, features=True, feature_share=1.0))
    bench.run(*images(1))
    gaps(bench, 10.0)
    turn = bench.arranger.turn

    def come_second(run: Any, seconds: float, *, beside: bool) -> Any:
        with turn:
            pass
        return run(None)

    monkeypatch.setattr(turn, "run_timed", come_second)
    assert bench.run(*images(1), batch=2).features is None
    settle(bench)
    assert bench.later.empty()


def test_rows_that_have_left_have_no_features_later_either(bench: Bench, layers: Any) -> None:
    bench.arrange(replace(policy(0, 1, features=True, feature_share=1.0), thresholds=(2.0, 2.0)))
    bench.run(*images(1))
    gaps(bench, 10.0)
    ran = bench.run(*images(1), batch=2, leaving=Leaving.SHRINK)
    assert ran.ramps == {0: 0}
    assert not bench.idle_features._is_busy
    assert bench.later.empty()


def test_features_of_all_positions_are_handed_out(bench: Bench, layers: Any) -> None:
    members = images(1, 2)
    graph = find_positions(onnx.load(str(layers[0])))
    assert bench.arrange(policy(features=True, revision=0)).detail == ""
    ran = bench.run(*members)
    assert ran.kinds == [FrameKind.FINISHED, FrameKind.FEATURES]
    features = ran.features
    assert features.tensors == tuple(position.tensor for position in graph.positions)
    assert features.outputs == ("y",)
    for position, data in zip(graph.positions, features.features, strict=True):
        assert np.frombuffer(data, np.float32).reshape(3, -1).shape == (3, position.features)
    logits = np.frombuffer(features.logits, np.float32).reshape(3, 4)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = np.concatenate([ran.outputs[0][0], ran.outputs[1][0]])
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    bench.arrange(policy(0, 1, features=True, feature_share=0.25))
    sampled = [bench.run(*members, batch=batch).features is not None for batch in range(64)]
    assert 8 < sum(sampled) < 24
    assert sampled == [bench.run(*members, batch=batch).features is not None for batch in range(64)]


def test_a_model_without_a_batch_axis_has_early_answers(models: Any, kit: Any, arena: Any) -> None:
    path = models.layers(1)
    bench = Bench(kit, arena, path, exits=kit.write_ramps(path))
    assert bench.arrange(policy(0, threshold=2.0)).detail == ""
    ran = bench.run(*images(1), leaving=Leaving.SHRINK)
    assert ran.ramps == {0: 0}
    assert ran.outputs[0][0].shape == (1, 4)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda exits: (exits.folder / "manifest.json").unlink(), "manifest.json"),
        (lambda exits: (exits.folder / "manifest.json").write_text("{"), "manifest.json"),
        (lambda exits: (exits.folder / "ramps.1.npz").write_bytes(b"PK"), "ramps.1.npz"),
    ],
)
def test_a_chain_that_cannot_be_opened_leaves_the_previous_one(
    bench: Bench, layers: Any, spoil: Any, why: str
) -> None:
    bench.arrange(policy(1, threshold=2.0))
    spoil(layers[1])
    arranged = bench.arrange(policy(0, 1))
    assert arranged.ramps == (0, 1)
    assert why in arranged.detail
    assert str(layers[1].folder) not in arranged.detail
    assert bench.run(*images(1), leaving=Leaving.RUN_ON).report.ramps == (1,)  # type: ignore[union-attr]


def test_ramps_of_another_model_or_revision_are_refused(
    bench: Bench, layers: Any, kit: Any
) -> None:
    assert "revision 1, not 2" in bench.arrange(policy(0, revision=2)).detail
    assert "no ramp at position 7" in bench.arrange(policy(0, 7)).detail
    kit.write_ramps(layers[0], revision=3, classes=5)
    assert "expected (16, 4)" in bench.arrange(policy(0, revision=3)).detail
    assert bench.run(*images(1)).report is None


def test_a_model_that_cannot_be_left_says_why(models: Any, kit: Any, arena: Any) -> None:
    for path, why in ((models.gather(), "position"), (models.spin(), "spin")):
        exits = ExitSource(path.parent / "exits")
        bench = Bench(kit, arena, path, exits=exits)
        assert bench.arrange(policy(features=True)).detail, why
    plain = Bench(kit, arena, models.layers())
    assert "states no early exits" in plain.arrange(policy(0)).detail


async def test_a_worker_process_answers_early(layers: Any, kit: Any, arena: Any) -> None:
    executor = ProcessExecutor()
    try:
        case = kit.Case(executor, layers[0], arena, exits=layers[1])
        await case.ready()
        case.handle.publish(policy(0, 1, threshold=2.0))
        arranged = await case.next()
        assert (arranged.ramps, arranged.detail) == ((0, 1), "")
        members = [kit.put(arena, member) for member in images(1, 2)]
        case.handle.run(BatchOrder(3, members, 0, Leaving.SHRINK, (1,)))
        assert await case.next() == MembersReleased(3, (0,), 0)
        finished = await case.next()
        assert isinstance(finished, BatchFinished)
        assert finished.exits is not None
        assert finished.exits.left == (0, -1, -1)
        assert [len(outputs) for outputs in case.results] == [0, 2]
    finally:
        await executor.close()


async def test_an_executor_without_workers_serves_the_model_as_it_is(
    layers: Any, kit: Any, arena: Any
) -> None:
    executor = InProcessExecutor()
    try:
        case = kit.Case(executor, layers[0], arena, exits=layers[1])
        await case.ready()
        case.handle.publish(policy(0, threshold=2.0))
        arranged = await case.next()
        assert arranged.ramps == (0,)
        assert "worker" in arranged.detail
        (member,) = images(1)
        case.handle.run(BatchOrder(3, [kit.put(arena, member)], 0, Leaving.RUN_ON))
        assert isinstance(await case.next(), BatchFinished)
    finally:
        await executor.close()


async def answered_once(
    kit: Any, arena: Any, layers: Any, requests: int, kills: int
) -> tuple[Counter[int], Counter[int]]:
    """Answers of each request, from a ramp and from the end, where workers are killed as soon as
    they have released members of a batch, and what they left unanswered runs again."""
    drawn = images(*[1] * 16)
    members = [kit.put(arena, member) for member in drawn]
    reference_outputs = reference(*layers, np.concatenate(drawn))
    limits = tuple(middle(reference_outputs[f"exits/{ramp}/uncertainty"]) for ramp in (0, 1))
    early, late = Counter[int](), Counter[int]()
    waiting, lives = deque(range(requests)), kills + 1
    executor = ProcessExecutor()
    try:
        while waiting:
            case = kit.Case(executor, layers[0], arena, exits=layers[1], id=lives)
            await case.ready()
            case.handle.publish(replace(policy(0, 1), thresholds=limits))
            assert (await case.next()).detail == ""
            lives -= 1
            kill_after = requests // (2 * kills + 2) // 8 if lives > 0 else requests
            batch = 0
            while waiting:
                batch += 1
                ids = [waiting.popleft() for _ in range(min(8, len(waiting)))]
                leaving = Leaving.SHRINK if batch % 2 else Leaving.RUN_ON
                case.handle.run(BatchOrder(batch, [members[id % 16] for id in ids], 0, leaving))
                answered: set[int] = set()
                while isinstance(event := await case.next(), MembersReleased | Arranged):
                    if isinstance(event, Arranged):  # on a busy machine, times come late
                        continue
                    answered.update(event.members)
                    early.update(ids[place] for place in event.members)
                    if batch > kill_after:
                        os.kill(case.handle.pid, signal.SIGKILL)
                rest = [id for place, id in enumerate(ids) if place not in answered]
                if isinstance(event, BatchFinished):
                    late.update(rest)
                    assert [not outputs for outputs in case.results] == [
                        place in answered for place in range(len(ids))
                    ]
                else:
                    assert isinstance(event, ReplicaLost)
                    waiting.extendleft(rest)
                    break
                if batch > kill_after + 8:  # it was killed behind its batch, or is about to be
                    os.kill(case.handle.pid, signal.SIGKILL)
                    while not isinstance(await case.next(), ReplicaLost):
                        pass
                    break
    finally:
        await executor.close()
    return early, late


def test_one_answer_each_although_workers_are_killed_between_stages(
    layers: Any, kit: Any, arena: Any
) -> None:
    early, late = asyncio.run(answered_once(kit, arena, layers, 400, 3))
    assert early
    assert late
    assert early + late == Counter(range(400))


def test_stages_are_timed_for_a_profile(layers: Any, kit: Any) -> None:
    async def body(**source: Any) -> Arranged:
        executor = ProcessExecutor()
        try:
            opened = kit.source(layers[0], **source)
            return await measure_stages(executor, opened, policy(0, 1), cores=(0,))
        finally:
            await executor.close()

    timing = asyncio.run(body(exits=layers[1]))
    assert (
        [len(ends) for ends in timing.stage_s]
        == [3] * len(timing.rows)
        == [3] * len(timing.whole_s)
    )
    with pytest.raises(MeasuringError, match="states no early exits"):
        asyncio.run(body())


def test_stages_that_cannot_be_timed_run_and_it_is_told_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(opener: SessionOpener, threads: int) -> Any:
        raise MemoryError("for the model beside its stages")

    monkeypatch.setattr(SessionOpener, "open", no_room)
    assert bench.arrange(policy(0, 1)) == Arranged(1, (0, 1))
    assert bench.told() == Arranged(1, (0, 1), untimed="out of memory")
    assert len(bench.run(*images(1, 1)).outputs) == 2
    assert bench.arrange(policy(1)) == Arranged(1, (1,)), "the next chain is made all the same"
