"""Saturated with the residual classifier: rows/s of the server beside onnxruntime alone.

A closed loop of best-effort requests keeps the queue full; everything of the server runs on one
core, the client on another. The bare loop runs the same model on the same core; what it would have
made of the very batches that the server ran (from the server's statistics) is what ours is held
against: rows / Σ over sizes of batches × median seconds. Rounds alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench import models, servers
from bench.clients import h2load
from bench.measurement import Figure, Options, Result, Table, at_least, format_number
from bench.servers import Serving
from slacktide.lab.examples import example
from slacktide.profiles import batch_sizes

MODEL, MAX_BATCH = "residual", 8
OUTSTANDING = 24
"""Three full batches: one runs, one waits, one is on its way."""


def run(options: Options) -> Result:
    """Five rounds (three short ones when quick)."""
    rounds, seconds = (3, 3.0) if options.quick else (5, 10.0)
    result = Result("throughput")
    # As the example is served, but best effort: with a deadline part of a full queue is refused.
    content = example(MODEL).onnx()
    repository = models.variant_repository(
        "throughput", {MODEL: (content, f"max_batch: {MAX_BATCH}\n")}
    )
    body = models.oip_body(models.requests(MODEL, 1)[0])
    shares: list[float] = []
    rows: list[tuple[str, ...]] = []
    with servers.slacktide(repository) as ours:
        for number in range(rounds):
            before = models.measure_bare(MODEL, batch_sizes(MAX_BATCH), seconds / 2)
            start = _batches(ours)
            rate = h2load(ours, MODEL, body, seconds=seconds, outstanding=OUTSTANDING)
            ran = {size: n - start.get(size, 0) for size, n in _batches(ours).items()}
            after = models.measure_bare(MODEL, batch_sizes(MAX_BATCH), seconds / 2)
            bare = (_bare_rate(ran, before) + _bare_rate(ran, after)) / 2
            shares.append(rate.per_second / bare)
            mean = sum(size * n for size, n in ran.items()) / sum(ran.values())
            figures = map(format_number, (rate.per_second, bare, shares[-1], mean))
            rows.append((str(number + 1), *figures, str(rate.failed)))
    result.figures.append(
        Figure(
            "rows/s ÷ bare onnxruntime loop, same batches and core",
            median(shares),
            "×",
            at_least(0.95),
            samples=tuple(shares),
        )
    )
    columns = ("round", "ours rows/s", "bare rows/s", "ratio", "mean batch", "without a 2xx")
    result.tables.append(Table(f"{MODEL}, saturated", columns, tuple(rows)))
    return result


def _batches(serving: Serving) -> Mapping[int, int]:
    """How many batches of each size the server has run."""
    stats: dict[str, Any] = serving.fetch(f"/v2/models/{MODEL}/stats")["model_stats"][0]
    return {stat["batch_size"]: stat["compute_infer"]["count"] for stat in stats["batch_stats"]}


def _bare_rate(ran: Mapping[int, int], bare: models.BareTimes) -> float:
    """Rows/s of onnxruntime alone over these batches."""
    table = bare.table()
    seconds = sum(n * table.expected(size, 1) for size, n in ran.items())
    return sum(size * n for size, n in ran.items()) / seconds
