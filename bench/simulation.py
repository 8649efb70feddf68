"""The simulator on one core: requests per second, and memory over millions of them.

Four figures. *edf*: one model, constant batch times, Poisson arrivals at 0.95 of the peak and
deadlines of eight batches, so that a busy lane runs batches of ten and more. *slack*: setting P of
`slacktide reproduce orloj` (one lane, five batch sizes, two modes, 2 × P99). *Memory*: what this
process holds after the last request of a long run beyond what it held after the first tenth.
*Command*: `slacktide simulate` with the load of *edf* as a scenario, batch times drawn from its
profile, in turns with *edf* itself. Two runs of the command, of 10,000 requests and of many, are
told from one another: what they differ by is the requests', so that start-up does not count.

Everything is counted that a simulation does: drawing arrivals and making requests, the engine, the
policy, the scores. CPU time of this process, so that neighbours do not count.
`python -m bench.simulation [edf|slack]` profiles instead of measuring.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from slacktide.domain import Deployment, LaneSpec, OutcomeKind, Plan, PoolId, Request, Route
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import (
    AsExpected,
    ByLength,
    DrawnRequest,
    Execution,
    Simulation,
    rng_for,
)
from slacktide.lab.simulation.world.results import Scorer
from slacktide.profiles import (
    BatchTimes,
    CorrectedTimes,
    FixedTimes,
    LatencyTable,
    classes_of_samples,
)
from slacktide.scheduling import make_scheduler
from slacktide_papers.orloj.setting import SETTINGS, draw_requests

FIXED, PER_ROW, MAX_BATCH = 0.004, 0.0005, 16
"""Seconds: a batch of sixteen takes 12 ms."""
LOAD = 0.95
BATCHES_LEFT = 8.0
"""Budget of a request, in batches of sixteen."""
SEED = 1
CHUNK = 4096
FIRST = 10_000
"""Requests of the command's shorter run."""
MIB = 1 << 20
POOL = PoolId("m", "1")


