"""What is reported on a link, and when."""

from __future__ import annotations

import math

import pytest

from slacktide.peers import LoadReporter, ModelLoad


def load(wait_s: float, model: str = "m") -> ModelLoad:
    return ModelLoad(model, wait_s, 0.010, 0.004)


def test_only_changes_are_reported_and_not_too_often():
    reporter = LoadReporter()
    first = reporter.report([load(0.0), load(0.5, "n")], 0, now=0.0)
    assert first is not None
    assert len(first.loads) == 2
    assert reporter.report([load(0.1), load(0.5, "n")], 0, now=0.05) is None
    second = reporter.report([load(0.1), load(0.4, "n")], 0, now=0.1)
    assert second is not None
    assert [changed.model for changed in second.loads] == ["m"]  # n has aged as expected


def test_answers_take_a_report_along_at_once():
    reporter = LoadReporter()
    reporter.report([load(0.0)], 0, now=0.0)
    report = reporter.report([load(0.0)], 1, now=0.001, answering=True)
    assert report is not None
    assert (report.loads, report.received) == ((), 1)
    busy = reporter.report([load(0.03)], 2, now=0.002, answering=True)
    assert busy is not None
    assert busy.loads == (load(0.03),)
    assert reporter.report([load(0.03)], 2, now=0.002, answering=True) is None


def test_what_does_not_change_is_repeated_now_and_then():
    reporter = LoadReporter()
    never = load(math.inf)
    assert reporter.report([never], 0, now=0.0) is not None
    assert reporter.report([never], 0, now=0.2) is None
    assert reporter.report([never], 0, now=0.5) is not None


@pytest.mark.parametrize(
    ("last", "after_s", "wait_s", "changed"),
    [
        (0.1, 0.1, 0.0, False),  # it has aged
        (0.2, 0.1, 0.0, True),
        (0.0, 0.2, 0.0005, False),
        (math.inf, 0.2, math.inf, False),
        (math.inf, 0.2, 0.0, True),
    ],
)
def test_a_wait_that_has_only_aged_is_not_reported(last, after_s, wait_s, changed):
    reporter = LoadReporter()
    reporter.report([load(last)], 0, now=5.0)
    report = reporter.report([load(wait_s)], 0, now=5.0 + after_s)
    assert (report is not None) is changed


def test_a_model_that_is_forgotten_is_reported_again():
    reporter = LoadReporter()
    reporter.report([load(0.0)], 0, now=0.0)
    reporter.forget("m")
    assert reporter.report([load(0.0)], 0, now=0.2) is not None
