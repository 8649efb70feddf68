"""Requests that differ in shape: what a profile says of other sizes is what a simulation does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.lab.simulation import DrawnRequest
from slacktide.lab.simulation.scenario import Cell, ScenarioError, build, run_cell
from slacktide.lab.workloads import Fixed
from slacktide.profiles import LatencyTable, ProfileRecord
from slacktide.profiles.latency_fit import SizeTime

Read = Callable[..., tuple[Cell, ...]]

DETECTOR = """\
duration: 20s
models:
  detector: {profile: detector.json}
applications:
  web:
    model: detector
    arrivals: poisson:20
    shapes: [[3, 32, 32], [3, 64, 64], [3, 64, 64], [3, 128, 128]]
    slo: 100ms
"""
"""A row of 64 × 64 takes 8 ms; of 32 × 32 a quarter, of 128 × 128 four times as long."""

SIDE = {32: 2e-3, 64: 8e-3, 128: 32e-3}


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    table = LatencyTable.from_grid((1, 2), (1,), [[8e-3], [16e-3]], [[8.4e-3], [16.8e-3]])
    sizes = tuple(
        SizeTime(rows, 1, (side / 64) ** 2, rows * SIDE[side], ((3, side, side),))
        for side in (32, 128)
        for rows in (1, 2)
    )
    record = ProfileRecord(table, {"x": (3, 64, 64)}, sizes=sizes)
    path = tmp_path / "detector.json"
    path.write_text(json.dumps(record.to_dict()))
    return path


@pytest.mark.usefixtures("detector")
def test_a_shape_is_drawn_from_the_list(read: Read) -> None:
    world = build(read(text=DETECTOR)[0])
    drawn = [item for item in world.items(1) if isinstance(item, DrawnRequest)]
    shapes = Counter(request.signature for request in drawn)
    assert set(shapes) == {((3, 32, 32),), ((3, 64, 64),), ((3, 128, 128),)}
    assert shapes[((3, 64, 64),)] == pytest.approx(len(drawn) / 2, rel=0.15)


@pytest.mark.usefixtures("detector")
@pytest.mark.parametrize("side", [32, 64, 128, 96])
def test_a_request_takes_the_time_of_its_shape(read: Read, side: int) -> None:
    shapes = f"applications.web.shapes=[[3, {side}, {side}]]"
    report = run_cell(read("applications.web.arrivals=constant:2", shapes, text=DETECTOR)[0], 0)
    assert report.total.latency is not None
    expected = SIDE.get(side, 8e-3 * (side / 64) ** 2)
    assert report.total.latency.p50 == pytest.approx(expected, rel=0.05)


@pytest.mark.usefixtures("detector")
def test_an_slo_in_times_alone_is_that_of_the_slowest_shape(read: Read) -> None:
    (stream,) = build(read("applications.web.slo={p99_alone: 2}", text=DETECTOR)[0]).streams
    assert isinstance(stream.deadlines, Fixed)
    assert stream.deadlines.seconds == pytest.approx(2 * 32e-3 * 1.05, rel=0.02)


@pytest.mark.usefixtures("detector")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["applications.web.shapes=[[64, 64]]"], "web.shapes: expected axes as in [3, 64, 64]"),
        (["applications.web.shapes=[[3, 2048, 2048]]"], "web.shapes: the profile has no times for"),
        (["applications.web.shapes=[[3, 0, 64]]"], "applications.web.shapes"),
        (["applications.web.lengths=constant:2"], "expected either 'shapes' or 'lengths'"),
        (
            ["models.detector={latency: {batches: [1], p50: [8ms]}}"],
            "web.shapes: expected none: a table in the scenario has no shapes",
        ),
        (
            [
                "models.detector={padded: {c0: 1ms, c1: 1ms}}",
                "applications.more={model: detector, arrivals: 'poisson:1', lengths: 'constant:1'}",
            ],
            "applications.web: requests of model 'detector' have lengths",
        ),
    ],
)
def test_shapes_that_cannot_be_are_named(read: Read, settings: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        build(read(*settings, text=DETECTOR)[0])
    assert message in str(caught.value)
