"""Object counts: read from files, and drawn."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.lab.workloads import WorkloadError
from slacktide.lab.workloads.object_counts import (
    ObjectCounts,
    draw_object_counts,
    parse_object_counts,
)

LINES = ["video,frame,time_s,persons,cars", "a,0,0.0,1,2", "a,1,0.03,0,3", "b,0,0.0,9,9"]


def test_a_video_is_read() -> None:
    counts = parse_object_counts(LINES, "counts.csv", only="a")
    assert dict(counts.classes) == {"persons": (1, 0), "cars": (2, 3)}
    assert (counts.frames, counts.mean("cars")) == (2, 2.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,2,0.06,,3", "counts.csv, line 4, persons: expected a number, got ''"),
        ("a,2,0.06,-1,3", "line 4, persons: must not be negative, got '-1'"),
        ("a,2,0.06,1.5,3", "line 4, persons: expected a whole number up to 10000, got 1.5"),
        ("a,2,0.06,1,1e30", "line 4, cars: expected a whole number up to 10000, got 1e.30"),
        ("a,3,0.06,1,3", "line 4, frame: expected 2, got 3: frames are missing"),
        ("a,2,0.06,1", "line 4: expected 5 values, got 4"),
    ],
)
def test_missing_and_negative_counts_are_named(line: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_object_counts([*LINES[:3], line], "counts.csv")


def test_a_choice_that_is_open_is_asked_for() -> None:
    with pytest.raises(WorkloadError, match=r"expected one video: only=a \| b"):
        parse_object_counts(LINES, "counts.csv")
    with pytest.raises(WorkloadError, match="expected a header such as frame,persons,cars"):
        parse_object_counts(["x,y", "1,2"], "counts.csv")
    with pytest.raises(WorkloadError, match="line 1, cars: expected distinct titles"):
        parse_object_counts(["frame,cars,cars", "0,1,2"], "counts.csv")
    with pytest.raises(WorkloadError, match="no class 'bikes' is counted; valid: cars"):
        ObjectCounts({"cars": [1]}).of("bikes")
    with pytest.raises(WorkloadError, match="same number of counts for every class"):
        ObjectCounts({"cars": [1], "persons": []})


def test_drawn_counts_are_poisson_and_remember() -> None:
    rng = np.random.default_rng(1)
    drawn = draw_object_counts({"cars": 8.0, "none": 0.0}, 4_000.0, rng, rate=15.0)
    cars = np.array(drawn.of("cars"), dtype=float)
    assert drawn.frames == 60_000
    assert cars.mean() == pytest.approx(8.0, rel=0.05)
    assert cars.var() == pytest.approx(8.0, rel=0.12)
    later = np.corrcoef(cars[:-15], cars[15:])[0, 1]
    assert later == pytest.approx(np.exp(-1.0 / 5.0), abs=0.04)
    assert set(drawn.of("none")) == {0}
    with pytest.raises(WorkloadError, match="cars: must be finite and not negative"):
        draw_object_counts({"cars": -1.0}, 10.0, rng)
    with pytest.raises(WorkloadError, match="cars: expected at most 10000 on a frame"):
        draw_object_counts({"cars": 1e30}, 10.0, rng)