def simulated(policy: str, times: BatchTimes, execution: Execution, scorer: Scorer) -> Simulation:
    """One model under `policy` on one lane."""

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        scheduler = make_scheduler(policy, {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(scheduler, times)

    plan = Plan(
        (LaneSpec("cpu", (0,)),), (Deployment(POOL, "cpu", MAX_BATCH),), (Route("m", POOL),)
    )
    return Simulation(Engine(parts), plan, execution, answered=scorer.answered)


def poisson(count: int, rate: float, slo: float, marks: dict[int, float]) -> Iterator[Request]:
    """`count` requests, drawn a chunk at a time. Fills in `marks`: memory (MiB) by requests."""
    generator = rng_for(SEED, "arrivals")
    at, id = 0.0, 0
    while id < count:
        arrivals = at + np.cumsum(generator.exponential(1.0 / rate, min(CHUNK, count - id)))
        at = float(arrivals[-1])
        for arrival in arrivals.tolist():
            yield Request(id, "m", arrival, arrival + slo)
            id += 1
            if id in marks:
                marks[id] = resident_mib()


def run_edf(count: int, marks: dict[int, float] | None = None) -> tuple[float, float]:
    """(requests per second of CPU time, mean batch) of `count` requests."""
    table = LatencyTable.linear(FIXED, PER_ROW, MAX_BATCH, spread=1.1)
    longest = FIXED + PER_ROW * MAX_BATCH
    rate = LOAD * MAX_BATCH / longest
    scorer = Scorer(duration_s=1.2 * count / rate)
    simulation = simulated("edf", CorrectedTimes(table), AsExpected(CorrectedTimes(table)), scorer)
    requests = poisson(count, rate, BATCHES_LEFT * longest, marks or {})
    return measured(simulation, requests, count)


def run_slack(count: int) -> tuple[float, float]:
    """The same of setting P."""
    drawn = draw_requests(SETTINGS["P"], "two-modal", seed=SEED, requests=count)
    classes = classes_of_samples(
        drawn.training, drawn.latency, shares=drawn.shares, most=len(drawn.training)
    )
    scorer = Scorer(duration_s=float(drawn.arrivals[-1]) + 1.0)
    simulation = simulated("slack", FixedTimes(classes), ByLength(drawn.latency), scorer)
    slo = 2.0 * drawn.p99_alone
    columns = zip(drawn.arrivals.tolist(), drawn.lengths.tolist(), drawn.applications, strict=True)
    requests = (
        DrawnRequest(id, "m", arrival, arrival + slo, application=application, length=length)
        for id, (arrival, length, application) in enumerate(columns)
    )
    return measured(simulation, requests, len(drawn.arrivals))


def measured(
    simulation: Simulation, requests: Iterator[Request], count: int
) -> tuple[float, float]:
    """Run it; (requests per second of CPU time, mean batch)."""
    begin = process_time()
    simulation.run(requests)
    seconds = process_time() - begin
    counts = simulation.engine.state.request_table.counts["m"]
    if counts.ended != count or not counts.count(OutcomeKind.SERVED):
        raise RuntimeError(f"{counts.ended} of {count} requests have ended: {counts.by_reason}")
    return count / seconds, simulation.hardware.rows / simulation.hardware.batches


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process has taken."""

    requests: int
    seconds: float
    """CPU time."""
    peak_bytes: int


def run_command(count: int) -> Spent:
    """`slacktide simulate` of about `count` requests, as a process of its own."""
    longest = FIXED + PER_ROW * MAX_BATCH
    rate = LOAD * MAX_BATCH / longest
    medians = [FIXED + PER_ROW * rows for rows in (1, MAX_BATCH)]
    latency = {
        "batches": [1, MAX_BATCH],
        "p50": [[_ms(seconds)] for seconds in medians],
        "p99": [[_ms(1.1 * seconds)] for seconds in medians],
    }
    slo = _ms(BATCHES_LEFT * longest)
    text = json.dumps(
        {
            "duration": f"{count / rate}s",
            "seeds": SEED,
            "scheduler": "edf",
            "models": {"m": {"latency": latency}},
            "applications": {"a": {"model": "m", "arrivals": f"poisson:{rate}", "slo": slo}},
        }
    )
    with TemporaryDirectory() as folder:
        scenario, report = Path(folder, "edf.yaml"), Path(folder, "report.json")
        scenario.write_text(text)
        with report.open("wb") as out:
            command = (sys.executable, "-m", "slacktide", "simulate", str(scenario), "--json")
            process = subprocess.Popen(command, stdout=out)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"slacktide simulate ended with {process.returncode}")
        submitted = json.loads(report.read_bytes())["total"]["submitted"]
    return Spent(submitted, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.6g}ms"


def command_figures(rounds: int, count: int) -> Iterator[Figure]:
    """The command beside the bare driver, in turns."""
    shares, growths, rates, gross = [], [], [], []
    for _ in range(rounds):
        few, many = run_command(FIRST), run_command(FIRST + count)
        bare, _ = run_edf(count)
        further = many.requests - few.requests
        rates.append(further / (many.seconds - few.seconds))
        shares.append(rates[-1] / bare)
        gross.append(many.requests / many.seconds / bare)
        growths.append((many.peak_bytes - few.peak_bytes) / further)
    yield Figure(
        f"command: {count:,} requests, share of the bare driver's rate",
        median(shares),
        "×",
        at_least(0.75),
        note=f"{median(rates):,.0f} requests/s; start-up and all {median(gross):.2f} ×",
        samples=tuple(shares),
    )
    yield Figure(
        f"command: memory beyond the first {FIRST:,} requests",
        median(growths),
        "bytes each",
        at_most(8.0),
        samples=tuple(growths),
    )


def resident_mib() -> float:
    """Memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * getpagesize() / MIB


def run(options: Options) -> Result:
    """Median of five runs (three when quick); the long run once."""
    pin(cores().server)
    result = Result("simulation", seeds=(SEED,))
    rounds, few, many, most = (
        (3, 50_000, 20_000, 1_000_000) if options.quick else (5, 200_000, 50_000, 10_000_000)
    )
    gc.collect()
    gc.freeze()  # what the imports left is not the simulator's to collect
    kinds = (
        ("edf", f"one model, {LOAD:g} of the peak", 100_000, lambda: run_edf(few)),
        ("slack", "setting P, two-modal, 2 x P99", 15_000, lambda: run_slack(many)),
    )
    for policy, workload, goal, once in kinds:
        if not options.wants(policy):
            continue
        runs = [once() for _ in range(rounds)]
        rates = tuple(rate for rate, _ in runs)
        result.figures.append(
            Figure(
                f"{policy}, {workload}",
                median(rates),
                "requests/s",
                at_least(goal),
                note=f"mean batch {runs[0][1]:.1f}",
                samples=rates,
            )
        )
    if options.wants("command"):
        result.figures += command_figures(rounds, 100_000 if options.quick else 1_000_000)
    if options.wants("memory"):
        marks = {most // 10: 0.0, most: 0.0}
        run_edf(most, marks)
        early, late = marks.values()
        result.figures.append(
            Figure(
                f"memory after {most // 10:,} and after {most:,} requests: growth",
                late - early,
                "MiB",
                at_most(8.0),
                note=f"{early:.0f} to {late:.0f} MiB in all",
            )
        )
    return result


if __name__ == "__main__":
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    run_slack(20_000) if "slack" in sys.argv else run_edf(100_000)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)
