"""The JSON document: nothing is lost on the way there and back; what is not one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from slacktide.lab.load.report.provenance import commit_of, gather
from slacktide.lab.reports import Comparison, Report, ReportError

Build = Callable[..., Report]


def test_round_trip(report: Build, records: Callable[..., Any]) -> None:
    first = report(
        records("a", [(0.0, 0.1, 0), (1.0, 0.2, 1)]),
        records("b", [(0.5, 0.001, 2)]),
        warnings=("late",),
        errors={"429 busy": 1},
        configuration={"streams": [{"rate": np.float64(3.0)}]},
        cores=1.5,
    )
    second = Report.from_json(first.to_json())
    assert second.to_json() == first.to_json()
    assert second.streams == first.streams
    assert second.timeline == first.timeline
    assert second.provenance == first.provenance
    assert second.configuration == {"streams": [{"rate": 3.0}]}


def test_the_document_states_goodput(report: Build, records: Callable[..., Any]) -> None:
    document = orjson.loads(report(records("a", [(0.0, 0.1, 0), (1.0, 0.2, 1)])).to_json())
    assert document["schema"] == 1
    assert document["total"]["goodput"] == 0.5
    assert document["streams"][0]["goodput"] == 0.5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "no field 'schema'"),
        ("{}", "no field 'schema'"),
        ('{"schema": 99}', "schema: expected 1, got 99"),
        ('{"schema": 1}', "kind: Field required"),
    ],
)
def test_a_document_that_is_no_report_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ReportError) as caught:
        Report.from_json(text)
    assert complaint in str(caught.value)


def test_a_wrong_field_is_named(report: Build, records: Callable[..., Any]) -> None:
    document = report(records("a", [(0.0, 0.1, 0)])).to_dict()
    document["total"]["latency"]["p99"] = "slow"
    with pytest.raises(ReportError, match=r"total\.latency\.p99"):
        Report.from_dict(document)


def test_comparisons_hold_every_report_whole(report: Build, records: Callable[..., Any]) -> None:
    good, bad = report(records("a", [(0.0, 0.1, 0)])), report(records("a", [(0.0, 0.1, 2)]))
    first = Comparison.of("c", [("fifo", "2x", bad), ("slack", "2x", good)])
    entries = first.to_dict()["entries"]
    assert [Report.from_dict(entry["report"]) for entry in entries] == [bad, good]
    assert [(entry["policy"], entry["goodput"]) for entry in entries] == [
        ("fifo", 0.0),
        ("slack", 1.0),
    ]
    assert (first.policies, first.loads) == (("fifo", "slack"), ("2x",))
    assert first.best("2x") == "slack"
    assert first.goodput("fifo", "2x") == 0.0
    assert first.goodput("fifo", "3x") is None


@pytest.mark.parametrize(
    ("on_time", "times"),
    [
        ({"1x": (50, 20), "2x": (100, 10)}, "2.5 to 10 times as many"),
        ({"1x": (20, 20), "2x": (200, 200)}, "1.0 times as many"),
        ({"1x": (15, 30)}, "0.5 times as many"),
        ({"1x": (12, 0)}, "at least 1.2 times as many"),  # not divided by nothing
        ({"1x": (90, 30), "2x": (25, 1)}, "at least 2.5 times as many"),
        ({"1x": (60, 30), "2x": (390, 3)}, "2.0 to 39 or more times as many"),
        ({"1x": (60, 30), "2x": (300, 30), "3x": (50, 3)}, "2.0 to 10 or more times as many"),
        ({"1x": (200, 100), "2x": (20, 9)}, "2.0 or more times as many"),
        ({"1x": (0, 40)}, "0.0 times as many"),
        ({"1x": (90, 30), "2x": (9, 9)}, "3.0 times as many"),  # too few to tell anything
        ({"1x": (9, 0)}, None),
        ({"1x": (996, 100)}, "10 times as many"),
        ({}, None),
    ],
    ids=str,
)
def test_how_many_times_as_many_were_on_time(
    on_time: dict[str, tuple[int, int]],
    times: str | None,
    report: Build,
    records: Callable[..., Any],
) -> None:
    def run(count: int) -> Report:
        return report(records("a", [(0.0, 0.1, 0)] * count + [(0.0, 0.1, 2)]))

    entries = [
        (policy, load, run(count))
        for load, counts in on_time.items()
        for policy, count in zip(("slack", "fifo"), counts, strict=True)
    ]
    comparison = Comparison.of("c", [*entries, ("slack", "without fifo", run(50))])
    assert comparison.times_as_many("slack", "fifo") == times


def test_comparisons_refuse_two_runs_in_one_place(
    report: Build, records: Callable[..., Any]
) -> None:
    run = report(records("a", [(0.0, 0.1, 0)]))
    with pytest.raises(ReportError, match="expected one report of 'p' at load 'l', got two"):
        Comparison.of("c", [("p", "l", run), ("p", "l", run)])


def test_provenance_names_versions_and_only_a_checkout_that_tracks_the_code(tmp_path: Path) -> None:
    origin = gather(("numpy", "no-such-package-here"))
    assert origin.versions["numpy"] == np.__version__
    assert "no-such-package-here" not in origin.versions
    stray = tmp_path / "module.py"
    stray.write_text("")
    assert commit_of(stray) is None
