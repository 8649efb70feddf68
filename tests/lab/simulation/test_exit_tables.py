"""Exit tables: what they hold, how they are kept, and how a batch goes through one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.simulation.drawn_exit_tables import DrawnExits

from slacktide.domain import (
    AbortBatch,
    Batch,
    BatchAborted,
    BatchFinished,
    ExitPolicy,
    Leaving,
    PoolId,
    PublishExits,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    RowsReleased,
    RunBatch,
    StartReplica,
)
from slacktide.lab.simulation import SimulationError
from slacktide.lab.simulation.exit_tables import ExitTable, TableExits, read_exit_table
from slacktide.lab.simulation.world.hardware import ARRANGE_S, Hardware
from slacktide.planning.exits import ExitsArranged, RampsJudged

POOL = PoolId("m", "1")
REPLICA = Replica(1, POOL, "lane0", (0,), 8)


def small(**changed: object) -> ExitTable:
    """Three inputs, two positions: the first leaves at once, the second late, the third never."""
    arrays = {
        "title": "small",
        "rate": 0.0,
        "positions": ("a", "b"),
        "uncertainty": np.array([[0.1, 0.1], [0.6, 0.1], [0.6, 0.6]]),
        "agrees": np.array([[True, True], [False, True], [False, False]]),
        "agreement": np.array([0.4, 0.7]),
        "sizes": np.array([1, 4]),
        "whole": np.array([1.0, 2.5]),
        "before": np.array([[0.25, 0.5], [0.5, 1.5]]),
        "ramp": np.array([[0.125, 0.125], [0.125, 0.125]]),
    }
    return ExitTable(**{**arrays, **changed})  # type: ignore[arg-type]


def batch(
    *ids: int, leaving: Leaving = Leaving.RUN_ON, judged: bool = False, final: bool = False
) -> Batch:
    members = tuple(Request(id, "m", 0.0, 9.0, final=final) for id in ids)
    batch = Batch(7, REPLICA, members, len(ids), 0.0, 99.0, leaving=leaving, judged=judged)
    return dataclasses.replace(batch, held=tuple(range(len(ids))) if final else ())


def policy(*thresholds: float) -> ExitPolicy:
    return ExitPolicy(POOL, (0, 1)[: len(thresholds)], thresholds)


def test_rows_that_run_on_are_released_early_and_judged():
    course = TableExits(small()).course(batch(0, 1, 2), policy(0.5, 0.5), 2.0)
    # Three of four rows: on a line between 1 and 2.5 s, so all is in scale.
    assert [(at, event.ids, event.ramp) for at, event in course.released] == [
        (pytest.approx(0.41666 + 0.125, abs=1e-3), (0,), 0),
        (pytest.approx(1.16666 + 0.25, abs=1e-3), (1,), 1),
    ]
    assert course.seconds == pytest.approx(2.25)
    assert course.report.left == (0, 1, -1)
    assert [len(row) for row in course.report.uncertainty] == [2, 2, 2]
    assert course.report.agrees == ((True, True), (False, True), (False, False))


def test_rows_that_leave_the_batch_make_the_rest_of_it_shorter():
    course = TableExits(small()).course(
        batch(0, 1, 2, leaving=Leaving.SHRINK), policy(0.5, 0.5), 2.0
    )
    alone = TableExits(small())._chain(1, (0, 1))
    two = TableExits(small())._chain(2, (0, 1))
    three = TableExits(small())._chain(3, (0, 1))
    at_b = three[0][0] + two[0][1] - two[0][0]
    assert course.report.stage_s == pytest.approx((three[0][0], at_b))
    assert course.seconds == pytest.approx(at_b + alone[1] - alone[0][1])
    assert course.seconds < 2.25
    assert [len(row) for row in course.report.uncertainty] == [1, 2, 2]
    assert [len(row) for row in course.report.agrees] == [0, 0, 2]


def test_a_batch_that_all_rows_have_left_ends_there():
    course = TableExits(small()).course(batch(0, leaving=Leaving.SHRINK), policy(0.5, 0.5), 1.0)
    assert course.seconds == pytest.approx(0.375)
    assert course.report.stage_s == pytest.approx((0.375,))


@pytest.mark.parametrize(
    "fields",
    [
        {"leaving": Leaving.NONE},
        {"final": True},
    ],
)
def test_rows_that_may_not_leave_are_judged_too(fields):
    course = TableExits(small()).course(batch(0, 1, **fields), policy(0.5, 0.5), 2.0)
    assert course.released == ()
    assert course.report.left == (-1, -1)
    assert course.report.agrees == ((True, True), (False, True))


def test_a_judged_batch_runs_on_though_others_shrink():
    judged = TableExits(small()).course(
        batch(0, 1, leaving=Leaving.SHRINK, judged=True), policy(0.5, 0.5), 2.0
    )
    plain = TableExits(small()).course(batch(0, 1), policy(0.5, 0.5), 2.0)
    assert judged == plain


def test_a_request_of_several_rows_leaves_once_all_of_them_would():
    member = Request(0, "m", 0.0, 9.0, rows=2)
    of_two = Batch(7, REPLICA, (member,), 2, 0.0, 99.0, leaving=Leaving.RUN_ON)
    course = TableExits(small()).course(of_two, policy(0.5, 0.5), 1.5)
    assert [event.ramp for _, event in course.released] == [1]
    assert course.report.left == (1, 1)


def test_a_stopped_batch_reports_what_was_known():
    course = TableExits(small()).course(batch(0, 1), policy(0.5, 0.5), 1.5)
    report = course.until(course.report.stage_s[0])
    assert [len(row) for row in report.uncertainty] == [1, 1]
    assert report.left == (0, -1)
    assert report.agrees == ((), ())


def test_ramps_that_were_learnt_anew_are_published_before_the_first_input_that_they_answer(
    tmp_path,
):
    table = small(revisions=np.array([1, 1, 2]))
    exits = TableExits(table)
    assert exits.learnt(POOL).revision == 1
    first, second, third = (exits.course(batch(id), policy(0.5, 0.5), 1.0) for id in range(3))
    assert first.learnt is third.learnt is None
    assert second.learnt == dataclasses.replace(exits.learnt(POOL), revision=2)
    table.save(tmp_path / "t.npz")
    assert (read_exit_table(tmp_path / "t.npz").part(1, 3).revisions == [1, 2]).all()
    with pytest.raises(SimulationError, match=r"^exit table: revisions: expected numbers from 1"):
        small(revisions=np.array([1, 2, 1]))


@given(
    ids=st.lists(st.integers(0, 400), min_size=1, max_size=8, unique=True),
    thresholds=st.tuples(*[st.floats(0.0, 1.0)] * 3),
    leaving=st.sampled_from(list(Leaving)),
)
def test_every_row_leaves_at_its_first_sure_ramp_and_time_never_runs_back(ids, thresholds, leaving):
    table = DrawnExits(inputs=401, positions=5).table(3)
    exit_policy = ExitPolicy(POOL, (0, 2, 4), thresholds)
    drawn_batch = batch(*ids, leaving=leaving)
    course = TableExits(table).course(
        drawn_batch, exit_policy, float(table.seconds(table.whole, len(ids)))
    )
    sure = table.uncertainty[np.ix_(ids, [0, 2, 4])] < np.array(thresholds)
    first = np.where(sure.any(axis=1), sure.argmax(axis=1), -1)
    expected = first.tolist() if leaving is not Leaving.NONE else [-1] * len(ids)
    assert list(course.report.left) == expected
    answered = [id for _, event in course.released for id in event.ids]
    assert sorted(answered) == sorted(
        id for id, ramp in zip(ids, expected, strict=True) if ramp >= 0
    )
    times = [at for at, _ in course.released]
    assert times == sorted(times)
    assert all(at <= course.seconds + 1e-12 for at in times)
    whole = TableExits(table).course(batch(*ids), exit_policy, 1.0)
    if leaving is Leaving.SHRINK:
        scaled = whole.seconds * float(table.seconds(table.whole, len(ids)))
        assert course.seconds <= scaled + 1e-12


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = DrawnExits(inputs=50).table(1)
    table.save(tmp_path / "one.npz")
    again = read_exit_table(tmp_path / "one.npz")
    for field in dataclasses.fields(ExitTable):
        assert np.array_equal(getattr(again, field.name), getattr(table, field.name))
    assert len(again.part(10, 30)) == 20


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"agrees": np.ones((3, 3), bool)}, "agrees: expected shape"),
        ({"uncertainty": np.full((3, 2), 1.5)}, "uncertainty: expected shares"),
        ({"ramp": np.full((2, 2), np.nan)}, "ramp: expected numbers"),
        ({"before": np.array([[0.5, 0.25], [0.5, 1.0]])}, "before: expected times that rise"),
        ({"sizes": np.array([2, 4])}, "sizes: expected batch sizes"),
        ({"whole": np.array([1.0, 0.9]), "before": np.zeros((2, 2))}, "whole: expected positive"),
        ({"positions": ()}, "0 positions"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(changed, says):
    with pytest.raises(SimulationError, match=says):
        small(**changed)


def test_a_file_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "one.npz"
    path.write_bytes(b"not a table")
    with pytest.raises(SimulationError, match=r"one\.npz is not an exit table"):
        read_exit_table(path)
    np.savez(path, layout=np.int64(9))
    with pytest.raises(SimulationError, match="expected layout 1, got 9"):
        read_exit_table(path)
    np.savez(path, layout=np.int64(1), title=np.array("x"))
    with pytest.raises(SimulationError, match="not an exit table"):
        read_exit_table(path)
    np.savez(path, layout=np.array({"a": 1}, dtype=object))
    with pytest.raises(SimulationError, match="not an exit table"):
        read_exit_table(path)


class Reports:
    """What simulated hardware says, in the order in which it will happen."""

    def __init__(self, table: ExitTable, seconds: float) -> None:
        self.waiting: list[tuple[float, object]] = []
        self.hardware = Hardware(
            None,  # type: ignore[arg-type]  # asked only where lanes are resized
            self,
            lambda at, report: self.waiting.append((at, report)),
            start_s=0.0,
            resize_s=0.0,
            exits={"m": TableExits(table)},
        )
        self._seconds = seconds
        self.hardware.lanes_changed({"lane0": 1}, 0.0)
        self.hardware.carry_out(StartReplica(REPLICA, 0), now=0.0)

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._seconds

    def publish(self, exit_policy: ExitPolicy, now: float) -> None:
        self.hardware.carry_out(PublishExits(REPLICA, exit_policy, 0), now=now)

    def run(self, drawn_batch: Batch, now: float) -> None:
        self.hardware.carry_out(RunBatch(drawn_batch, 0, 1.0, 1.0), now=now)

    def until(self, end: float) -> list[tuple[float, object]]:
        """What comes to pass before `end`."""
        pending = sorted((pair for pair in self.waiting if pair[0] < end), key=lambda pair: pair[0])
        self.waiting = [pair for pair in self.waiting if pair[0] >= end]
        return [(at, report) for at, report in pending if self.hardware.happens(report, now=at)]  # type: ignore[arg-type]


@pytest.mark.replaces_parts
def test_ramps_are_open_a_while_after_they_are_published():
    reports = Reports(small(), seconds=1.0)
    reports.publish(policy(0.5, 0.5), 0.0)
    reports.run(batch(0), 0.0)
    (_, up), (at, arranged), (_, unsplit) = reports.until(2.0)
    assert isinstance(up, ReplicaUp)
    assert isinstance(arranged, ExitsArranged)
    assert (at, arranged.ramps, arranged.rows) == (ARRANGE_S, (0, 1), (1, 4))
    assert arranged.whole_s == (1.0, 2.5)
    assert arranged.stage_s[0] == pytest.approx((0.375, 0.75, 1.25))
    assert unsplit == BatchFinished(7)
    reports.run(batch(0), 2.0)
    (at, released), (end, done) = reports.until(9.0)
    assert (at, released) == (2.375, RowsReleased(7, (0,), 0))
    assert isinstance(done, BatchFinished)
    assert end == 3.25
    assert done.exits is not None
    assert done.exits.left == (0,)


@pytest.mark.replaces_parts
def test_thresholds_hold_from_the_next_batch_on_and_new_ramps_once_they_are_open():
    reports = Reports(small(), seconds=1.0)
    reports.publish(policy(0.0, 0.0), 0.0)
    reports.until(1.0)
    reports.publish(policy(0.0, 0.5), 1.0)
    reports.run(batch(0), 1.0)
    assert RowsReleased(7, (0,), 1) in [event for _, event in reports.until(3.0)]
    reports.publish(policy(0.1), 3.0)  # ramp 1 is still open, and asked for no more
    reports.run(batch(0), 3.0)
    assert RowsReleased(7, (0,), 1) in [event for _, event in reports.until(5.0)]
    reports.run(batch(1), 5.0)
    ((_, done),) = reports.until(9.0)
    assert isinstance(done, BatchFinished)
    assert done.exits is not None
    assert done.exits.ramps == (0,)


@pytest.mark.replaces_parts
def test_a_policy_that_is_taken_back_before_it_is_open_is_never_reported():
    reports = Reports(small(), seconds=1.0)
    reports.publish(policy(0.5, 0.5), 0.0)
    reports.publish(policy(0.5), 0.1)
    assert [event.ramps for _, event in reports.until(9.0) if isinstance(event, ExitsArranged)] == [
        (0,)
    ]


@pytest.mark.replaces_parts
def test_a_batch_in_stages_is_stopped_before_the_next_of_them():
    reports = Reports(small(), seconds=1.0)
    reports.publish(policy(0.5, 0.5), 0.0)
    reports.until(1.0)
    drawn_batch = batch(0)
    reports.run(drawn_batch, 1.0)
    reports.until(1.5)
    reports.hardware.carry_out(AbortBatch(drawn_batch, 0), now=1.5)
    ((at, stopped),) = reports.until(9.0)
    assert at == pytest.approx(1.75)
    assert isinstance(stopped, BatchAborted)
    assert stopped.exits is not None
    assert stopped.exits.left == (0,)
    assert stopped.exits.agrees == ((),)
    assert reports.hardware.busy_s == pytest.approx(0.75)


@pytest.mark.replaces_parts
def test_rows_are_not_released_once_the_replica_is_gone():
    reports = Reports(small(), seconds=1.0)
    reports.publish(policy(0.5, 0.5), 0.0)
    reports.until(1.0)
    reports.run(batch(0), 1.0)
    reports.hardware.happens(ReplicaLost(1, "gone"), now=1.1)
    assert reports.until(9.0) == []


@pytest.mark.replaces_parts
def test_where_features_are_asked_for_ramps_at_all_positions_are_judged():
    reports = Reports(small(), seconds=1.0)
    exit_policy = dataclasses.replace(policy(0.5), features=True, feature_share=1.0)
    reports.publish(exit_policy, 0.0)
    reports.until(1.0)
    reports.run(batch(0), 1.0)
    reports.until(8.0)
    (judged,) = [event for _, event in reports.until(9.0) if isinstance(event, RampsJudged)]
    assert judged == RampsJudged(
        exit_policy.pool,
        exit_policy.revision,
        tuple(map(tuple, small().uncertainty[:1].tolist())),
        tuple(map(tuple, small().agrees[:1].tolist())),
        applications=("",),
    )
    reports.publish(dataclasses.replace(exit_policy, feature_share=0.0), 9.0)
    reports.run(batch(0), 9.0)
    reports.until(18.0)
    assert not [event for _, event in reports.until(19.0) if isinstance(event, RampsJudged)]
