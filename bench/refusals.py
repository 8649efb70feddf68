"""How soon `slack` refuses what it will not serve, in virtual time: no clock, no machine in it.

The demo's traffic at its three loads, six rows of `goodput` with batch times like those of the
example models, and three models that gain from batching: a camera's, one of unlike requests, and
one whose batches cost as much as a request in addition, in bursts. Goodput; of
the refusals, what share came within 5 ms of the arrival; median and 99th percentile of the wait
before the rest.

`python -m bench.refusals NAME=VALUE …` measures other options of `slack` beside the default, such
as `late_refusals=0.5`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.measurement import Figure, Options, Result, Table, at_least
from slacktide.domain import Notice, Outcome, OutcomeKind, Request
from slacktide.lab.simulation.scenario import Cell
from slacktide.lab.simulation.scenario.building import build
from slacktide.lab.simulation.scenario.reading import YamlPositions, checked
from slacktide.models.repository.yaml_text import parse_yaml

SOON = 0.005
"""Seconds after its arrival within which a refusal counts as given at once."""
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
SECONDS, WARMUP = 40.0, 2.0

RESIDUAL = {"batches": [1, 2, 4, 8], "p50": [7.0, 13.4, 26.7, 53.2], "spread": 1.15}
DENSE = {"batches": [1, 2, 4, 8, 16, 32], "p50": [1.8, 1.9, 2.2, 2.8, 4.0, 6.4], "spread": 1.15}
TEXT = {"c0": "1500us", "c1": "280us", "sizes": list(range(1, 17))}
CAMERA = {"batches": [1, 2, 4, 8, 16], "p50": [8.0, 11.0, 17.0, 29.0, 53.0], "spread": 1.1}
FIXED_COST = {"c0": "10ms", "c1": "1ms", "sizes": [1, 2, 4, 8, 16]}
TWO_MODAL = {"c0": "5ms", "c1": "100us", "sizes": [1, 2, 4, 8, 16]}
DEMO_DEADLINES = (42, 84, 168)
"""Milliseconds: 3, 6 and 12 times one text of 44 tokens."""
DEMO_PEAKS = {"residual": 148.0, "text": 40.0}
"""Requests per second, by a backlog in order of arrival, whatever their lengths."""
LENGTHS = "modes:16~0.5,44~0.5,96~0.5"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of the requests of one row."""

    goodput: float
    refused: int
    soon: float
    """Share of the refusals within SOON of the arrival."""
    rest_p50: float
    """Seconds from arrival to refusal of the others; 0 if there are none."""
    rest_p99: float


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    p50, spread = table["p50"], table["spread"]
    return {
        "latency": {
            "batches": table["batches"],
            "p50": [f"{value:g}ms" for value in p50],
            "p99": [f"{value * spread:g}ms" for value in p50],
        }
    }


def demo(load: float) -> dict[str, Any]:
    """The demo's two models on one lane, each with half of its peak × `load`."""
    slo = "mix:" + ",".join(f"{value}ms" for value in DEMO_DEADLINES)
    rates = {model: load * peak / 2 for model, peak in DEMO_PEAKS.items()}
    return {
        "models": {
            "residual": {**_table(RESIDUAL), "lane": "cpu"},
            "text": {"padded": TEXT, "lane": "cpu"},
        },
        "applications": {
            "residual": {
                "model": "residual",
                "arrivals": f"gamma:{rates['residual']:g}:cv=3",
                "slo": slo,
            },
            "text": {
                "model": "text",
                "arrivals": f"gamma:{rates['text']:g}:cv=3",
                "slo": slo,
                "lengths": LENGTHS,
                "hint": "exact",
            },
        },
    }


def row(name: str) -> dict[str, Any]:
    """A row of `goodput` by its name there."""
    model, process, factor, deadline = name.split()
    table = {"residual": RESIDUAL, "dense": DENSE}[model]
    alone = table["p50"][0]
    rate = float(factor) * 1000.0 / alone
    factors = {"2x": (2,), "5x": (5,), "10x": (10,), "mix": (2, 5, 10)}[deadline]
    slo = ",".join(f"{factor * alone:g}ms" for factor in factors)
    return {
        "models": {model: _table(table)},
        "applications": {
            model: {
                "model": model,
                "arrivals": f"poisson:{rate:g}" if process == "poisson" else f"gamma:{rate:g}:cv=3",
                "slo": f"mix:{slo}" if len(factors) > 1 else slo,
            }
        },
    }


