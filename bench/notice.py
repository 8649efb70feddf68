"""Notice: what it gains to plan on requests whose headers are here and whose bodies are not.

Clients send headers that name the deadline, and the body a fifth of the batch-1 latency later. Two
servers with the same models and the same profiles take turns on the same arrivals: `slack` as it
is, which may hold the lane for a body that is about to be complete, and `slack` with `lead: 0`,
which never does. Which of them goes first changes from seed to seed.

    dense       weight-bound: 4 × capacity, deadlines 2 × the batch-1 latency, and 2, 5 and 10 × in
                equal parts; one more row costs a batch next to nothing, so it is worth a pause
    deep        the same with its middle layer many times over, so that the fifth of its latency is
                longer than the server's loop takes to turn
    residual    2 × capacity, deadlines 2 ×; every row costs its own time, and a pause is wasted

The deadline counts from the headers, so a fifth of the latency is gone when the body comes.
Capacity and latency are those of onnxruntime alone on the servers' core, just measured. Judged by
the client's clock from the intended send of the headers.

Full: 60 s and four seeds, medians of the seeds. `--quick`: 15 s, two seeds. `--rows` picks rows by
any part of their names.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import servers
from bench.goodput import MAX_BATCH, Row, profile
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, at_least
from bench.models import DEEP, BareTimes, measure_bare, model_file, variant_repository
from bench.offer import offer, rest
from bench.servers import Serving
from slacktide.models.repository.profile_store import PROFILE_PREFIX

UPLOAD = 0.2
"""From headers to body, in batch-1 latencies: as long as `slack` holds a lane by default."""
WARMUP = 2.0
WITH, WITHOUT = "slack", "slack, lead 0"
SCHEDULERS = {WITH: "slack", WITHOUT: "{name: slack, lead: 0}"}

ROWS = (
    Row("dense", "poisson", 4.0, "2x"),
    Row("dense", "poisson", 4.0, "mix"),
    Row(DEEP, "poisson", 4.0, "2x"),
    Row(DEEP, "poisson", 4.0, "mix"),
    Row("residual", "poisson", 2.0, "2x"),
)
VIRTUAL = {"dense poisson 4 2x": 4.0, "dense poisson 4 mix": 2.2, "residual poisson 2 2x": 0.0}
"""Points gained in virtual time, where serving costs nothing; batch times of `dense`."""
BETTER = 0.1
"""Points that the weight-bound network must gain: what a table would show."""


def run(options: Options) -> Result:
    """Both servers in turn, for each row and seed."""
    duration, seeds = (15.0, (1, 2)) if options.quick else (60.0, (1, 2, 3, 4))
    result = Result("notice", seeds=seeds)
    rows = [row for row in ROWS if options.wants(row.name)]
    pin(cores().client)
    repositories = _repositories({row.model for row in rows})
    records = []
    with (
        servers.slacktide(repositories[WITH]) as with_notice,
        servers.slacktide(repositories[WITHOUT]) as without,
    ):
        both = {WITH: with_notice, WITHOUT: without}
        for row in rows:
            for seed in seeds:
                bare = measure_bare(row.model, [1], duration / 20)
                turns = dict(sorted(both.items(), reverse=seed % 2 == 0))
                records.append(_turns(row, turns, bare, duration, seed))
    _summarise(records, result)
    return result


def _repositories(models: set[str]) -> dict[str, Path]:
    """The models for each server; what is known of their batch times is the same."""
    repositories = {}
    for number, (name, scheduler) in enumerate(SCHEDULERS.items()):
        variants = {
            model: (
                model_file(model).read_bytes(),
                f"slo: 100ms\nmax_batch: {MAX_BATCH[model]}\nscheduler: {scheduler}\n",
            )
            for model in models
        }
        repositories[name] = variant_repository(f"notice_{number}", variants)
    for model in models:
        measured, copied = (repositories[name] / model for name in SCHEDULERS)
        profile(measured)
        for path in (measured / "1").glob(f"{PROFILE_PREFIX}*"):
            shutil.copy(path, copied / "1" / path.name)
    return repositories


def _turns(
    row: Row, turns: Mapping[str, Serving], bare: BareTimes, duration: float, seed: int
) -> dict[str, Any]:
    """The same arrivals to each server, one after the other."""
    load = row.load(bare)
    runs = {}
    for name, serving in turns.items():
        rest(serving, [row.model], bare.alone)
        offered_run = offer(
            serving,
            [load],
            duration=duration,
            warmup=WARMUP,
            seed=seed,
            upload=UPLOAD * bare.alone,
        )
        runs[name] = {
            **asdict(offered_run.models[row.model]),
            "lateness_p99_ms": offered_run.lateness_p99_ms,
            "complaints": dict(offered_run.complaints),
        }
        goodput = runs[name]["goodput"]
        print(f"{row.name}, seed {seed}: {name} {goodput:.3f}", file=sys.stderr, flush=True)
    return {
        "row": row.name,
        "seed": seed,
        "duration_s": duration,
        "capacity_rps": bare.capacity,
        "alone_ms": bare.alone * 1e3,
        "runs": runs,
    }


def _summarise(records: Sequence[dict[str, Any]], result: Result) -> None:
    """Medians over seeds; gains are formed within a seed."""
    lines = []
    for name in dict.fromkeys(record["row"] for record in records):
        mine = [record for record in records if record["row"] == name]
        goodput = {scheduler: _all(mine, scheduler, "goodput") for scheduler in SCHEDULERS}
        gains = 100.0 * (goodput[WITH] - goodput[WITHOUT])
        result.figures.append(
            Figure(
                f"{name}: gained by notice",
                float(np.median(gains)),
                "points",
                at_least(BETTER) if not name.startswith("residual") else None,
                note=f"virtual time {VIRTUAL[name]:+.1f}" if name in VIRTUAL else "",
                samples=tuple(map(float, gains)),
            )
        )
        late = max(_all(mine, scheduler, "lateness_p99_ms").max() for scheduler in SCHEDULERS)
        alone = float(np.median([record["alone_ms"] for record in mine]))
        lines.append(
            (
                name,
                *(f"{np.median(goodput[scheduler]):.3f}" for scheduler in SCHEDULERS),
                ", ".join(f"{gain:+.1f}" for gain in gains),
                f"{alone:.2f}",
                f"{late:.2f}",
            )
        )
        if late > 0.1 * alone:
            result.remarks.append(f"{name}: the client itself was {late:.1f} ms late at p99")
    columns = ("row", *SCHEDULERS, "points, by seed", "alone ms", "client late p99 ms")
    result.tables.append(Table("Goodput with and without notice", columns, tuple(lines)))
    result.details["records"] = list(records)


def _all(
    records: Sequence[dict[str, Any]], name: str, figure: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """One figure of one server, by seed, shape (len(records),)."""
    return np.array([record["runs"][name][figure] for record in records], dtype=np.float64)
