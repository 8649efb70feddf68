"""Scenarios with clients that stream frames to a family."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktide.lab.simulation.scenario import ScenarioError, build, run_cell
from slacktide.lab.simulation.scenario.reading import parse_scenario

EXAMPLE = Path(__file__).parents[4] / "examples/scenarios/cameras.yaml"
SMALL = """\
duration: 4s
cores: 1
models:
  detector:
    variants:
      "128": {size: 128, accuracy: 0.2, latency: {batches: [1, 4], p50: [5ms, 8ms]}}
      "416": {size: 416, accuracy: 0.5, latency: {batches: [1, 4], p50: [15ms, 48ms]}}
    variants_planner: {period: 0.25}
clients:
  street: {model: detector, count: 2, rate: 10, slo: 100ms, link: {bandwidth: 1MB, rtt: 4ms}}
"""


def run(text: str, *settings: str, seed: int = 1) -> dict[str, object]:
    (cell,) = parse_scenario(text, "small.yaml", Path(), settings)
    return run_cell(cell, seed).to_dict()


def test_the_example_counts_each_frame_as_its_client_saw_it():
    (cell,) = parse_scenario(EXAMPLE.read_text(), EXAMPLE.name, EXAMPLE.parent)
    report = run_cell(cell, 1)
    counts = {stream.name: stream.submitted for stream in report.streams}
    # Captured within the 20 s that count, by four clients at 15 and two at 25 frames a second.
    assert counts == {"detector/gate": 1000, "detector/street": 1200}
    assert report.goodput > 0.97


def test_a_run_repeats_and_its_options_count():
    once = run(SMALL)
    assert once == run(SMALL) | {"provenance": once["provenance"]}
    slow = run(SMALL, "clients.street.link.bandwidth=20kB")
    assert slow["total"]["goodput"] < once["total"]["goodput"]  # type: ignore[index]


def test_applications_may_stand_beside_clients():
    beside = SMALL + "applications:\n  other: {model: detector, arrivals: constant:5, slo: 90ms}\n"
    (cell,) = parse_scenario(beside, "small.yaml", Path())
    report = run_cell(cell, 1)
    assert {stream.name for stream in report.streams} == {"detector/other", "detector/street"}
    assert report.goodput > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: detector", "model: detectr"), "clients.street.model: no model 'detectr'"),
        (("rate: 10", "rate: 0"), "clients.street.rate"),
        (("bandwidth: 1MB", "trace: none.csv"), "clients.street.link.trace"),
        (("size: 416", "size: 64"), "models.detector.variants.416"),
        (("accuracy: 0.5", "accuracy: 0.1"), "models.detector.variants.416"),
        (("clients:", "grid: {}\nclient:"), "client"),
    ],
)
def test_an_impossible_client_names_its_place(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        build(parse_scenario(SMALL.replace(*change), "small.yaml", Path())[0])
    assert message in str(refused.value)


def test_clients_need_a_family_and_a_scenario_some_traffic():
    plain = SMALL.replace("variants_planner: {period: 0.25}", "").split("    variants:")[0]
    plain += "    latency: {batches: [1], p50: [5ms]}\n"
    clients = SMALL[SMALL.index("clients:") :]
    with pytest.raises(ScenarioError, match="a model with 'variants'"):
        parse_scenario(plain + clients, "small.yaml", Path())
    with pytest.raises(ScenarioError, match="'applications', 'clients' or 'pipelines'"):
        parse_scenario(plain, "small.yaml", Path())
