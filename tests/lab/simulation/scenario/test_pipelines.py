"""Scenarios with devices, links and pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.simulation.scenario.conftest import Read

from slacktide.domain import Options
from slacktide.lab.simulation.scenario import ScenarioError, check_cell, read_scenario, run_cell
from slacktide.lab.simulation.scenario.reading import parse_scenario
from slacktide.lab.simulation.scenario.running import run_task, task_of
from slacktide.planning.pipelines import PlacementAnswer, PlacementPolicy

EXAMPLE = Path(__file__).parents[4] / "examples/scenarios/pipelines.yaml"
SMALL = """\
duration: 4s
devices:
  camera: {speed: 0.25, memory: 4GB}
  server: {accelerators: 2, server: true}
links:
  up: {between: [camera, server], bandwidth: 5MB, rtt: 10ms}
models:
  detector: {latency: {batches: [1, 8], p50: [6ms, 34ms]}, weights: 100MB}
  brand: {latency: {batches: [1, 8], p50: [1ms, 4ms]}}
pipelines:
  traffic:
    device: camera
    rate: 15
    slo: 200ms
    frame: 100kB
    objects: {cars: 4}
    stages: {detector: detector, brand: brand}
    edges: [{from: detector, to: brand, classes: [cars], row: 3kB}]
