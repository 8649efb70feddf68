"""A real server learns which applications are slow, also from requests that only ran in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slacktide.server.app import App

LENGTHS = {"short": 20, "long": 1000}
"""Turns of `spin`; a profile of it knows neither."""


def times_of(app: App) -> Any:
    version = app.catalog.find("spin", None)
    assert version is not None
    return version.pool.times


def counts_of(app: App) -> Any:
    version = app.catalog.find("spin", None)
    assert version is not None
    return version.counters.samples


def burst(house: Any, application: str) -> None:
    """Three requests that come while one runs, and share a batch."""
    document = house.spin_call(LENGTHS[application], application=application)
    with house.hold():
        answers = [house.later("spin", document) for _ in range(3)]
        house.queued("spin", 3)
    for answer in answers:
        assert answer.result().json["outputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize("online", ["50%", "0%"])
def test_requests_of_batches_run_again_alone(zoo: Any, serve: Callable[..., Any], online: str):
    # An slo that a run alone fits into, however slow the machine was when the model was measured.
    zoo.spin(settings=f"max_batch: 8\nslo: 30s\nprofiling: {{online: {online}}}\n")
    zoo.matmul()
    with serve(zoo) as house:
        for _ in range(5):
            for application in LENGTHS:
                burst(house, application)
        if online == "0%":
            assert house.look(counts_of).run == 0
        else:
            house.until(lambda app: counts_of(app).run >= 3, "samples run")
            page = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
            assert 'slacktide_profiling_runs_total{model="spin",version="1"} ' in page
        assert house.counts("spin") == {"on_time": 30, "disconnected": 10}
        house.good()


def test_applications_are_told_apart_and_answered_as_ever(zoo: Any, serve: Callable[..., Any]):
    zoo.spin(settings="max_batch: 8\n")
    zoo.matmul()
    with serve(zoo) as house:
        for _ in range(30):
            for application, turns in LENGTHS.items():
                document = house.spin_call(turns, application=application)
                assert house.infer("spin", document).status == 200
        house.until(lambda app: times_of(app).classes(1) is not None, "lengths are told apart")
        short, long = house.look(
            lambda app: [
                times_of(app).classes(1).by_key[application, -1] for application in LENGTHS
            ]
        )
        assert short < long
        house.good()
