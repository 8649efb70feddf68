"""How well the model of cores and batch fits our own residual classifier, and what fitting costs.

`slacktide profile` as a user runs it, on one core, two, … all, batches of 1 to 16; the fit is that
of the stored p99s and of the medians. The fit to measurements from elsewhere is a figure of
`slacktide reproduce sponge --data`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from bench.machine import ROOT
from bench.measurement import Figure, Options, Result, Table, at_most
from bench.models import model_file, variant_repository
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.profiles.amdahl import AmdahlModel, fit_grid
from slacktide.profiles.show import duration

MODEL = "residual"
MOST_ROWS = 16
CORES = (1, 2, 4, 8, 16, 32)
SIZES = (1, 2, 4, 8, 16)


def run(options: Options) -> Result:
    """Three thorough profiles, of which each p99 is its own (one of 10 s when quick)."""
    rounds, effort = (1, ("--budget", "10s")) if options.quick else (3, ("--thorough",))
    result = Result("latency_fit")
    if options.wants("residual"):
        fits = [_profile(effort) for _ in range(rounds)]
        for name, goal in (("p99", at_most(8.0)), ("p50", None)):
            errors = tuple(fit[name]["median_error"] * 100 for fit in fits)
            worst = tuple(fit[name]["worst_error"] * 100 for fit in fits)
            result.figures += (
                Figure(f"residual, {name}, median error", median(errors), "%", goal, "", errors),
                Figure(f"residual, {name}, worst error", median(worst), "%", samples=worst),
            )
        result.tables.append(
            Table(
                "p99 of the residual classifier, last profile",
                ("batch", "cores", "measured", "model"),
                tuple(
                    (
                        str(point["batch"]),
                        str(point["cores"]),
                        duration(point["measured_s"]),
                        duration(point["predicted_s"]),
                    )
                    for point in fits[-1]["p99"]["points"]
                ),
            )
        )
        result.details["fits"] = fits
    if options.wants("cost"):
        fitting, planning = _costs(5 if options.quick else 50)
        result.figures += (
            Figure("cost: CPU time of a fit to 30 points", fitting, "ms"),
            Figure("cost: p99 of 16 × 16 choices after a revision", planning, "ms"),
        )
    return result


def _profile(effort: Sequence[str]) -> dict[str, dict[str, float | list[dict[str, float]]]]:
    """The fits that a profile of the model prints."""
    settings = f"slo: 100ms\nmax_batch: {MOST_ROWS}\n"
    root = variant_repository("latency_fit", {MODEL: (model_file(MODEL).read_bytes(), settings)})
    command = [sys.executable, "-m", "slacktide", "profile", str(root / MODEL)]
    done = subprocess.run(
        [*command, *effort, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (version,) = json.loads(done.stdout).values()
    return version["fit"]


def _costs(rounds: int) -> tuple[float, float]:
    """Milliseconds of CPU time, medians."""
    model = AmdahlModel(0.018, 0.011, 0.0036, 0.0059)
    wave = [0.9, 1.0, 1.15, 1.05]
    grid = [
        [model.seconds(b, c) * wave[(3 * i + j) % 4] for j, c in enumerate(CORES)]
        for i, b in enumerate(SIZES)
    ]
    # Eight cores measured, sixteen asked for: a planner's questions rest on the model.
    short = [row[:4] for row in grid]
    times = CorrectedTimes(LatencyTable.from_grid(SIZES, CORES[:4], short, short))
    fits, plans = [], []
    for number in range(rounds):
        factor = 1.5 if number % 2 else 1 / 1.5  # to and fro: corrections are bounded
        begin = time.process_time()
        fit_grid(SIZES, CORES, grid)
        middle = time.process_time()
        revision = times.revision
        while times.revision == revision:
            times.observe(factor * times.of(4, 4).expected, (), 4, 4)
        start = time.process_time()
        for cores in range(1, 17):
            for rows in range(1, 17):
                times.of(rows, cores)
        plans.append(time.process_time() - start)
        fits.append(middle - begin)
    return median(fits) * 1e3, median(plans) * 1e3
