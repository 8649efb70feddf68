"""The whole of it, tiny; the published system by its parts; instances of others."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from slacktide.client.messages import (
    Connected,
    EncodeFrame,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameResult,
    ReportOutcome,
    SendFrame,
)
from slacktide.domain import PoolId, Reason, Replica, Request
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.lab.load.report import Provenance
from slacktide.planning.variants import Variant
from slacktide_papers.command import reproduce as command
from slacktide_papers.harness.experiments import TraceCell, TraceScope
from slacktide_papers.harness.run import reproduce
from slacktide_papers.harness.show import render
from slacktide_papers.harness.state import ReproduceError, Results
from slacktide_papers.jellyfish import experiments as room
from slacktide_papers.jellyfish.exits import figure_20, measured_exits
from slacktide_papers.jellyfish.experiments import (
    B_L,
    CONSTANT,
    DA,
    EXITS,
    LOADING,
    OURS,
    PUBLISHED,
)
from slacktide_papers.jellyfish.goals import FrameRow, goals_of
from slacktide_papers.jellyfish.instances import planned, read_instances
from slacktide_papers.jellyfish.paper import PAPER
from slacktide_papers.jellyfish.play import play
from slacktide_papers.jellyfish.published import (
    GUESS,
    ErrorFilter,
    PublishedClient,
    PublishedLink,
)
from slacktide_papers.jellyfish.published_workers import PublishedWorkers, WorkerQueue
from slacktide_papers.jellyfish.setting import (
    HOMOGENEOUS,
    LARGE,
    MIXED,
    SCATTERED,
    SIDES,
    load_data,
)

TINY = TraceScope(seeds=1, duration=4, quick=True)
ORIGIN = Provenance("2026-01-01T00:00:00+00:00", {"python": "3"}, "a machine", "abc")
SETTING = "synthetic 2 at 25 fps, 100 ms"
REPLICA = Replica(1, PoolId("detector", "1", "gpu-0"), "gpu-0", (0,), 12)


def test_there_are_the_papers_settings():
    assert len(HOMOGENEOUS) == 3 * 24
    assert len(MIXED) == 6
    assert len([setting for setting in LARGE.values() if setting.clients == 32]) == 2


@pytest.mark.parametrize("contender", [PUBLISHED, OURS, B_L, *DA, *EXITS, *LOADING[::2]], ids=str)
def test_a_run_repeats(contender: Any) -> None:
    cell = TraceCell(SETTING, contender, 1, 4)
    once = play(cell)
    assert once == play(cell)
    assert once.frames > 100
    assert 0 <= once.beyond <= once.missed <= once.frames
    assert once.missed < 0.5 * once.frames or contender in DA


def test_ours_is_at_least_as_accurate_as_the_published_system():
    ours, theirs = (play(TraceCell(SETTING, contender, 1, 8)) for contender in (OURS, PUBLISHED))
    assert ours.missed <= 0.01 * ours.frames
    assert theirs.missed <= 0.02 * theirs.frames
    assert ours.accuracy >= 0.98 * theirs.accuracy


@pytest.mark.parametrize("setting", [name for name in SCATTERED if name.startswith("lte 1 x")])
def test_batch_times_that_scatter_are_planned_for(setting: str) -> None:
    ours, small, large = (
        play(TraceCell(setting, contender, 1, 20))
        for contender in (OURS, CONSTANT[0], CONSTANT[-1])
    )
    assert ours == play(TraceCell(setting, OURS, 1, 20))
    assert ours.frames == small.frames == large.frames
    assert (small.switches, small.mismatches) == (0, 0)
    assert small.missed < large.missed
    assert ours.missed < large.missed
    assert ours.accuracy > small.accuracy


def test_bursts_of_slowness_lose_frames_that_scatter_alone_does_not() -> None:
    calm, bursts = (
        play(TraceCell(f"lte 1 x 4 at 10 fps, 150 ms, p99 1.2 x p50{more}", CONSTANT[0], 1, 40))
        for more in ("", " and bursts")
    )
    assert calm.missed < 0.02 * calm.frames < 0.05 * bursts.frames < bursts.missed


def test_exits_answer_earlier_and_those_that_leave_cost_accuracy():
    setting = "wifi 1 x 4 at 15 fps, 150 ms"
    without, leave, run_on = (
        play(TraceCell(setting, contender, 1, 8)) for contender in (OURS, *EXITS)
    )
    assert leave.latency_ms[50] < without.latency_ms[50]
    assert leave.busy < without.busy
    assert leave.missed == run_on.missed == 0
    assert 0.9 * without.accuracy < run_on.accuracy < without.accuracy


def test_a_larger_share_that_leaves_saves_more_of_a_batch():
    exits = [row for row in figure_20() if row.batch == 8]
    assert [row.share for row in exits] == pytest.approx([0.25, 0.3, 0.35, 0.4])
    saved = [1.0 - row.batch_ms / row.whole_ms for row in exits]
    first, after = measured_exits().parts
    for row, share in zip(exits, saved, strict=True):
        assert share == pytest.approx(1.0 - first - (1.0 - row.share) * after, abs=0.1)
        assert list(row.quantiles_ms) == sorted(row.quantiles_ms)
        assert row.quantiles_ms[0] < 0.7 * row.whole_ms, "the first answers leave"
    assert measured_exits().relative_accuracy(0.0) == 1.0
    assert measured_exits().relative_accuracy(1.0) < measured_exits().relative_accuracy(0.5) < 1.0


def test_rows_goals_and_tables(tmp_path: Path) -> None:
    results = Results(tmp_path / "state", "code")
    names = PAPER.chosen(("figure-10", "figure-11", "figure-18", "figure-20"))
    reproduction = reproduce(PAPER, names, TINY, results, provenance=ORIGIN)
    assert [(row.setting, row.contender) for row in reproduction.rows] == [
        (SETTING, "ours"),
        (SETTING, "published"),
    ]
    assert reproduction.rows[1].printed == "≤ 1.00%"
    assert {goal.what for goal in reproduction.goals} >= {
        "accuracy over all frames, ours ÷ published"
    }
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render(reproduction))
    shown = console.export_text()
    assert "608" in shown
    assert "4 × 16" in shown
    assert "batch time" in shown
    assert "Mbit is 10⁶ bits" in shown


def test_goals_judge_what_rows_say():
    row = FrameRow(
        "figure-12", SETTING, "ours", 0.02, 0.01, 0.01, 0.4, 0.5, 60.0, 90.0, None, 0.0, 1, ""
    )
    theirs = replace(row, contender="published", miss_rate=0.05, printed="≤ 1.00%")
    resident = replace(row, contender="ours, 5 resident", hit_rate=0.95)
    goals = {(goal.setting, goal.what): goal for goal in goals_of([row, theirs, resident])}
    assert not goals["Figure 12, synthetic", "ours: misses that could be saved"].met
    assert not goals[SETTING, "published: misses"].met
    assert goals["WiFi and LTE", "prefetch hits, 5 resident"].met


def test_where_batch_times_scatter_ours_is_judged_beside_the_best_size():
    setting = next(iter(SCATTERED))
    best = FrameRow(
        "scatter", setting, "only 320", 0.02, 0.0, 0.02, 0.42, 0.5, 60.0, 90.0, None, 0.0, 1, ""
    )
    smaller = replace(best, contender="only 224", miss_rate=0.0, accuracy=0.35)
    for accuracy, missed, met in ((0.41, 0.01, True), (0.39, 0.01, False), (0.43, 0.03, False)):
        ours = replace(best, contender="ours", accuracy=accuracy, miss_rate=missed)
        (goal,) = goals_of([ours, smaller, best])
        assert (goal.what, goal.met) == ("accuracy and misses beside only 320", met)


# ── the published system ─────────────────────────────────────────────────────────────────────────


def queue(batch: int = 2) -> tuple[WorkerQueue, PublishedWorkers]:
    workers = PublishedWorkers([Variant("128", 0.2, (0.02, 0.03, 0.04))], ["gpu-0"])
    workers.lanes["gpu-0"].target = (0, batch)
    workers.mapped = frozenset(("a",))
    return WorkerQueue(workers, "gpu-0"), workers


def frame(id: int, deadline: float, client: str = "a") -> Request:
    return Request(id=id, model="detector", arrival=0.0, deadline=deadline, client=client)


def test_a_worker_fills_its_batch_while_its_tightest_frame_has_time():
    worker, _ = queue()
    assert isinstance(worker.propose(REPLICA, now=0.0), Idle)
    worker.add(frame(1, 0.1), now=0.0)
    waits = worker.propose(REPLICA, now=0.0)
    assert isinstance(waits, WaitUntil)
    assert waits.at == pytest.approx(0.1 - 0.03 - 0.01)
    worker.add(frame(2, 0.2), now=0.0)
    assert isinstance(worker.propose(REPLICA, now=0.0), Proposal)


def test_a_frame_is_dropped_when_its_batch_would_be_five_ms_too_late():
    worker, _ = queue()
    worker.add(frame(1, 0.1), now=0.0)
    expiry = worker.next_expiry()
    assert expiry == pytest.approx(0.1 + 0.005 - 0.03)
    assert worker.expire(now=0.074) == []
    assert worker.expire(now=0.0751) == [(1, Reason.EXPIRED)]
    assert worker.add(frame(2, 1.0, client="unmapped"), now=0.0) is Reason.BEHIND_WORK


def test_the_client_estimates_its_link_and_steps_down():
    sizes = {128: 1e4, 256: 4e4, 512: 16e4}
    client = PublishedClient(tuple(sizes), sizes.__getitem__, rate=10.0, slo=0.1)
    client.handle(Connected(), now=0.0)
    actions = client.handle(FrameCaptured(1, 1280, 720, 0.0), now=0.0)
    assert actions == (EncodeFrame(1, 128),)
    assert client.handle(FrameEncoded(1, 10_000), now=0.0) == (SendFrame(1, 0.0, GUESS),)
    client.handle(FrameAcknowledged(1), now=0.02)
    answer = FrameAnswered(1)
    (reported,) = client.handle(answer, now=0.05)
    assert isinstance(reported, ReportOutcome)
    assert reported.outcome.result is FrameResult.ANSWERED
    # 10,000 bytes in 20 ms: 512 kB/s carry ten frames of 40,000 bytes a second, not of 160,000.
    client._advised = 512
    assert client.handle(FrameCaptured(2, 1280, 720, 0.1), now=0.1) == (EncodeFrame(2, 256),)


def test_the_filter_and_the_mean_divide_by_nothing():
    smooth = ErrorFilter()
    assert [smooth.add(0.02) for _ in range(20)] == [0.02] * 20
    link = PublishedLink("a", 2.0)
    link.received(10_000, 128, 0.01, 1e6, now=0.0)
    measured = link.received(10_000, 128, 0.01, 4e6, now=0.1)
    assert measured.bytes_per_s == pytest.approx(1.6e6)


# ── instances of others ──────────────────────────────────────────────────────────────────────────


def document() -> dict[str, Any]:
    data = load_data(None)
    return {
        "profile": [
            {
                "name": variant.name,
                "accuracy": variant.accuracy,
                "frame_bytes": data.frame_bytes[side],
                "batch_ms": [1e3 * seconds for seconds in variant.seconds],
            }
            for variant, side in zip(data.variants, SIDES, strict=True)
        ],
        "instances": [
            {"workers": 2, "clients": [{"rate": 15, "slo_ms": 100, "mbps": 20}] * 4},
            {"name": "slow", "workers": 1, "clients": [{"rate": 25, "slo_ms": 75, "mbps": 0}]},
        ],
    }


def test_instances_are_planned_by_each_planner(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(document()))
    plans = [p for name, fleet in read_instances(path) for p in planned(name, fleet, exact_s=0.0)]
    by = {(plan.instance, plan.planner): plan for plan in plans}
    assert by["0", "search"].mapped == 4
    assert by["0", "published"].objective <= by["0", "search"].objective
    assert by["0", "search"].objective <= by["0", "bound"].objective + 1e-6
    assert by["slow", "search"].mapped == 0
    ran = CliRunner().invoke(
        command, ["jellyfish", "plan", "--instances", str(path), "--json", "-"]
    )
    assert ran.exit_code == 0
    assert {row["planner"] for row in json.loads(ran.output)} >= {"search", "published"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["instances"][0].update(workers=0), "instances[0].workers"),
        (lambda d: d["instances"][1]["clients"][0].update(mbps=-1), "clients[0].mbps"),
        (lambda d: d["profile"][3].update(batch_ms=[]), "profile[3].batch_ms"),
        (lambda d: d["profile"][3].update(batch_ms=[5.0, 4.0]), "seconds"),
        (lambda d: d["profile"][15].update(accuracy=0.1), "accuracies"),
        (lambda d: d.update(profile=[]), "profile"),
        (lambda d: d.update(more=1), "more"),
    ],
)
def test_a_bad_file_is_refused_by_the_field(tmp_path: Path, change: Any, message: str) -> None:
    instances = document()
    change(instances)
    path = tmp_path / "given.json"
    path.write_text(json.dumps(instances))
    with pytest.raises(ReproduceError) as refused:
        read_instances(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith("--instances: ")


def test_plan_and_instances_belong_together(tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["jellyfish", "plan"])
    assert ran.exit_code != 0
    ran = CliRunner().invoke(command, ["jellyfish", "--instances", str(tmp_path / "none.json")])
    assert ran.exit_code != 0
    assert room.EXPERIMENTS.keys() >= {"figure-12", "table-2", "ablations"}
