"""How long planners take to decide. Pure, no server.

Milliseconds, medians of many calls. Goal: `vertical` ≤ 5 ms with 500 requests queued, 16 cores and
batches up to 16, whatever the queue: easily served, only just, or not at all. `joint` ≤ 50 ms with
as many queued, up to 8 replicas of up to 64 cores, and 4 variants. Early exits: thresholds of 8
ramps from 512 rows ≤ 10 ms, and at least 100 times faster than a grid search (3 ramps, steps of
0.02), which saves no more than 4 % more; a round of ramps ≤ 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np

from bench.machine import cores, pin
from bench.measurement import Figure, Goal, Options, Result, at_least, at_most
from slacktide.planning.exits.events import RampFacts
from slacktide.planning.exits.ramps import ExitsQuestion, PassTimes
from slacktide.planning.exits.thresholds import Array, ThresholdSearch
from slacktide.planning.scaling import ModelView, ReplicaView, ScalingLimits
from slacktide.planning.scaling.joint import Joint, JointOptions
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions
from slacktide.planning.scaling.view import BatchSeconds, VariantView, Waiting
from slacktide.profiles import CorrectedTimes, LatencyTable

QUEUED = 500
CORES, BATCH = 16, 16
LIMITS = ScalingLimits(cores_max=CORES, batch_max=BATCH)
SPANS = {"easy": 40.0, "tight": 3.6, "hopeless": 2.0}
"""Seconds within which the deadlines of the queue lie. All of it takes 3.1 s on 16 cores."""
JOINT_SPANS = {"easy": 5.0, "tight": 0.8, "hopeless": 0.1}
"""The same; eight replicas of 64 cores are faster."""
JOINT_LIMITS = ScalingLimits(cores_max=64, replicas_max=8, batch_max=BATCH)
VARIANTS = 4


def seconds(rows: int, cores: int) -> float:
    """The fit of Sponge's published latencies (Sponge Eq. 2)."""
    return (25.626 * rows / cores + 3.579 * rows + 11.303 / cores + 5.9) / 1e3


def times(cores: tuple[int, ...] = (1, 2, 4, 8, 16), factor: float = 1.0) -> CorrectedTimes:
    """A profile, as a server has it: p99 a tenth above the median."""
    sizes = (1, 2, 4, 8, 16)
    grid = [[factor * seconds(rows, core) for core in cores] for rows in sizes]
    slow = [[1.1 * second for second in row] for row in grid]
    return CorrectedTimes(
        LatencyTable.from_grid(sizes, cores, tuple(map(tuple, grid)), tuple(map(tuple, slow)))
    )


def view(span: float, profile: BatchSeconds, *, rows: int = 1) -> ModelView:
    """A long queue with deadlines within `span` seconds, and 20 arrivals a second to come."""
    deadlines = np.sort(0.1 + np.random.default_rng(1).random(QUEUED) * span).tolist()
    return ModelView(
        "m",
        tuple(Waiting(0.0, deadline, 1 + k % rows) for k, deadline in enumerate(deadlines)),
        (ReplicaView(4, 0.0, 0.05),),
        20.0,
        0.5,
        BATCH,
        profile,
        LIMITS,
        burst=4.5,
    )


