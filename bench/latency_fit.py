"""How well the model of cores and batch fits our own residual classifier, and what fitting costs.

How well the law over sizes holds for the same network with free height and width: known at three
sizes, asked for others, for batches of 1 to 8. ONNX Runtime alone on one thread, whose CPU time
counts, sizes in turn: what is judged is the law, not the machine.

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
from typing import Any, NamedTuple

import numpy as np

from bench.machine import ROOT
from bench.measurement import Figure, Options, Result, Table, at_most
from bench.models import model_file, variant_repository
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.profiles.amdahl import AmdahlModel, fit_grid
from slacktide.profiles.known_shape import WorkScale
from slacktide.profiles.show import duration
from slacktide.profiles.size_law import SizeLaw, SizeWork

MODEL = "residual"
MOST_ROWS = 16
CORES = (1, 2, 4, 8, 16, 32)
SIZES = (1, 2, 4, 8, 16)
SIDES = (48, 64, 80, 96, 128, 160, 192, 224, 256)
KNOWN_SIDES = (48, 96, 192)
PROFILED = 96
ROWS = (1, 2, 4, 8)


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
    if options.wants("sizes"):
        points = _law_over_sizes(3 if options.quick else 15)
        errors = tuple(100 * abs(point.predicted / point.measured - 1.0) for point in points)
        goal = at_most(8.0)
        result.figures += (
            Figure("sizes not measured, median error", median(errors), "%", goal, "", errors),
            Figure("sizes not measured, worst error", max(errors), "%"),
        )
        columns = [str(side) for side in SIDES if side not in KNOWN_SIDES]
        errors_of = {
            (point.rows, point.side): point.predicted / point.measured - 1.0 for point in points
        }
        result.tables.append(
            Table(
                f"error of the law, by batch and side; known at {KNOWN_SIDES}",
                ("batch", *columns),
                tuple(
                    (str(rows), *(f"{errors_of[rows, int(side)]:+.1%}" for side in columns))
                    for rows in ROWS
                ),
            )
        )
        result.details["sizes"] = [point._asdict() for point in points]
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


class SizedPoint(NamedTuple):
    """A batch of a size that the law did not know; seconds."""

    rows: int
    side: int
    measured: float
    predicted: float


def _law_over_sizes(rounds: int) -> list[SizedPoint]:
    """What the law says of the sides that are not among those known."""
    session = free_size_session()
    rng = np.random.default_rng(0)
    seconds: dict[tuple[int, int], list[float]] = {}
    batches = {
        (rows, side): rng.integers(0, 256, (rows, 3, side, side), dtype=np.uint8)
        for side in SIDES
        for rows in ROWS
    }
    for number in range(rounds + 1):
        for key, frames in batches.items():
            begin = time.thread_time()
            session.run(None, {"frames": frames})
            if number:  # the first of each counts for nothing
                seconds.setdefault(key, []).append(time.thread_time() - begin)
    took = {key: median(those) for key, those in seconds.items()}
    profiled = [[took[rows, PROFILED]] for rows in ROWS]
    scale = WorkScale(LatencyTable.from_grid(ROWS, (1,), profiled, profiled))
    law = SizeLaw.fit(
        [
            SizeWork((side / PROFILED) ** 2, scale.work_of(took[1, side], 1, 1))
            for side in KNOWN_SIDES
        ]
    )
    assert law is not None
    return [
        SizedPoint(
            rows,
            side,
            took[rows, side],
            scale.table_of(law.work((side / PROFILED) ** 2)).expected(rows, 1),
        )
        for rows, side in took
        if side not in KNOWN_SIDES
    ]


def free_size_session() -> Any:
    """The residual classifier with free height and width, on one thread."""
    import onnx
    import onnxruntime

    model = onnx.load(model_file(MODEL))
    shape = model.graph.input[0].type.tensor_type.shape.dim
    shape[2].dim_param, shape[3].dim_param = "height", "width"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


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
