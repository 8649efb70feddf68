"""Three models on one core: does one lane keep them out of each other's way?

Residual classifier, text encoder and weight-bound network, each offered a third of 0.9 of the core
(0.3 × its capacity at batch 1, Poisson), deadlines 10 × the slowest one's batch-1 latency. First
each alone, then all together, in ours; the same in the plain server, which runs whatever comes at
once. Everything of a server is on one core; the server is `slacktide serve` with a line written for
each batch (bench/recording_server.py).

CPU time of a batch rises when others share the caches and the memory while it runs: on a lane
nothing else runs, so its p99 must stay what it is alone. It is compared batch size by batch size,
since together the queues, and so the batches, may be longer.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from bench import models, servers
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.offer import Offered, Run, offer, rest
from bench.peers import PeerMissingError
from bench.servers import Serving
from slacktide.lab.workloads import Fixed, Poisson

MODELS = ("residual", "text", "dense")
SHARE = 0.3
"""Of the core, each."""
DEADLINE_FACTOR = 10.0
WARMUP = 2.0
SEED = 1

Costs = Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]
"""(CPU seconds, wall seconds) of batches, by model and rows."""


def run(options: Options) -> Result:
    """A minute alone each, a minute together (10 s each when quick)."""
    duration, fewest = (10.0, 20) if options.quick else (60.0, 200)
    result = Result("shared_lane", seeds=(SEED,))
    repository = models.example_repository()
    pin(cores().client)
    bare = {name: models.measure_bare(name, [1], duration / 20) for name in MODELS}
    deadline = DEADLINE_FACTOR * max(measured.alone for measured in bare.values())
    load = {
        name: Offered(name, Poisson(SHARE * bare[name].capacity), Fixed(deadline))
        for name in MODELS
    }

    def drive(serving: Serving, names: Sequence[str]) -> Run:
        rest(serving, MODELS, max(measured.alone for measured in bare.values()))
        return offer(
            serving, [load[name] for name in names], duration=duration, warmup=WARMUP, seed=SEED
        )

    with tempfile.NamedTemporaryFile("r", suffix=".batches") as log:
        os.environ["BENCH_BATCH_LOG"] = log.name
        with servers.slacktide(repository, module="bench.recording_server") as ours:
            _compare("ours", ours, drive, lambda: _logged(log.readlines()), fewest, result)
    if options.peers:
        files = {name: models.model_file(name) for name in MODELS}
        try:
            with servers.plain(files) as plain:
                _compare("plain", plain, drive, lambda: _asked(plain), fewest, result)
        except (PeerMissingError, servers.ServerFailedError) as error:
            result.remarks.append(str(error))
    result.details["deadline_ms"] = deadline * 1e3
    result.details["capacity_rps"] = {name: measured.capacity for name, measured in bare.items()}
    return result


def _compare(
    server: str,
    serving: Serving,
    drive: Callable[[Serving, Sequence[str]], Run],
    costs: Callable[[], Costs],
    fewest: int,
    result: Result,
) -> None:
    """Each alone, then together; figures with goals for ours."""
    costs()  # what start and warm-up ran
    alone: dict[str, Mapping[int, Sequence[tuple[float, float]]]] = {}
    alone_goodput = {}
    for name in MODELS:
        answered = drive(serving, [name]).models[name]
        alone_goodput[name] = answered.goodput
        result.details[f"{server}, {name} alone"] = asdict(answered)
        alone[name] = costs().get(name, {})
    together = drive(serving, MODELS)
    shared = costs()
    result.details[f"{server}, together"] = asdict(together)
    ours = server == "ours"
    rows = []
    for name in MODELS:
        answered = together.models[name]
        result.figures.append(
            Figure(
                f"{server}: goodput of {name}",
                answered.goodput,
                "",
                at_least(0.95) if ours else None,
                _endings(answered.endings),
            )
        )
        cpu = _p99_ratio(alone[name], shared.get(name, {}), 0, fewest)
        wall = _p99_ratio(alone[name], shared.get(name, {}), 1, fewest)
        if cpu is not None:
            result.figures.append(
                Figure(
                    f"{server}: CPU time per batch of {name}, p99 together ÷ alone",
                    cpu,
                    "×",
                    at_most(1.15) if ours else None,
                )
            )
        else:
            result.remarks.append(f"{server}: too few batches of {name} of one size to compare")
        rows.append(
            (
                name,
                f"{alone_goodput[name]:.3f}",
                f"{answered.goodput:.3f}",
                f"{answered.latency_p50_ms:.1f}",
                f"{answered.latency_p99_ms:.1f}",
                _cpu_text(alone[name]),
                _cpu_text(shared.get(name, {})),
                "-" if cpu is None else f"{cpu:.2f}",
                "-" if wall is None else f"{wall:.2f}",
            )
        )
    columns = (
        "model", "goodput alone", "together", "p50 ms", "p99 ms", "CPU p99 ms alone", "together",
        "CPU ratio", "wall ratio",
    )  # fmt: skip
    result.tables.append(Table(f"{server}: three models on one core", columns, tuple(rows)))


def _endings(endings: Mapping[str, int]) -> str:
    """What else became of the requests."""
    others = [f"{n} {ending}" for ending, n in endings.items() if ending != "on_time"]
    return ", ".join(others)


def _logged(lines: Sequence[str]) -> Costs:
    """What recording_server.py has written since the last look."""
    times: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        model, rows, cpu, _, seconds = line.split()
        times[model][int(rows)].append((float(cpu), float(seconds)))
    return times


def _asked(plain: Serving) -> Costs:
    """What the plain server has counted since the last look; every run is one row."""
    return {name: {1: [tuple(pair) for pair in plain.fetch(f"/cpu/{name}")]} for name in MODELS}


def _p99_ratio(
    alone: Mapping[int, Sequence[tuple[float, float]]],
    shared: Mapping[int, Sequence[tuple[float, float]]],
    which: int,
    fewest: int,
) -> float | None:
    """p99 together ÷ p99 alone, averaged over the batch sizes that have enough of both."""
    ratios, weights = [], []
    for rows in sorted(alone.keys() & shared.keys()):
        if min(len(alone[rows]), len(shared[rows])) >= fewest:
            ratios.append(_p99(shared[rows], which) / _p99(alone[rows], which))
            weights.append(rows * len(shared[rows]))
    return float(np.average(ratios, weights=weights)) if ratios else None


def _p99(costs: Sequence[tuple[float, float]], which: int) -> float:
    return float(np.percentile([cost[which] for cost in costs], 99))


def _cpu_text(costs: Mapping[int, Sequence[tuple[float, float]]]) -> str:
    """p99 at the commonest size."""
    if not costs:
        return "-"
    rows = max(costs, key=lambda size: len(costs[size]))
    return f"{_p99(costs[rows], 0) * 1e3:.2f} (batch {rows})"
