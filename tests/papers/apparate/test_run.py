"""The whole of it on drawn tables; baselines; a table made by a model."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console
from tests.lab.simulation.drawn_exit_tables import DrawnExits
from typer.testing import CliRunner

from slacktide.exits.training import RampTrainer
from slacktide.lab.examples import example, make_inputs
from slacktide.lab.load.report import Provenance
from slacktide.lab.simulation.exit_tables import ExitTable
from slacktide_papers.apparate import deeper_ramps, stage_times, stream_features
from slacktide_papers.apparate.baselines import (
    AnsweredRows,
    best_single,
    offline_optimum,
    online_optimum,
    tuned_once,
)
from slacktide_papers.apparate.class_groups import GROUPS, merged, with_groups
from slacktide_papers.apparate.deeper_ramps import DEEBERT, hidden_layers, units
from slacktide_papers.apparate.experiments import (
    APPARATE,
    AUTO,
    EXPERIMENTS,
    MEMORY,
    OFFLINE,
    ONCE,
    ONLINE,
    SHRINK,
    VANILLA,
    ExitCell,
    ExitScope,
)
from slacktide_papers.apparate.make_tables import TableOrder, make_table
from slacktide_papers.apparate.paper import PAPER
from slacktide_papers.apparate.play import changes, play
from slacktide_papers.apparate.ramp_styles import OURS, compared_styles
from slacktide_papers.apparate.setting import STREAMS, arrivals, load_table, minute_counts
from slacktide_papers.apparate.stage_times import opened
from slacktide_papers.apparate.stream_features import StreamFeatures
from slacktide_papers.apparate.tuning import timed_searches
from slacktide_papers.command import reproduce as command
from slacktide_papers.harness.run import reproduce
from slacktide_papers.harness.show import render
from slacktide_papers.harness.state import ReproduceError, Results

ORIGIN = Provenance("2026-01-01T00:00:00+00:00", {"python": "3"}, "a machine", "abc")
VIDEO = DrawnExits(inputs=1_500)
TEXT = replace(VIDEO, rate=0.0)


@pytest.fixture(scope="session")
def scope(tmp_path_factory: pytest.TempPathFactory) -> ExitScope:
    folder = tmp_path_factory.mktemp("tables")
    for name, drawn in (("video", VIDEO), ("text", TEXT)):
        drawn.table(2).save(folder / f"{name}.npz")
    return ExitScope().with_tables([folder / "video.npz", folder / "text.npz"])


def cell(scope: ExitScope, contender: object, place: int = 0, **changed: object) -> ExitCell:
    table = scope.tables[place]
    fields = {"table": table.path, "digest": table.digest, "setting": table.name, "seed": 1}
    return ExitCell(contender=contender, **{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("contender", [VANILLA, APPARATE, AUTO, OFFLINE, ONLINE[0], ONCE[2]])
def test_a_run_repeats(scope: ExitScope, contender: object) -> None:
    for place in (0, 1):
        once = play(cell(scope, contender, place))
        assert once == play(cell(scope, contender, place))
        assert once.requests == 1_500
        assert once.on_time <= once.answered <= once.requests
        assert once.latency_ms == sorted(once.latency_ms)
        assert 0.0 <= once.exits <= 1.0


def test_managed_exits_save_time_and_keep_their_promise(scope: ExitScope) -> None:
    vanilla, ours, best = (
        play(cell(scope, contender)) for contender in (VANILLA, APPARATE, OFFLINE)
    )
    assert vanilla.agreement == best.agreement == 1.0
    assert ours.agreement >= 0.99
    assert best.latency_ms[50] < ours.latency_ms[50] < vanilla.latency_ms[50]
    assert ours.latency_ms[99] <= 1.03 * vanilla.latency_ms[99]


def test_rows_leave_again_after_ramps_have_been_learnt_anew(
    scope: ExitScope, tmp_path: Path
) -> None:
    table = VIDEO.table(2)
    replace(table, revisions=1 + (np.arange(len(table)) >= 800)).save(tmp_path / "anew.npz")
    anew = ExitScope().with_tables([tmp_path / "anew.npz"])
    frozen, learning = (play(cell(scope_, APPARATE)) for scope_ in (scope, anew))
    assert 0.5 * frozen.exits < learning.exits < 0.95 * frozen.exits
    assert learning.agreement >= 0.99


def test_the_highest_load_is_higher_with_exits(scope: ExitScope) -> None:
    at_most = {"on_time": 0.9, "platform": "slack", "inputs": 500}
    without, ours = (play(cell(scope, name, **at_most)) for name in (VANILLA, SHRINK))
    assert 0.5 <= without.load <= 1.1
    assert without.load < ours.load
    assert ours.on_time >= 0.9 * ours.requests


def test_three_groups_have_the_probabilities_of_their_classes() -> None:
    example_net = example("chained")
    model = onnx.load_model_from_string(example_net.onnx())
    session = opened(with_groups(model, example_net.classes).SerializeToString())
    frames = make_inputs("chained", 3, 1).batch()
    logits, groups = session.run(None, frames)
    assert np.allclose(groups, merged(logits, example_net.classes), atol=1e-5)
    ten, three = (np.exp(part) / np.exp(part).sum(axis=1)[:, None] for part in (logits, groups))
    assert np.allclose(three[:, 0], ten[:, 0], atol=1e-6)
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(
        example_net.classes
    )


def test_of_an_hour_the_first_tenth_and_a_quarter_of_the_rest_are_used() -> None:
    stream = STREAMS["chained/long_day, groups"]
    assert (stream.trained, stream.inputs) == (10_800, 35_100)
    places = [stream.place(number) for number in range(stream.inputs)]
    assert places[:11_700] == list(range(11_700))
    assert places[11_700:11_702] == [14_400, 14_401]
    assert places[-1] == 108_000 - 2_701
    assert STREAMS["chained/rush_hour"].inputs == 28_800
    assert STREAMS["chained/day"].place(28_799) == 28_799 == STREAMS["chained/day"].inputs - 1


def test_a_change_is_caught_by_the_first_right_answer_within_two_frames() -> None:
    table = replace(
        VIDEO.table(2).part(0, 14),
        answers=np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 1, 1]),
        session=np.array([0] * 12 + [1] * 2),
    )
    right = np.ones(14, bool)
    assert changes(table, right) == (1.0, 0.0)
    right[[2, 3, 5, 9, 10, 11]] = False
    assert changes(table, right) == (pytest.approx(2 / 3), math.inf)
    assert changes(VIDEO.table(2), np.ones(1_500, bool)) == (None, None)


def test_remembered_answers_are_counted(tmp_path: Path) -> None:
    table = VIDEO.table(2)
    classes = np.arange(len(table)) // 15 % 3
    early = np.eye(3)[classes] + 0.1 * np.random.default_rng(1).random((len(table), 3))
    doubt = np.full(len(table), 0.1)
    replace(table, early=early, doubt=doubt, answers=classes).save(tmp_path / "memory.npz")
    run = play(cell(ExitScope().with_tables([tmp_path / "memory.npz"]), MEMORY))
    assert run.remembered > 0.1
    assert run.agreement >= 0.99
    assert run.caught is not None
    assert run.caught >= 0.9


def test_without_exits_just_under_a_fifth_of_texts_is_dropped(scope: ExitScope) -> None:
    vanilla = play(cell(scope, VANILLA, 1))
    assert 0.78 <= vanilla.answered / vanilla.requests <= 0.85


@pytest.mark.slow
def test_rows_goals_and_tables(scope: ExitScope, tmp_path: Path) -> None:
    names = ("figure-9", "figure-11", "figure-13", "figure-16", "table-2", "deadline")
    results = Results(tmp_path / "state", "code")
    small = replace(scope, inputs=600)
    reproduction = reproduce(PAPER, names, small, results, provenance=ORIGIN)
    assert reproduction.stored_cells == 0
    assert {row.experiment for row in reproduction.rows} == {*names} - {"figure-9", "figure-11"}
    assert all(row.saved_p50 == 0.0 for row in reproduction.rows if row.policy == "vanilla")
    assert {goal.setting for goal in reproduction.goals} == {"video", "text"}
    again = reproduce(PAPER, names, small, results, provenance=ORIGIN)
    assert again.stored_cells == again.cells
    assert again.rows == reproduction.rows
    text = io.StringIO()
    Console(file=text, width=200).print(render(reproduction))
    assert "tuned once, oracle" in text.getvalue()
    assert "+ 2 of the model's layers" in text.getvalue()
    assert len(reproduction.to_json()) > 1_000
    assert reproduction.to_csv().startswith("experiment,setting,case,policy")


def test_every_experiment_has_points_on_videos_or_texts(scope: ExitScope) -> None:
    for name, experiment in EXPERIMENTS.items():
        if experiment.points is not None:
            points = list(experiment.points(scope))
            assert points, name
            assert any(point.contender == VANILLA for point in points), name


@pytest.mark.parametrize("kind", ["one", "each", "first", "oracle"])
def test_exits_tuned_once_keep_to_the_loss_on_what_they_are_tuned_on(kind: str) -> None:
    table = VIDEO.table(5)
    thresholds = np.array(tuned_once(table, kind, 0.01))
    rows = {"first": np.arange(150), "oracle": np.arange(1_500)}.get(kind, np.arange(0, 1_500, 10))
    sure = table.uncertainty[rows] < thresholds
    wrong = [row for row in range(len(rows)) if sure[row].any()]
    lost = sum(not table.agrees[rows[row], sure[row].argmax()] for row in wrong)
    assert lost <= 0.01 * len(rows)
    assert len(wrong) > 0.1 * len(rows)
    if kind == "one":
        assert len(set(thresholds.tolist())) == 1


def test_the_best_single_ramp_keeps_to_the_loss_and_saves_more_than_any_other() -> None:
    table = VIDEO.table(5)
    best, threshold = best_single(table, 0.01)
    saved = []
    for ramp in range(len(table.positions)):
        order = np.argsort(table.uncertainty[:, ramp])
        wrong = np.cumsum(~table.agrees[order, ramp])
        share = np.searchsorted(wrong, 0.01 * len(table), side="right") / len(table)
        gain = table.whole[0] - table.before[0, ramp] - table.ramp[0, ramp]
        saved.append((gain if share > 0.5 else 0.0, gain * share))
    assert best == max(range(len(saved)), key=lambda ramp: saved[ramp])
    leaves = table.uncertainty[:, best] < threshold
    assert leaves.mean() > 0.5
    assert (~table.agrees[leaves, best]).sum() <= 0.01 * len(table)


def rows_of(table: ExitTable) -> AnsweredRows:
    count = len(table)
    batches = np.arange(count) // 2
    return AnsweredRows(np.arange(count), batches, np.full(count, 2), np.full(count, 0.05))


def test_optima_end_answers_where_they_could_have_ended() -> None:
    table = VIDEO.table(7)
    rows = rows_of(table)
    best = offline_optimum(table, rows)
    agreeing = table.agrees.any(axis=1)
    assert table.agrees[agreeing, best[agreeing]].all()
    assert not any(table.agrees[row, : best[row]].any() for row in range(len(table)))
    online = online_optimum(table, rows, (20, 80), 0.01)
    early = online < len(table.positions)
    assert (~table.agrees[early, online[early]]).sum() <= 0.01 * len(table)
    assert not early[:40].any()
    latency = rows.ending_at(table, online)
    assert rows.ending_at(table, best).mean() < latency.mean() < 0.05
    assert (latency[~early] == 0.05).all()


def test_arrivals_follow_the_counts_of_minutes(tmp_path: Path) -> None:
    path = tmp_path / "azure_functions_2019_x.csv"
    path.write_text("function_id,time_s,invocations\n0,0,1\n1,0,2\n0,60,9\n1,60,0\n")
    assert minute_counts(tmp_path) == (3.0, 9.0)
    times = arrivals(6_000, 10.0, tmp_path, 3, even=False)
    assert (np.diff(times) >= 0).all()
    counts = np.bincount((times // 60).astype(int))[:6].tolist()
    assert 0.8 * 900 < max(counts) < 1.2 * 900
    assert 0.8 * 300 < min(counts) < 1.2 * 300
    path.write_text("a,b\n1,2\n")
    minute_counts.cache_clear()
    with pytest.raises(ReproduceError, match="azure"):
        minute_counts(tmp_path)


def test_the_search_finds_what_a_grid_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide_papers.apparate.tuning.STEPS", 11)
    searches = list(timed_searches("drawn", VIDEO.table(3), 0.01))
    assert [search.ramps for search in searches] == [2, 3, 8]
    assert all(search.of_grid is None or search.of_grid >= 0.96 for search in searches)


@pytest.mark.slow
def test_a_table_is_made_by_its_model_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stage_times, "ROUNDS", {1: 1, 2: 1})
    monkeypatch.setattr(stage_times, "SECONDS", 0.0)
    monkeypatch.setattr(stream_features, "CHUNK", 96)
    monkeypatch.setattr(deeper_ramps, "EPOCHS", 1)
    order = TableOrder(STREAMS["whereabouts/drifting"], 352, 288)
    features = StreamFeatures(order.stream)
    stopped = features.rows(0, order.inputs)
    next(stopped)
    next(stopped)
    assert sorted(path.name for path in features.folder.iterdir()) == ["0.npz", "96.npz"]
    modified = (features.folder / "96.npz").stat().st_mtime_ns
    make_table(order)
    assert (features.folder / "96.npz").stat().st_mtime_ns == modified
    assert sorted(int(path.stem) for path in features.folder.iterdir()) == [0, 96, 192, 288]
    table = load_table(order.path(features), "any")
    assert len(table) == 64
    assert table.agrees.mean() > 0.5
    assert table.title == "whereabouts/drifting, 352 inputs, ramps of the first 288"

    deeper = replace(order, style=DEEBERT)
    make_table(deeper)
    deeper_table = load_table(deeper.path(features), "other")
    assert deeper_table.title == "whereabouts/drifting, DeeBERT, 352 inputs, ramps of the first 288"
    assert deeper_table.agrees.shape == table.agrees.shape
    assert (deeper_table.agreement != table.agreement).any()


def test_layers_of_their_own_part_what_a_line_cannot() -> None:
    rows = np.random.default_rng(1).standard_normal((4_000, 8)).astype(np.float32)
    logits = 8 * (np.abs(rows[:, :1]) - 0.7) * np.array([[1, -1]], np.float32)
    layers = hidden_layers(DEEBERT, rows[:3_000], logits[:3_000])
    trainer, line = RampTrainer(["x"], [0.5]), RampTrainer(["x"], [0.5])
    trainer.add([units(rows, layers)], logits)
    line.add([rows], logits)
    assert trainer.train()[0].agreement > 0.9
    assert line.train()[0].agreement < 0.7


def test_styles_of_ramps_are_compared_under_one_budget() -> None:
    table = VIDEO.table(3)
    styles = compared_styles("drawn", {OURS: table}, 0.01)
    assert [row.budget for row in styles] == [0.05] * 3 + [0.2] * 3
    ours, shallow, two = styles[:3]
    assert ours.ramps > shallow.ramps >= two.ramps
    assert ours.cost < shallow.cost < two.cost
    assert ours.saved > shallow.saved
    assert all(row.exits == row.saved == 0.0 for row in styles if not row.ramps)
    dear = replace(table, ramp=table.ramp + table.whole[:, None])
    assert not any(row.ramps for row in compared_styles("drawn", {OURS: dear}, 0.01))


def test_features_of_part_of_a_stream_are_those_of_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stream_features, "CHUNK", 16)
    features = StreamFeatures(STREAMS["text/breaking"])
    whole = list(features.rows(0, 40))
    assert [len(logits) for _, logits in whole] == [16, 16, 8]
    part = list(features.rows(12, 35))
    assert [len(logits) for _, logits in part] == [4, 16, 3]
    for number in range(len(features.graph.positions)):
        of_whole = np.concatenate([pooled[number] for pooled, _ in whole])
        of_part = np.concatenate([pooled[number] for pooled, _ in part])
        assert np.array_equal(of_whole[12:35], of_part)
    assert StreamFeatures(STREAMS["text/drifting"]).folder != features.folder


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_text("no")
    run = CliRunner().invoke(command, ["apparate", "--table", str(path)])
    assert run.exit_code == 2
    assert "mine.npz" in run.output
    run = CliRunner().invoke(command, ["apparate", "--table", str(tmp_path / "none.npz")])
    assert run.exit_code == 2
