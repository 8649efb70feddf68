"""How long placements of pipelines take, and how good they are. Pure, no server.

Time: CPU milliseconds of one plan, medians. Pipelines are trees of five models, each from an edge
device of its own to a server of four accelerators with four streams. Goals: ours over devices and
batches of 9 pipelines ≤ 20 ms, of 100 ≤ 500 ms; where each model can also run in three variants, on
one or two cores each, with exits or without, ≤ 200 ms and ≤ 5 s; CWD and CORAL ≤ 5 and ≤ 60 ms.

Quality: 200 random pipelines of up to four stages, against all choices of devices and batches.
Goals: whenever one choice has everything in time, so has ours; it is equal to the best in ≥ 95 %;
its server work is ≤ 1.01 × that of the best at the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from time import process_time

import numpy as np

from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from slacktide.planning.pipelines.coral import CoralSchedule
from slacktide.planning.pipelines.costs import EstimateRules, PlacementScore, better
from slacktide.planning.pipelines.distribution import distribute
from slacktide.planning.pipelines.estimate import PipelineEstimator
from slacktide.planning.pipelines.problem import (
    BATCHES,
    ConfigurationTimes,
    DeviceView,
    Inflow,
    LinkView,
    PipelineView,
    PlacementQuestion,
    StageConfiguration,
    StageView,
)
from slacktide.planning.pipelines.search import search

SEED = 1
RULES = EstimateRules()
FORMS = tuple(product((1.0, 0.6, 0.4), (1.0, 0.6), (1.0, 0.8)))
"""Variant, cores, exits: shares of the seconds that a batch takes."""
SMALL, LARGE, STAGES = 9, 100, 5
GOALS = {
    "ours": (20.0, 500.0),
    "ours, 12 forms": (200.0, 5000.0),
    "CWD and CORAL": (5.0, 60.0),
}
RANDOM, MOST_STAGES, FEW = 200, 4, BATCHES[:4]

Shares = Sequence[tuple[float, float, float]]


def configuration(
    draw: np.random.Generator,
    kinds: dict[str, float],
    batches: tuple[int, ...],
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0),
    seconds: tuple[float, float] = (0.002, 0.002),
) -> StageConfiguration:
    """base + row · b seconds; p99 a tenth above."""
    factor = float(np.prod(shares))
    base, row = seconds[0] * factor, seconds[1] * factor
    times = []
    for kind, slower in kinds.items():
        kind_seconds = tuple(slower * (base + row * rows) for rows in batches)
        times.append(
            ConfigurationTimes(kind, kind_seconds, tuple(1.1 * second for second in kind_seconds))
        )
    return StageConfiguration(
        tuple(times),
        accuracy=shares[0] ** 0.1 * shares[2] ** 0.05,
        weights=draw.uniform(1e7, 2e8),
        intermediate=draw.uniform(5e7, 5e8),
        utilisation=draw.uniform(0.05, 0.25),
    )


def pipeline(
    draw: np.random.Generator,
    name: str,
    stages: int,
    kinds: dict[str, float],
    batches: tuple[int, ...],
    configurations: Shares,
) -> PipelineView:
    """A tree of so many stages."""
    stages_drawn = []
    for at in range(stages):
        seconds = float(draw.uniform(0.0005, 0.006)), float(draw.uniform(0.0003, 0.005))
        fed = (Inflow(int(draw.integers(at)), float(draw.choice([0.3, 1.0, 3.0]))),) if at else ()
        stages_drawn.append(
            StageView(
                f"s{at}",
                tuple(
                    configuration(draw, kinds, batches, shares, seconds)
                    for shares in configurations
                ),
                fed,
                row_bytes=draw.uniform(2e3, 4e4) if at else draw.uniform(6e4, 2.5e5),
                answer_bytes=200.0,
                burstiness=draw.uniform(0.2, 4.0),
            )
        )
    slo, rate = float(draw.uniform(0.15, 0.4)), float(draw.uniform(5.0, 20.0))
    return PipelineView(name, name, slo, rate, tuple(stages_drawn))


def fleet(count: int, configurations: Shares = FORMS[:1]) -> PlacementQuestion:
    """So many pipelines, each from an edge device; the server grows with them."""
    draw = np.random.default_rng(SEED)
    kinds = {"server": 0.3, "edge": 2.0}
    names = [f"p{at}" for at in range(count)]
    many = max(4, count // 2)
    server = DeviceView("server", "server", many, 4, memory=2.4e10, server=True)
    return PlacementQuestion(
        (*(DeviceView(name, "edge", memory=8e9) for name in names), server),
        tuple(LinkView(name, "server", draw.uniform(1e6, 2e7), 0.005) for name in names),
        tuple(pipeline(draw, name, STAGES, kinds, BATCHES, configurations) for name in names),
    )


def alone(draw: np.random.Generator) -> PlacementQuestion:
    """One random pipeline of up to four stages, whose choices can all be judged."""
    kinds = {"server": 1.0, "edge": float(draw.uniform(2.0, 8.0))}
    count = int(draw.integers(1, MOST_STAGES + 1))
    edge = DeviceView("p", "edge", memory=draw.uniform(6e8, 4e9))
    server = DeviceView("server", "server", 2, 4, memory=8e9, server=True)
    link = LinkView("p", "server", draw.uniform(3e5, 2e7), draw.uniform(0.002, 0.02))
    lonely = pipeline(draw, "p", count, kinds, FEW, FORMS[:1])
    return PlacementQuestion((edge, server), (link,), (lonely,), FEW)


def quality(count: int) -> list[Figure]:
    """Of ours, beside the best of all choices."""
    draw = np.random.default_rng(SEED)
    feasible = kept = equal = published = 0
    work: list[float] = []
    for _ in range(count):
        question = alone(draw)
        estimator = PipelineEstimator(question, question.pipelines[0], RULES)
        best = PlacementScore(-1.0, 0.0)
        for costs in product(*(estimator.choices(at) for at in range(len(estimator.rates)))):
            score = estimator.estimate(costs).score
            best = score if better(score, best) else best
        ours = estimator.estimate(estimator.chosen(search(question)[0])).score
        cwd = estimator.estimate(estimator.chosen(distribute(question)[0])).score
        whole = estimator.most * (1.0 - 1e-9)
        feasible += best.worth >= whole
        kept += best.worth >= whole and ours.worth >= whole
        equal += not better(best, ours)
        published += not better(best, cwd)
        if best.spare < 0.0 < best.worth:
            work.append(ours.spare / best.spare)
    return [
        Figure("feasible where one choice is", kept / max(1, feasible), "", at_least(1.0)),
        Figure("equal to the best of all", equal / count, "", at_least(0.95)),
        Figure("CWD equal to the best of all", published / count),
        Figure("server work ÷ that of the best", median(work), "×", at_most(1.01)),
    ]


def ms(call: Callable[[], object], repeats: int) -> float:
    """Median CPU time of one call."""
    samples = []
    for _ in range(repeats + 1):
        begin = process_time()
        call()
        samples.append(process_time() - begin)
    return median(samples[1:]) * 1e3


def run(options: Options) -> Result:
    """Every figure once, itself a median."""
    pin(cores().server)
    result = Result("placement", seeds=(SEED,))
    for number, count in enumerate((SMALL, LARGE)):
        plain, formed = fleet(count), fleet(count, FORMS)
        calls: dict[str, Callable[[], object]] = {
            "ours": lambda asked=plain: search(asked),
            "ours, 12 forms": lambda asked=formed: search(asked),
            "CWD and CORAL": lambda asked=plain: CoralSchedule(asked).schedule(distribute(asked)),
        }
        for name, call in calls.items():
            full = f"{name}, {count} devices × {count} pipelines × {STAGES} models"
            if options.wants(full):
                repeats = 3 if options.quick or count == LARGE else 15
                goal = at_most(GOALS[name][number])
                result.figures.append(Figure(full, ms(call, repeats), "ms", goal))
    if options.wants("quality"):
        result.figures += quality(20 if options.quick else RANDOM)
    return result
