"""How much of a frame's time is kept for the stages behind one."""

from __future__ import annotations

import pytest
from tests.pipelines.play import EngineStub, graph

from slacktide.domain import Plan, StagePlace
from slacktide.pipelines import FanOut
from slacktide.pipelines.hand_overs import HALVES_S, HandOvers
from slacktide.pipelines.reserves import Reserves

pytestmark = pytest.mark.replaces_parts  # the engine that `Frames` reads

LINE = graph("a>b", "b>c", "a>d")


def rest(seconds, *, max_batch=8, places=(), counted=()):
    engine = EngineStub(seconds, max_batch)
    engine.plan = Plan(places=places)
    fan_outs = [FanOut() for _ in LINE.edges]
    for edge, rows in counted:
        fan_outs[edge].observe(1, rows)
    return Reserves(LINE, fan_outs, engine), engine, fan_outs  # type: ignore[arg-type]


def test_the_longest_branch_counts():
    reserves, *_ = rest({"A": 0.01, "B": 0.02, "C": 0.03, "D": 0.04})
    assert reserves.reserve("a", 1.0, now=0.0) == pytest.approx(0.05)
    assert reserves.reserve("b", 1.0, now=0.0) == pytest.approx(0.03)
    assert reserves.reserve("c", 1.0, now=0.0) == 0.0


def test_rows_that_are_likely_count_in_as_many_batches_as_they_take():
    reserves, *_ = rest({"A": 0.01, "B": 0.001, "C": 0.0, "D": 0.0}, max_batch=4, counted=[(0, 10)])
    # 10 rows are three batches of four.
    assert reserves.reserve("a", 1.0, now=0.0) == pytest.approx(0.012)


def test_where_time_is_short_the_lack_is_shared():
    reserves, *_ = rest({"A": 0.01, "B": 0.02, "C": 0.03, "D": 0.04})
    assert reserves.reserve("a", 0.06, now=0.0) == pytest.approx(0.05)
    assert reserves.reserve("a", 0.054, now=0.0) == pytest.approx(0.045)
    assert reserves.reserve("a", -1.0, now=0.0) == 0.0
    gone, *_ = rest({"A": 0.01, "B": 0.02, "C": 0.03})
    assert gone.reserve("d", -1.0, now=0.0) == 0.0  # late, and its model is not served


def test_no_time_is_kept_for_a_branch_that_takes_more_than_there_is():
    """Else a moment in which a stage was slow would have every frame refused at the source, and no
    batch of that stage would ever show that it is fast again."""
    reserves, *_ = rest({"A": 0.01, "B": 0.02, "C": 9.0, "D": 0.03})
    assert reserves.reserve("a", 0.05, now=0.0) == pytest.approx(0.03)
    assert reserves.reserve("a", 0.02, now=0.0) == 0.0
    assert reserves.reserve("b", 0.02, now=0.0) == 0.0


def test_transfers_count_where_the_device_changes():
    far = {"device": "server", "p99": 0.02, "transfer": 0.1, "back": 0.05}
    places = (StagePlace("p", "b", **far), StagePlace("p", "c", **far))
    reserves, *_ = rest({"A": 0.01, "B": 9.0, "C": 9.0, "D": 0.04}, places=places)
    assert reserves.reserve("a", 1.0, now=0.0) == pytest.approx(0.1 + 0.02 + 0.02 + 0.05)
    assert reserves.place("b", now=0.0) is places[0]
    assert reserves.place("d", now=0.0) is None


def test_predictions_are_kept_for_a_moment_or_until_the_plan_changes():
    reserves, engine, _ = rest({"A": 0.01, "B": 0.02, "C": 0.03, "D": 0.0})
    assert reserves.reserve("a", 1.0, now=0.0) == pytest.approx(0.05)
    engine.seconds["C"] = 0.1
    assert reserves.reserve("a", 1.0, now=0.05) == pytest.approx(0.05)
    assert reserves.reserve("a", 1.0, now=0.15) == pytest.approx(0.12)
    engine.plan = Plan(places=(StagePlace("p", "c", "far", p99=0.0),))
    assert reserves.reserve("a", 1.0, now=0.15) == pytest.approx(0.02)


def test_a_model_that_is_not_served_takes_no_time():
    reserves, *_ = rest({"A": 0.01, "D": 0.0})
    assert reserves.reserve("a", 1.0, now=0.0) == 0.0
    assert reserves.most_rows["b"] == 0
    assert reserves.most_rows["a"] == 8