def joint_view(span: float) -> ModelView:
    """The same before eight replicas, with variants each 1.5 times as slow as the one before."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    variants = tuple(
        VariantView(f"v{k}", float(k), times(sizes, factor=1.5**k)) for k in range(VARIANTS)
    )
    return replace(
        view(span, variants[0].times),
        replicas=(ReplicaView(4, 0.0, 0.05),) * JOINT_LIMITS.replicas_max,
        limits=JOINT_LIMITS,
        rate=400.0,
        variants=variants,
        start_time=10.0,
    )


def _joint_decides(queue: ModelView) -> object:
    """By a fresh planner: it looks for replicas too."""
    return Joint(JointOptions()).decide(queue, now=0.0)


EXIT_GOALS = {
    "thresholds": at_most(10.0),
    "round": at_most(0.5),
    "time": at_least(100.0),
    "saved": at_least(0.96),
}
EXIT_ROWS, RAMPS, GRID_RAMPS = 512, 8, 3
GRID = np.arange(0.0, 1.02, 0.02)


def judged(ramps: int) -> tuple[Array, Array]:
    """(uncertainty, agreement) of ramps that are surer and more often right the deeper they are."""
    draw = np.random.default_rng(1)
    hard = draw.normal(size=(EXIT_ROWS, 1)) + 0.5 * draw.normal(size=(EXIT_ROWS, ramps))
    right = 1.0 / (1.0 + np.exp(2.5 * (hard - 2.0 * np.arange(1, ramps + 1) / ramps - 0.5)))
    unsure = np.clip(1.0 - right + 0.03 * draw.normal(size=right.shape), 0.0, 1.0)
    return unsure, draw.random(right.shape) < right


def tuning(ramps: int) -> ThresholdSearch:
    """What is asked where 1 % may be wrong; the ramps are spaced evenly."""
    saved = [1.0 - (at + 1) / (ramps + 1) for at in range(ramps)]
    return ThresholdSearch(*judged(ramps), saved, EXIT_ROWS // 100)


def grid_search(search: ThresholdSearch) -> float:
    """The most that thresholds of the grid save, of a row."""
    best = 0.0
    for point in product(GRID, repeat=search.ramps):
        thresholds = np.array(point)
        if search.cost(thresholds) <= search.most:
            best = max(best, search.saving(thresholds))
    return best / search.rows


def ramp_round() -> Callable[[], object]:
    """A round of ramps."""
    judgements = judged(RAMPS)
    everywhere = np.repeat(judgements[0], 2, axis=1), np.repeat(judgements[1], 2, axis=1)
    active = tuple(range(0, 2 * RAMPS, 2))
    facts = tuple(
        RampFacts(at, str(at), 0.9, (at + 1) / (2 * RAMPS + 1)) for at in range(2 * RAMPS)
    )
    question = ExitsQuestion(
        facts, active, judgements, 0.01, EXIT_ROWS, 0.05, PassTimes(facts), everywhere
    )
    return lambda: question.round(everywhere)


def early_exits(repeats: int) -> dict[str, float]:
    """Of early exits, by name: ms, and how a grid search compares."""
    few = tuning(GRID_RAMPS)
    start = perf_counter()
    best = grid_search(few)
    seconds = perf_counter() - start
    fast = ms(lambda: tuning(GRID_RAMPS).best(), repeats)
    return {
        f"exits, thresholds of {RAMPS} ramps, {EXIT_ROWS} rows": ms(
            lambda: tuning(RAMPS).best(), repeats
        ),
        f"exits, a round of {RAMPS} ramps": ms(ramp_round(), repeats),
        "exits, grid search ÷ ours, time": seconds * 1e3 / fast,
        "exits, ours ÷ grid search, saved": few.saving(few.best()) / few.rows / best,
    }


def ms(call: Callable[[], object], repeats: int) -> float:
    """Median time of one call."""
    call()
    samples = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        samples.append(perf_counter() - start)
    return median(samples) * 1e3


def measure(quick: bool) -> dict[str, float]:
    """Every figure of this file, by name, in ms but for quotients."""
    repeats = 20 if quick else 200
    profile = times()
    planner = Vertical(VerticalOptions())
    costs: dict[str, float] = {}
    for name, span in SPANS.items():
        queue = view(span, profile)
        costs[f"vertical, {QUEUED} queued, {name}"] = ms(
            partial(planner.decide, queue, now=0.0), repeats
        )
        costs[f"vertical looks for misses, {QUEUED} queued, {name}"] = ms(
            partial(planner.is_urgent, queue, now=0.0), repeats
        )
    for name, span in SPANS.items():
        # Of 1 to 4 rows: two and a half times the work.
        unequal = view(2.5 * span, profile, rows=4)
        costs[f"vertical, {QUEUED} queued of 1 to 4 rows, {name}"] = ms(
            partial(planner.decide, unequal, now=0.0), repeats
        )
    for name, span in JOINT_SPANS.items():
        queue = joint_view(span)
        costs[f"joint, {QUEUED} queued, {VARIANTS} variants, {name}"] = ms(
            partial(_joint_decides, queue), max(5, repeats // 10)
        )
    return costs | early_exits(repeats)


def run(options: Options) -> Result:
    """Every figure once, itself a median; ten times fewer repeats when quick."""
    pin(cores().server)
    result = Result("planner_cost")
    for name, value in measure(options.quick).items():
        if options.wants(name):
            result.figures.append(Figure(name, value, "×" if "÷" in name else "ms", goal_of(name)))
    return result


def goal_of(name: str) -> Goal | None:
    """What a figure of `measure` should be."""
    if name.startswith("exits, "):
        for part, goal in EXIT_GOALS.items():
            if part in name:
                return goal
    if name.startswith("joint, "):
        return at_most(50.0)
    return at_most(5.0) if name.startswith("vertical, ") else None
