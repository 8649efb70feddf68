"""Arrival processes of others: named by entry points, imported only where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import SECONDS, Options, option
from slacktide.lab.load.build import build_spec
from slacktide.lab.load.spec import LoadSpecError
from slacktide.lab.simulation.scenario import ScenarioError, build
from slacktide.lab.simulation.scenario.reading import parse_scenario
from slacktide.lab.workloads import Arrivals, WorkloadError, parse_arrivals

HERE = "tests.lab.workloads.test_arrivals_of_others"
PULSES = f"{HERE}:Pulses"
SCENARIO = """\
duration: 2s
models: {{m: {{padded: {{c0: 5ms, c1: 0.5ms, sizes: [1, 2, 4]}}}}}}
applications: {{web: {{model: m, arrivals: '{}', lengths: 'constant:3', slo: 40ms}}}}
"""


@dataclass(frozen=True, slots=True)
class PulsesOptions(Options):
    size: int = option(2, "Requests in a pulse.", least=1)
    every: float = option(1.0, "From one pulse to the next.", unit=SECONDS, above=0)


class Pulses(Arrivals):
    Options = PulsesOptions

    def __init__(self, options: PulsesOptions) -> None:
        self.options = options

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Any]:
        for start in np.arange(0.0, duration, self.options.every):
            yield np.full(self.options.size, start)

    def mean_rate(self, duration: float) -> float:
        return self.options.size / self.options.every

    def describe(self) -> str:
        return f"pulses:{self.options.size}"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])


@pytest.mark.parametrize("fields", ["3:500ms", "every=500ms:size=3"])
def test_the_command_line_names_one_by_its_place(fields: str) -> None:
    (stream,) = build_spec("h", model="m", arrivals=f"{PULSES}:{fields}").streams
    times = stream.arrivals.times(1.0, np.random.default_rng(0))
    assert times.tolist() == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]


def test_an_entry_point_is_a_name_like_any_other(install: Any) -> None:
    install("shop-traffic", "1.0", "arrivals", pulses=PULSES, poisson="nowhere:Poisson")
    (stream,) = build_spec("h", model="m", arrivals="pulses:3").streams
    assert stream.arrivals.describe() == "pulses:3"
    (stream,) = build_spec("h", model="m", arrivals="poisson:3").streams
    assert stream.arrivals.describe() == "poisson:3"
    (cell,) = parse_scenario(SCENARIO.format("pulses:3:250ms"), "s.yaml", Path())
    (stream,) = build(cell).streams
    assert stream.arrivals.mean_rate(1.0) == 12.0


def test_a_scenario_imports_only_where_it_may() -> None:
    text = SCENARIO.format(f"{PULSES}:3")
    (cell,) = parse_scenario(text, "s.yaml", Path(), imports=True)
    assert build(cell).streams[0].arrivals.describe() == "pulses:3"
    (cell,) = parse_scenario(text, "s.yaml", Path())
    with pytest.raises(ScenarioError, match=f"arrivals: '{PULSES}' would import code"):
        build(cell)


@pytest.mark.parametrize(
    ("arrivals", "complaint"),
    [
        (f"{PULSES}:0", "size: expected at least 1, got 0"),
        (f"{PULSES}:3:fast", "every: expected a duration"),
        (f"{PULSES}:3:1s:4", f"{PULSES}: too many fields; expected {PULSES}:SIZE:EVERY"),
        (f"{PULSES}:sise=3", "unknown field 'sise'; did you mean 'size'?"),
        (f"{HERE}:Nothing", "cannot be used: AttributeError"),
        ("slacktide.scheduling:Edf", "cannot be made: TypeError: "),
        ("pulsed:3", "unknown process 'pulsed'"),
    ],
)
def test_invalid_arrivals_are_named(arrivals: str, complaint: str) -> None:
    with pytest.raises(LoadSpecError) as refusal:
        build_spec("h", model="m", arrivals=arrivals)
    assert str(refusal.value).startswith("--arrivals: ")
    assert complaint in str(refusal.value)


def test_nothing_is_imported_where_nobody_admits_it() -> None:
    with pytest.raises(WorkloadError, match="unknown process"):
        parse_arrivals(f"{PULSES}:3")
