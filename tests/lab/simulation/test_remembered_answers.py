"""Remembered answers in virtual time: a table's scenes, the planner, and the promise on changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.simulation.drawn_exit_tables import DrawnExits
from tests.lab.simulation.drawn_scenes import DrawnScenes

from slacktide.domain import (
    Command,
    Deployment,
    Event,
    ExitMode,
    LaneSpec,
    Outcome,
    Plan,
    PoolId,
    Request,
    Route,
    RunBatch,
    is_in_run,
)
from slacktide.engine import Engine
from slacktide.exits import SessionMemory, reuse_uncertainty
from slacktide.exits.session_memory import LEAST_DOUBT, distance
from slacktide.lab.simulation import AsExpected, ExitTable, Simulation, TableExits
from slacktide.lab.simulation.exit_tables import ExitTableError, read_exit_table
from slacktide.planning.exits import ExitsPlanner, ExitsStatus, StatedExits
from slacktide.profiles import CorrectedTimes
from slacktide.scheduling import PoolRecipe

POOL = PoolId("m", "1")
HARD = DrawnExits(inputs=2_500, positions=3, ability=(-3.0, 0.0), rate=30.0)
"""Ordinary ramps answer hardly any row."""


@dataclass
class Played:
    status: ExitsStatus
    ramps: np.ndarray
    """By input: the ramp that answered, or −1."""
    batches: list[RunBatch] = field(default_factory=list)


def play(table: ExitTable, rate: float = 30.0, **stated: object) -> Played:
    exits = StatedExits(**stated)  # type: ignore[arg-type]
    ramps, batches = np.full(len(table), -2), []
    recipe = PoolRecipe("slack", exits=True)

    def answered(request: object, outcome: Outcome) -> None:
        assert isinstance(request, Request)
        ramps[request.id] = -1 if outcome.ramp is None else outcome.ramp

    def watch(events: list[Event], now: float, commands: list[Command]) -> None:
        batches.extend(command for command in commands if isinstance(command, RunBatch))

    planner = ExitsPlanner()
    simulation = Simulation(
        Engine(
            lambda pool, max_batch, view: recipe.parts(
                CorrectedTimes(table.times), max_batch=max_batch, view=view
            )
        ),
        Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", 8),), (Route("m", POOL),)),
        AsExpected(CorrectedTimes(table.times)),
        answered=answered,
        watch=watch,
        begin=-2.0,
        planners=(planner,),
        stated={"m": exits},
        job_s=0.01,
        exits={"m": TableExits(table, exits)},
    )
    slo = 4.0 * float(table.whole[0])
    requests = (
        Request(id, "m", id / rate, id / rate + slo, session=session, frame=frame)
        for id in range(len(table))
        for session, frame in [table.frame(id)]
    )
    simulation.run(requests)
    return Played(planner.status()[POOL], ramps, batches)


@pytest.mark.parametrize("mode", [ExitMode.RELEASE, ExitMode.AUTO, ExitMode.SHRINK])
def test_frames_of_a_scene_get_its_answer_and_a_new_scene_is_seen(mode):
    table = DrawnScenes(exits=HARD, scene=80.0, flicker=0.0).table(1)
    without = play(table, mode=mode)
    played = play(table, mode=mode, remember_frames=2)
    assert (without.ramps >= 0).mean() < 0.4
    assert (played.ramps == 0).mean() > 0.4
    changes = played.status.answer_changes
    assert changes is not None
    assert changes.judged > 3
    assert changes.caught is not None
    assert changes.caught >= 0.9
    assert changes.delay_p95 is not None
    assert changes.delay_p95 <= 2
    assert played.status.accuracy >= 0.99
    assert without.status.answer_changes is None


def test_a_remembered_answer_serves_so_many_frames():
    table = DrawnScenes(exits=HARD, flicker=0.0, scene=1e9).table(1)
    for frames in (1, 2, 5):
        ramps = play(table, mode=ExitMode.SHRINK, remember_frames=frames).ramps
        runs = np.diff(np.flatnonzero(np.concatenate(([True], ramps != 0, [True])))) - 1
        assert runs.max() == frames


def test_a_remembered_answer_has_an_age_limit():
    table = DrawnScenes(exits=HARD, flicker=0.0, scene=1e9).table(1)
    stated = {"mode": ExitMode.SHRINK, "remember_frames": 5}
    assert (play(table, 10.0, remember_s=0.15, **stated).ramps == 0).any()
    assert not (play(table, 10.0, remember_s=0.05, **stated).ramps == 0).any()


def test_hidden_changes_alarm_and_memory_is_used_no_more():
    # From the middle on, new scenes do not look different.
    long = replace(HARD, inputs=4_000)
    scenes = DrawnScenes(exits=long, scene=60.0, flicker=0.0, alike_from=2_000)
    played = play(scenes.table(2), mode=ExitMode.SHRINK, remember_frames=20)
    before, after = (played.ramps[:2_000] == 0).mean(), (played.ramps[3_000:] == 0).mean()
    assert before > 0.4
    assert after < 0.3 * before
    changes = played.status.answer_changes
    assert changes is not None
    assert changes.alarms + played.status.alarms > 0


def test_sessions_do_not_see_each_other():
    table = DrawnScenes(exits=HARD, sessions=3, flicker=0.0).table(3)
    assert (play(table, remember_frames=2).ramps == 0).mean() > 0.3
    assert table.answers is not None
    blind = replace(table, session=np.arange(len(table)))  # each frame is a session
    assert not (play(blind, remember_frames=2).ramps == 0).any()


def test_runs_of_frames_stay_to_the_end_where_others_leave():
    table = DrawnScenes(exits=HARD, flicker=0.0).table(1)
    played = play(table, mode=ExitMode.SHRINK, remember_frames=20)
    held = [
        (member, place in run.batch.held)
        for run in played.batches[-500:]
        for place, member in enumerate(run.batch.members)
        if not run.batch.judged
    ]
    assert {is_in_run(member.session, member.frame) for member, at_end in held if at_end} == {True}
    assert not any(is_in_run(member.session, member.frame) for member, at_end in held if not at_end)


def test_every_session_is_judged_in_runs():
    for session in (1, 2, 77):
        frames = [is_in_run(session, frame) for frame in range(1, 1_601)]
        assert sum(frames) == 160
        edges = [place for place in range(1, 1_600) if frames[place] and not frames[place - 1]]
        assert set(np.diff(edges)) == {160}
    assert not any(is_in_run(0, frame) for frame in range(1_000))


def test_frames_are_numbered_within_their_session():
    table = replace(DrawnScenes(exits=HARD).table(1).part(0, 6), session=np.array([4, 9] * 3))
    numbers = [table.frame(id) for id in range(8)]
    assert numbers == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 1), (4, 1)]
    assert DrawnScenes(exits=HARD).table(1).part(10, 12).frame(1) == (1, 2)


def test_a_table_with_memory_is_read_as_it_was_written(tmp_path):
    table = DrawnScenes(exits=HARD).table(1)
    table.save(tmp_path / "table.npz")
    again = read_exit_table(tmp_path / "table.npz")
    for name in ("early", "doubt", "answers", "session", "uncertainty"):
        assert (getattr(again, name) == getattr(table, name)).all()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"answers": None}, "early: expected 'answers' and 'doubt' beside it"),
        ({"doubt": None}, "early: expected 'answers' and 'doubt' beside it"),
        ({"doubt": np.full(2_500, 1.5)}, "doubt: expected shares of at most 1"),
        ({"early": np.zeros((3, 2))}, r"early: expected finite numbers of shape \(2500, features"),
        ({"early": np.full((2_500, 2), np.nan)}, "early: expected finite"),
        ({"session": np.zeros(3, int)}, r"session: expected shape \(2500,\)"),
        ({"answers": np.full(2_500, -1)}, "answers: expected numbers from 0"),
    ],
)
def test_arrays_that_contradict_the_table_are_refused(changed, says):
    with pytest.raises(ExitTableError, match=says):
        replace(DrawnScenes(exits=HARD).table(1), **changed)


def test_a_table_without_early_features_cannot_play_memory():
    with pytest.raises(ExitTableError, match="early: expected features"):
        TableExits(HARD.table(1), StatedExits(remember_frames=2))


def test_memory_gives_nothing_too_old_or_newer():
    memory: SessionMemory[str] = SessionMemory(2, 5.0)
    memory.keep(1, 10, 100.0, "a")
    recalled = {frame: memory.recall(1, frame, now=101.0) for frame in range(9, 14)}
    assert recalled == {9: None, 10: None, 11: "a", 12: "a", 13: None}
    assert memory.recall(1, 11, now=105.1) is None
    assert memory.recall(2, 11, now=101.0) is None
    memory.keep(1, 9, 102.0, "late")  # a lane was slower
    assert memory.recall(1, 11, now=102.0) == "a"
    memory.forget(1)
    assert len(memory) == 0
    assert memory.nbytes == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99)), max_size=99))
def test_memory_is_bounded_and_its_bytes_are_counted(steps):
    memory: SessionMemory[int] = SessionMemory(3, 50.0)
    for at, (session, frame, nbytes) in enumerate(steps):
        memory.keep(session, frame, float(at), frame, nbytes << 20)
        entries = memory._entries.values()
        assert memory.nbytes == sum(entry[3] for entry in entries) <= 64 << 20
        assert all(at - entry[1] <= 50.0 for entry in entries)
        assert 0 not in memory._entries


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1))
def test_distances_are_shares(pairs):
    left, right = np.array(pairs).T
    assert 0.0 <= float(distance(left, right)) <= 1.0 + 1e-9
    assert float(distance(left, left)) == 0.0
    assert float(distance(left, right)) == pytest.approx(float(distance(right, left)))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1), st.floats(0.0, 1.0))
def test_an_answer_is_reused_where_the_model_was_sure_and_the_frame_is_alike(pairs, doubt):
    features, remembered = np.array(pairs).T
    unsure = float(reuse_uncertainty(features, remembered, doubt))
    apart = float(distance(features, remembered))
    assert unsure == pytest.approx(apart * max(doubt, LEAST_DOUBT))
    assert unsure <= float(reuse_uncertainty(features, remembered, 1.0))