def test_fan_out_is_learnt_with_how_much_it_varies():
    fan_out = FanOut()
    assert (fan_out.mean, fan_out.burstiness, fan_out.likely(3)) == (1.0, 0.0, 3)
    for rows in (0, 8) * 500:
        fan_out.observe(2, rows)
    assert fan_out.mean == pytest.approx(2.0, abs=0.1)
    assert fan_out.burstiness == pytest.approx(1.0, abs=0.1)
    assert fan_out.likely(2) in (8, 9)
    for _ in range(1000):
        fan_out.observe(1, 0)
    assert fan_out.likely(5) == 1
    assert fan_out.mean == pytest.approx(0.0, abs=0.001)


def asked(reserves, fan_outs, seconds, *, begin=0.0, answered=0, step=0.1):
    """What is kept at last, where so many of a hundred requests are answered."""
    for number in range(round(seconds / step)):
        kept = reserves.reserve("a", 0.2, now=begin + number * step)
        if number % 100 < answered:
            fan_outs[0].observe(1, 20)
    return kept


def test_a_fan_out_that_has_a_stage_refused_is_forgotten():
    """Of a burst; as nothing is answered any more, no answer could say that it is over."""
    reserves, _, fan_outs = rest({"A": 0.01, "B": 0.0005, "C": 0.0, "D": 0.0}, counted=[(0, 80)])
    assert asked(reserves, fan_outs, 10.0) == pytest.approx(0.04)
    assert asked(reserves, fan_outs, 1.0, begin=10.0) == pytest.approx(0.0005)
    assert fan_outs[0].handed_on == 80  # what was counted stays


@pytest.mark.parametrize(
    ("answered", "step", "kept"), [(100, 0.1, 0.012), (30, 0.1, 0.012), (0, 11.0, 0.012)]
)
def test_a_stage_that_answers_or_has_time_left_forgets_nothing(answered, step, kept):
    seconds = {"A": 0.01, "B": 0.0005, "C": 0.0, "D": 0.0}
    reserves, _, fan_outs = rest(seconds, counted=[(0, 20)])
    assert asked(reserves, fan_outs, 60.0, answered=answered, step=step) == pytest.approx(kept)


def test_lateness_of_parts_is_expected_of_the_next_and_forgotten():
    there, place = HandOvers(), StagePlace("p", "a", "far", p99=0.02, transfer=0.1, back=0.01)
    assert there.seconds(place, 0.03, now=0.0) == pytest.approx(0.13)
    there.sent(-1, place, 0.03, now=0.0)
    assert there.seconds(place, 0.03, now=0.02) == pytest.approx(0.13 + 0.08)  # the link is busy
    assert there.seconds(place, 0.03, now=0.33) == pytest.approx(0.13 + 0.2)  # it should be back
    there.ended(-1, now=0.33)
    there.ended(-1, now=9.0)
    assert there.seconds(place, 0.03, now=0.33) == pytest.approx(0.13 + 0.2)
    assert there.seconds(place, 0.03, now=0.33 + HALVES_S) == pytest.approx(0.13 + 0.1)
    there.sent(-2, place, 0.03, now=5.0)
    there.ended(-2, now=5.1)
    assert there.seconds(place, 0.03, now=5.1) == pytest.approx(0.13)


def test_shared_stages_count_where_most_of_their_rows_run():
    far = {"device": "server", "p99": 0.02, "transfer": 0.1, "back": 0.05}
    places = (
        StagePlace("p", "a", **far, takes="late"),
        StagePlace("p", "b", **far, takes="timely"),
        StagePlace("p", "c", **far),
        StagePlace("p", "d", **far),
    )
    reserves, *_ = rest({"A": 0.01, "B": 0.3, "C": 9.0, "D": 9.0}, places=places)
    assert reserves.place("a", now=0.0) is None
    assert reserves.place("b", now=0.0) is places[1]
    assert [reserves.shared(name, now=0.0) for name in "abc"] == [*places[:2], None]
    assert reserves.elsewhere["a"] == pytest.approx(3 * 0.02 + 0.05)
    assert reserves.reserve("b", 1.0, now=0.0) == pytest.approx(0.1 + 0.02 + 0.05)
    assert reserves.reserve("a", 1.0, now=0.0) == pytest.approx(0.3 + 0.1 + 0.02 + 0.05)
    with pytest.raises(ValueError, match="takes of p/a"):
        StagePlace("p", "a", takes="some")
