"""What frames have been worth lately."""

from __future__ import annotations

import pytest

from slacktide.domain import Reason
from slacktide.engine.request_table import ModelCounts
from slacktide.planning.pipelines.measured import LEAST_FRAMES, MeasuredWorth


def counts(**ends: int) -> dict[str, ModelCounts]:
    model_counts = ModelCounts()
    model_counts.by_reason |= {Reason[name]: count for name, count in ends.items()}
    return {"cars": model_counts}


def test_partial_answers_are_worth_half_refusals_nothing_and_variants_what_they_are() -> None:
    worth = MeasuredWorth()
    assert worth.share() is None
    worth.note(counts(ON_TIME=5), now=0.0)
    worth.note(counts(ON_TIME=4 + LEAST_FRAMES), now=1.0)
    assert worth.share() is None  # too few
    worth.note(counts(ON_TIME=105), now=2.0)
    assert worth.share() == 1.0
    worth.note(counts(ON_TIME=165, PARTIAL=30, EXPIRED=10), now=3.0)
    assert worth.share() == pytest.approx((160 + 15) / 200)
    worth.ran(3, 1.0)
    worth.ran(1, 0.6)
    worth.note(counts(ON_TIME=165, PARTIAL=30, EXPIRED=10), now=3.5)
    assert worth.share() == pytest.approx(175 / 200 * 0.9)
    worth.note(counts(ON_TIME=165, PARTIAL=30, EXPIRED=90), now=4.0)
    assert worth.share() == 0.0  # much is lost


def test_old_frames_do_not_count_unless_frames_are_few() -> None:
    worth = MeasuredWorth()
    for at in range(30):
        worth.note(counts(PARTIAL=10 * min(at, 10), ON_TIME=10 * max(0, at - 10)), now=float(at))
    assert worth.share() == 1.0
    slow = MeasuredWorth()
    for at in range(60):
        slow.note(counts(ON_TIME=at), now=float(at))
    assert slow.share() == 1.0  # a frame a second: what is looked at is longer


def test_pipelines_that_go_begin_anew() -> None:
    worth = MeasuredWorth()
    worth.note(counts(ON_TIME=0), now=0.0)
    worth.note(counts(ON_TIME=100), now=1.0)
    worth.note({}, now=2.0)
    assert worth.share() is None


def test_hours_without_frames_take_no_memory():
    worth = MeasuredWorth()
    worth.note(counts(ON_TIME=100), now=0.0)
    for at in range(3600):
        worth.note(counts(ON_TIME=180, PARTIAL=20), now=1.0 + at)
    assert len(worth._history) < 10
    assert worth.share() == pytest.approx(0.9)
    worth.note(counts(ON_TIME=200, PARTIAL=20), now=4000.0)
    assert worth.share() == 1.0
