"""Scenarios with several servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.simulation.scenario.conftest import Read

from slacktide.lab.reports.table import summary
from slacktide.lab.simulation.scenario import ScenarioError, check_cell, read_scenario, run_cell
from slacktide.lab.simulation.scenario.running import run_task, task_of

EXAMPLE = Path(__file__).parents[4] / "examples/scenarios/servers.yaml"
SMALL = """\
duration: 4s
models:
  m: {latency: {batches: [1, 4], p50: [10ms, 22ms]}}
servers:
  a: {}
  b: {}
applications:
  web: {model: m, arrivals: "poisson:280", slo: 50ms, enters: a}
"""


def goodput(read: Read, *settings: str, seed: int = 1) -> float:
    (cell,) = read(*settings, text=SMALL)
    return run_cell(cell, seed).goodput


def refused(read: Read, *settings: str) -> str:
    try:
        for cell in read(*settings, text=SMALL):
            check_cell(cell)
    except ScenarioError as error:
        return str(error)
    return "nothing was refused"


def test_servers_answer_for_the_one_that_requests_come_to(read: Read) -> None:
    (cell,) = read("warmup=1s", text=SMALL)
    report = run_cell(cell, 1)
    assert report.goodput > 0.95
    assert report.forwarded_share == pytest.approx(0.5, abs=0.15)
    assert "% forwarded" in summary(report)
    assert run_cell(cell, 1).total == report.total
    assert run_task(task_of(cell, 1))["forwarded"] == report.forwarded
    assert goodput(read, "servers={a: {}}") < 0.75


def test_requests_enter_at_all_servers_by_default(read: Read) -> None:
    (cell,) = read("applications.web.enters=[a, b]", text=SMALL)
    (spread,) = read("applications.web={model: m, arrivals: 'poisson:280', slo: 50ms}", text=SMALL)
    assert run_cell(cell, 1).total == run_cell(spread, 1).total
    share = run_cell(spread, 1).forwarded_share
    assert share is not None
    assert share < 0.3


def test_a_slower_server_does_less(read: Read) -> None:
    assert goodput(read, "servers.b.speed=0.25") < goodput(read) - 0.1


def test_hops_take_time(read: Read) -> None:
    alone = goodput(read, "servers={a: {}}")
    assert goodput(read, "hop.rtt=45ms") < alone + 0.05
    assert goodput(read, "hop={bandwidth: 1MB, payload: 45kB}") < alone + 0.05


def test_a_server_that_dies_loses_what_it_held_and_comes_back(read: Read) -> None:
    (cell,) = read(
        "applications.web.enters=b", "deaths=[{server: b, at: 1s, back: 2s}]", text=SMALL
    )
    report = run_cell(cell, 1)
    assert 230 < report.total.outcomes["failed"] < 340  # one second of requests
    spread = "applications.web.enters=[a, b]"
    (cell,) = read(spread, "deaths=[{server: b, at: 1s}]", text=SMALL)
    assert run_cell(cell, 1).total.outcomes["failed"] < 10  # what it held


def test_servers_are_added_until_the_offered_share_is_at_its_target(read: Read) -> None:
    settings = ("duration=20s", "applications.web.enters=[a, b]")
    load = "applications.web.arrivals=poisson:700"
    few = goodput(read, *settings, load)
    scaled = goodput(read, *settings, load, "scale_out={most: 8, starts_in: 1s}")
    # 700 requests a second of 5.5 ms are 3.85 servers: 5 at a target of .8.
    assert few < 0.6
    assert scaled > 0.85
    assert goodput(read, *settings, load, "scale_out={most: 2, starts_in: 1s}") == few


def test_added_servers_replace_none_of_the_file(read: Read) -> None:
    load = ("applications.web.arrivals=poisson:700", "scale_out={most: 3, starts_in: 1s}")
    (cell,) = read("servers={a: {}, added-2: {}}", *load, text=SMALL)
    assert run_cell(cell, 1).total.submitted == sum(run_cell(cell, 1).total.outcomes.values())


def test_a_grid_may_vary_servers(read: Read) -> None:
    cells = read("grid={servers.b.speed: [1, 0.5], hop.rtt: [1ms, 20ms]}", text=SMALL)
    for cell in cells:
        check_cell(cell)
    assert len(cells) == 4


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("applications.web.enters=c", "applications.web.enters: no server 'c'; "),
        ("deaths=[{server: c, at: 1s}]", "deaths[0].server: no server 'c'; "),
        ("deaths=[{server: a, at: 2s, back: 1s}]", "back: expected a time after 2s, got 1s"),
        ("deaths=[{server: a, at: 1s}, {server: a, at: 2s}]", "expected one death of 'a', got two"),
        ("servers.a.speed=0", "servers.a.speed: "),
        ("servers.a.speed=0.0000001", "servers.a.speed: expected greater than or equal to 0.001"),
        ("servers={}", "applications.web.enters: needs 'servers'"),
        ("applications.web.notice=1ms", "applications.web.notice: expected none with 'servers'"),
        ("clients={c: {}}", "clients.c"),
        ("scale_out={most: 1}", "scale_out.most: expected at least the 2 servers"),
        ("scale_out={target: 0.5}", "scale_out: expected a key 'most'"),
        ("models.m={exits: x.csv}", "models.m.exits: "),
    ],
)
def test_faults_name_the_key(read: Read, setting: str, expected: str) -> None:
    assert expected in refused(read, setting)


def test_servers_go_with_neither_pipelines_nor_clients(read: Read) -> None:
    clients = "{model: m, rate: 5, slo: 0.1s, link: {bandwidth: 1MB}}"
    assert "servers: expected none with 'pipelines' or 'clients'" in refused(
        read, f"clients={{phone: {clients}}}"
    )


def test_the_example(read: Read) -> None:
    (cell,) = read_scenario(EXAMPLE, ["duration=10s", "deaths=[{server: b, at: 8s}]"])
    report = run_cell(cell, 1)
    assert report.goodput > 0.8
    assert report.forwarded