BATCHED = ("camera", "two modes", "fixed cost")
DEMO = ("demo 0.8", "demo 1.3", "demo 2")
ROWS = (
    "residual poisson 0.8 2x",
    "residual poisson 1.3 mix",
    "residual poisson 2 5x",
    "residual gamma 0.8 mix",
    "residual gamma 1.3 5x",
    "residual poisson 1 10x",
)


def batched(name: str) -> dict[str, Any]:
    """A model that gains from batching, just overloaded."""
    if name == "camera":
        model: dict[str, Any] = _table(CAMERA)
        traffic = {"arrivals": "gamma:300:cv=2", "slo": "mix:30ms,60ms@2,250ms"}
    elif name == "fixed cost":
        model = {"padded": FIXED_COST}
        traffic = {"arrivals": "gamma:60:cv=2", "slo": {"p99_alone": 3}, "lengths": "modes:10~0"}
    else:
        model = {"padded": TWO_MODAL}
        traffic = {
            "arrivals": "gamma:216:cv=2",
            "slo": {"p99_alone": 2},
            "lengths": "modes:short=3~1,long=17~1",
        }
    return {"models": {"m": model}, "applications": {"a": {"model": "m", **traffic}}}


@cache
def _cell(name: str, scheduler: str) -> Cell:
    if name in BATCHED:
        document = batched(name)
    else:
        document = demo(float(name.split()[1])) if name.startswith("demo") else row(name)
    options = dict(part.split("=") for part in scheduler.split())
    values = {key: parse_yaml(value) for key, value in options.items()}
    document |= {
        "title": name,
        "duration": f"{SECONDS:g}s",
        "warmup": f"{WARMUP:g}s",
        "scheduler": {"name": "slack", **values},
    }
    places = YamlPositions(name, {})
    return Cell(checked(document, places), document, {}, places, Path())


def endings(name: str, scheduler: str, seed: int) -> list[tuple[float, OutcomeKind]]:
    """(seconds from arrival to outcome, what it was) of every scored request."""
    world = build(_cell(name, scheduler))
    answers: list[tuple[float, OutcomeKind]] = []

    def answered(request: Request | Notice, outcome: Outcome) -> None:
        if request.arrival >= WARMUP:
            answers.append((outcome.at - request.arrival, outcome.kind))

    world.simulation(seed, answered=answered).run(world.items(seed))
    return answers


def measure(name: str, scheduler: str, seeds: Sequence[int]) -> Found:
    """All seeds of one row together."""
    every = [ending for seed in seeds for ending in endings(name, scheduler, seed)]
    refusals = (OutcomeKind.DROPPED, OutcomeKind.REJECTED)
    waits = np.array([took for took, kind in every if kind in refusals])
    rest = waits[waits > SOON]
    return Found(
        goodput=sum(kind is OutcomeKind.SERVED for _, kind in every) / len(every),
        refused=waits.size,
        soon=float((waits <= SOON).mean()) if waits.size else 1.0,
        rest_p50=float(np.median(rest)) if rest.size else 0.0,
        rest_p99=float(np.percentile(rest, 99)) if rest.size else 0.0,
    )


def run(options: Options) -> Result:
    """The default, row by row."""
    seeds = QUICK_SEEDS if options.quick else SEEDS
    result = Result("refusals", seeds=seeds)
    lines = []
    for name in (*DEMO, *ROWS, *BATCHED):
        if options.wants(name):
            measured = measure(name, "", seeds)
            lines.append((name, *_cells(measured)))
            goal = None if name in BATCHED else at_least(0.7)
            result.figures.append(Figure(f"{name}: refusals within 5 ms", measured.soon, goal=goal))
    columns = ("row", "goodput", "refused", "within 5 ms", "rest p50 ms", "rest p99 ms")
    result.tables.append(Table("Refusals of slack, virtual time", columns, tuple(lines)))
    return result


def _cells(measured: Found) -> tuple[str, ...]:
    return (
        f"{measured.goodput:.4f}",
        str(measured.refused),
        f"{measured.soon:.3f}",
        f"{measured.rest_p50 * 1e3:.1f}",
        f"{measured.rest_p99 * 1e3:.1f}",
    )


if __name__ == "__main__":
    for name in (*DEMO, *ROWS, *BATCHED):
        for scheduler in ("", *sys.argv[1:]):
            cells = "  ".join(_cells(measure(name, scheduler, SEEDS)))
            print(f"{name:28} {scheduler or 'default':24} {cells}", flush=True)
