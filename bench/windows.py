"""Three models on two cores, kept apart in five ways: does a timetable help?

Residual classifier, text encoder and weight-bound network, each a third of the load, in bursts of 1
to 6 requests; deadline 100 ms. The load is 0.5 and 0.8 of what two cores do alone, one request at a
time. Server, workers and clients share the two cores. The same arrivals for all:

- `unscheduled`: a server for each model, two threads each, which know nothing of each other;
- `unscheduled, one thread`: the same with one thread each, on whichever core is free;
- `one lane`: one server that runs one batch at a time on both cores;
- `a lane a core`: one server, two lanes of one core, all models on both;
- `timetable`: one lane, and a window for each model: a third of a period of half the deadline
  (OctopInf's duty cycle).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from bench import models, servers
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.offer import Answered, Offered, offer, rest
from bench.servers import Serving
from slacktide.lab.workloads import Fixed, Replay

MODELS = ("residual", "text", "dense")
HEAVY = "residual"
SLO = 0.1
LOADS = (0.5, 0.8)
BURST = 6
"""Most requests that come together; 1 to so many, evenly."""
WARMUP = 2.0
SEEDS = (1, 2, 3)
SETTINGS = {
    "unscheduled": "cores: 2\n",
    "unscheduled, one thread": "cores: 1\n",
    "one lane": "",
    "a lane a core": "replicas: 2\n",
    "timetable": "window: {{every: 50ms, start: {start}ms, end: {end}ms}}\n",
}
"""Of each model, by way."""

Row = tuple[str, float]
"""(way, load)."""


def run(options: Options) -> Result:
    """Half a minute for each way, load and seed (8 s and one seed when quick)."""
    duration, seeds = (8.0, SEEDS[:1]) if options.quick else (30.0, SEEDS)
    result = Result("windows", seeds=seeds)
    alone = {name: models.measure_bare(name, [1], duration / 10).alone for name in MODELS}
    ways = [way for way in SETTINGS if options.wants(way)]
    answered_by_row: dict[Row, list[dict[str, Answered]]] = {}
    for seed in seeds:
        for way in ways:
            with _serving(way) as serving:
                for name in MODELS:
                    rest(serving[name], [name], alone[name])
                for load in LOADS:
                    answered = _offer(serving, alone, load, duration, seed)
                    answered_by_row.setdefault((way, load), []).append(answered)
    _report(result, ways, answered_by_row)
    result.details["alone_ms"] = {name: seconds * 1e3 for name, seconds in alone.items()}
    return result


@contextmanager
def _serving(way: str) -> Iterator[dict[str, Serving]]:
    """Which server to ask for each model."""
    apart, module = way.startswith("unscheduled"), "slacktide.cli.main"
    if way.endswith("one thread"):
        module = "bench.loose_server"
    with ExitStack() as stack:
        groups = [(name,) for name in MODELS] if apart else [MODELS]
        up = {}
        for group in groups:
            repository = _repository(way, group)
            server = servers.slacktide(repository, module=module, everywhere=True)
            up.update(dict.fromkeys(group, stack.enter_context(server)))
        yield up


def _repository(way: str, group: tuple[str, ...]) -> Path:
    window_ms = SLO / 2 * 1e3 / len(MODELS)
    contents = {}
    for name in group:
        at = MODELS.index(name)
        own = (models.example_repository() / name / "slacktide.yaml").read_text()
        stated = SETTINGS[way].format(
            start=round(at * window_ms, 3), end=round((at + 1) * window_ms, 3)
        )
        contents[name] = (models.model_file(name).read_bytes(), own + stated)
    return models.variant_repository("-".join(("windows", *way.split(), *group)), contents)


def _arrivals(rate: float, duration: float, seed: int) -> Replay:
    """Bursts at random instants."""
    generator = np.random.default_rng(seed)
    mean = (1 + BURST) / 2
    bursts = generator.poisson(rate / mean * duration)
    instants = np.sort(generator.uniform(0.0, duration, bursts))
    return Replay(np.repeat(instants, generator.integers(1, BURST + 1, bursts)), "bursts")


def _offer(
    serving: dict[str, Serving], alone: dict[str, float], load: float, duration: float, seed: int
) -> dict[str, Answered]:
    """One client process for each model, so that all ways have the same clients."""
    with ProcessPoolExecutor(len(MODELS), mp_context=get_context("spawn")) as pool:
        pending_by_model = {}
        for at, name in enumerate(MODELS):
            rate = load * len(os.sched_getaffinity(0)) / len(MODELS) / alone[name]
            arrivals = _arrivals(rate, duration, seed * len(MODELS) + at)
            pending_by_model[name] = pool.submit(
                _ask, serving[name], name, arrivals, duration, seed
            )
        return {name: pending.result() for name, pending in pending_by_model.items()}


def _ask(serving: Serving, model: str, arrivals: Replay, duration: float, seed: int) -> Answered:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    load = [Offered(model, arrivals, Fixed(SLO))]
    answered = offer(serving, load, duration=duration, warmup=WARMUP, seed=seed)
    return answered.models[model]


def _report(
    result: Result, ways: list[str], answered: dict[Row, list[dict[str, Answered]]]
) -> None:
    p99, heavy, rows = {}, {}, []
    for load in LOADS:
        for way in ways:
            runs = answered[way, load]
            goodput = median(_goodput(run) for run in runs)
            heavy[way, load] = median(run[HEAVY].goodput for run in runs)
            p99[way, load] = median(
                max(model.latency_p99_ms for model in run.values()) for run in runs
            )
            p50 = median(max(model.latency_p50_ms for model in run.values()) for run in runs)
            cells = (goodput, heavy[way, load], p50, p99[way, load])
            rows.append(
                (
                    f"{load:g}",
                    way,
                    *(f"{cell:.3f}" for cell in cells[:2]),
                    *(f"{c:.0f}" for c in cells[2:]),
                )
            )
            for name in MODELS:
                shares = tuple(run[name].goodput for run in runs)
                result.details[f"{way}, {load:g}, {name}: in time"] = shares
    columns = ("load", "way", "in time", f"{HEAVY} in time", "p50 ms", "p99 ms, slowest model")
    result.tables.append(Table("three models on two cores", columns, tuple(rows)))
    if not {*SETTINGS} <= {*ways}:
        return
    two, single, table = "unscheduled", "unscheduled, one thread", "timetable"
    for load in LOADS:
        ratios = (p99[table, load] / p99[two, load], p99[table, load] / p99[single, load])
        for other, ratio, limit in ((two, ratios[0], 0.7), (single, ratios[1], 1.0)):
            name = f"p99 at {load:g}: timetable ÷ {other}"
            result.figures.append(Figure(name, ratio, "×", at_most(limit)))
    for other in (two, single):
        gain = heavy[table, 0.8] - heavy[other, 0.8]
        name = f"{HEAVY} in time at 0.8: timetable − {other}"
        result.figures.append(Figure(name, gain * 100, "points", at_least(15.0)))
    name = f"{HEAVY} in time at 0.5: timetable − {single}"
    gain = heavy[table, 0.5] - heavy[single, 0.5]
    result.figures.append(Figure(name, gain * 100, "points", at_least(0.0)))


def _goodput(answered: dict[str, Answered]) -> float:
    """Of all models together."""
    total = sum(model.submitted for model in answered.values())
    return sum(model.goodput * model.submitted for model in answered.values()) / total