"""
COUNTS = "video,frame,persons,cars\na,0,0,2\na,1,1,3\nb,0,9,9\n"


def refused(read: Read, *settings: str) -> str:
    try:
        for cell in read(*settings, text=SMALL):
            check_cell(cell)
    except ScenarioError as error:
        return str(error)
    return "nothing was refused"


def test_frames_are_requests_and_objects_are_rows(read: Read) -> None:
    (cell,) = read("warmup=1s", text=SMALL)
    report = run_cell(cell, 1)
    assert report.total.submitted == 60
    assert report.total.goodput > 0.95
    assert 0 < report.total.rows_on_time <= report.total.rows_submitted
    assert [stream.model for stream in report.streams] == ["traffic"]
    assert run_cell(cell, 1).total == report.total
    assert run_task(task_of(cell, 1))["total"]["rows_on_time"] == report.total.rows_on_time


def test_counts_may_come_from_a_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text(COUNTS)
    settings = "pipelines.traffic.counts=counts.csv:only=a", "pipelines.traffic.objects=null"
    (cell,) = read(*settings, text=SMALL)
    report = run_cell(cell, 1)
    # Two frames of 30 per second, every other of which is taken: two cars on each.
    assert report.total.rows_submitted == 2 * 60
    (tmp_path / "counts.csv").write_text(COUNTS.replace("a,1,1,3", "a,1,1,-3"))
    assert "counts.csv, line 3, cars: must not be negative, got '-3'" in refused(read, *settings)
    (tmp_path / "counts.csv").write_text(COUNTS.replace("a,1,1,3", "a,1,1,"))
    assert "counts.csv, line 3, cars: expected a number, got ''" in refused(read, *settings)


def test_a_camera_that_stops_sends_no_more(read: Read) -> None:
    (cell,) = read("pipelines.traffic.stops=1s", text=SMALL)
    assert run_cell(cell, 1).total.submitted == 15
    (cell,) = read("pipelines.traffic.stops=1s", "warmup=2s", text=SMALL)
    report = run_cell(cell, 1)  # none of its frames counts
    assert (report.total.submitted, report.total.rows_submitted) == (0, 0)


def test_a_link_without_bandwidth_for_a_minute_leaves_work_at_home(
    read: Read, tmp_path: Path
) -> None:
    (tmp_path / "gone.csv").write_text("time_s,bandwidth_mbps\n0,40\n5,0\n65,40\n75,40\n")
    link = "links.up={between: [camera, server], trace: gone.csv}"
    (cell,) = read(link, "duration=70s", text=SMALL)
    report = run_cell(cell, 1)
    assert report.total.submitted == 70 * 15
    assert report.total.goodput > 0.8  # what was placed on the server comes home
    assert sum(report.total.outcomes.values()) == 70 * 15


def test_a_planner_is_imported_by_its_place_only_where_that_is_allowed() -> None:
    place = "slacktide_papers.policies.placement_policies:RimPlacement"
    text = f"{SMALL}placement: {{policy: '{place}'}}\n"
    (cell,) = parse_scenario(text, "s.yaml", Path(), imports=True)
    check_cell(cell)
    with pytest.raises(ScenarioError, match=r"placement\.policy.* would import code"):
        parse_scenario(text, "s.yaml", Path())


class Unmade(PlacementPolicy):
    Options = Options

    def __init__(self, options: Options) -> None:
        raise RuntimeError("no map")

    def decide(self, question: object, present: object) -> PlacementAnswer:
        raise NotImplementedError


def test_a_planner_that_cannot_be_made_is_named() -> None:
    place = f"{__name__}:Unmade"
    text = f"{SMALL}placement: {{policy: '{place}'}}\n"
    (cell,) = parse_scenario(text, "s.yaml", Path(), imports=True)
    with pytest.raises(ScenarioError) as refusal:
        run_cell(cell, 1)
    assert str(refusal.value) == f"placement '{place}' cannot be made: RuntimeError: no map"


@pytest.mark.parametrize("planner", ["pipeline", "octopinf", "distream", "rim", "jellyfish"])
def test_every_planner_can_be_named(read: Read, planner: str) -> None:
    (cell,) = read(f"placement.policy={planner}", text=SMALL)
    assert run_cell(cell, 1).total.goodput > 0.5


def test_nothing_goes_over_a_link_that_is_stated_to_have_no_bandwidth(read: Read) -> None:
    (cell,) = read("links.up.bandwidth=0B", "devices.camera.speed=1", text=SMALL)
    assert run_cell(cell, 1).total.goodput > 0.95  # at home


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("pipelines.traffic.device=nowhere", "pipelines.traffic.device: no device 'nowhere'"),
        ("pipelines.traffic.stages.brand=bran", "stages.brand: no model 'bran'; did you mean"),
        ("links={}", "links: expected a link between 'camera' and 'server'"),
        ("devices.edge={server: true}", "links: expected a link between 'camera' and 'edge'"),
        ("links.up.between=[camera, cloud]", "links.up.between: no device 'cloud'"),
        ("links.up.between=[camera, camera]", "expected two devices, linked only once"),
        ("links.up.trace=x.csv", "links.up: expected exactly one of 'bandwidth' and 'trace'"),
        ("pipelines.traffic.objects={cars: -1}", "objects.cars: "),
        ("pipelines.traffic.objects={bikes: 1}", "no class 'cars' is counted"),
        (
            "pipelines.traffic={device: camera, rate: 1, slo: 1s, frame: 1kB, objects: {cars: 1}, "
            "stages: {a: brand, b: brand, c: brand, d: brand}, "
            "edges: [{from: a, to: b, classes: [cars]}, {from: a, to: c, classes: [cars]}, "
            "{from: b, to: d}, {from: c, to: d}]}",
            "pipelines.traffic.edges[3]: expected one upstream of d, which already has b",
        ),
        (
            "pipelines.traffic.edges=[{from: detector, to: brand}]",
            "expected 'classes' only on edges",
        ),
        ("pipelines.traffic.edges=[]", "stages: expected one stage without an edge to it"),
        ("models.detector.weights=100GB", ""),
        ("models.brand={padded: {c0: 1ms, c1: 1ms}}", "expected 'latency' in a scenario with"),
        (
            "models.brand.window={every: 90ms, start: 0ms, end: 60ms}",
            "models.brand.window: expected none in a scenario with 'pipelines'",
        ),
        ("placement.policy=octopus", "placement.policy: "),
        ("placement.policy={name: rim, edges: 4}", "did you mean 'edge'"),
        ("devices={}", "pipelines: needs 'devices'"),
        ("scheduler=oracle_slack", "scheduler: oracle_slack needs a padded model"),
    ],
)
def test_invalid_settings_are_named(read: Read, setting: str, message: str) -> None:
    if not message:  # it fits the server, whose memory is not stated; not once that is
        refusal = refused(read, setting, "devices.server.memory=50GB")
        assert "stage 'detector': fits no device (camera: needs" in refusal
    else:
        assert message in refused(read, setting)


def test_devices_without_pipelines_are_refused(read: Read) -> None:
    with pytest.raises(ScenarioError, match="devices: needs 'pipelines'"):
        read("devices={a: {}}")
    both = SMALL + "applications: {web: {model: brand, arrivals: 'poisson:1'}}\n"
    with pytest.raises(ScenarioError, match="expected either 'pipelines' or 'applications'"):
        read(text=both)


def test_the_example_serves_nearly_all() -> None:
    (cell,) = read_scenario(EXAMPLE, ["duration=8s", "warmup=2s"])
    report = run_cell(cell, 0)
    assert report.total.goodput > 0.8
    with pytest.raises(ScenarioError, match="expected a scenario without 'pipelines'"):
        run_cell(cell, 0, requests=Path("requests.csv"))
