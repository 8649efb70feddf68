"""Answers in time under load and overload: one row per (model, load, deadline).

Everything of a server runs on one core, the client on another. Ours serves all example models in
its default configuration, the same for every row; each peer has one setting for every row too
(bench/peers). A row and seed are measured in one go: onnxruntime alone (which gives capacity,
batch-1 latency and the yardsticks' batch times), then each server in turn on the same arrivals.
Judged by the client's clock from the intended send.

    load        Poisson, or Gamma gaps with a coefficient of variation of 3, as a multiple of
                capacity: rows/s of a closed loop at batch 1 on that core, just measured
    deadline    a multiple of the batch-1 latency; `mix` is 2, 5 and 10 × in equal parts

Full: 60 s and three seeds a row, hours in all, kept in bench/results/goodput-full.jsonl: what is
there is not measured again (`--fresh` sets it aside). `--quick`: 15 s, one seed. `--rows` picks
rows by any part of their names, such as `dense poisson` or `10x`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import servers, yardstick
from bench.machine import RESULTS, ROOT, cores, pin, pinned, provenance
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.models import DEEP, BareTimes, example_repository, measure_bare, model_file
from bench.offer import Offered, offer, planned, rest
from bench.peers import CAP, PeerMissingError
from bench.servers import Serving
from slacktide.lab.workloads import Arrivals, Deadlines, Fixed, Gamma, Mix, Poisson
from slacktide.profiles import batch_sizes

MAX_BATCH = {"residual": 8, "dense": 32, DEEP: 32}
"""Of the example models' settings: what the yardsticks may batch; and of `deep` in `notice`."""
LOADS = {
    "residual": (("poisson", (0.8, 1.0, 1.3, 2.0)), ("gamma", (0.8, 1.3))),
    "dense": (("poisson", (0.8, 1.0, 1.3, 2.0, 4.0)), ("gamma", (0.8, 1.3))),
}
DEADLINES = ("2x", "5x", "10x", "mix")
FACTORS = {"2x": 2.0, "5x": 5.0, "10x": 10.0}
CV = 3.0
WARMUP = 2.0
"""Seconds of load that are not scored."""
PROFILE_BUDGET = "10s"
YARDSTICKS = ("edf", "slack", "symphony", "symphony p99")
"""Columns of simulated policies; empty in records that are older than a policy."""
RATIO_GOAL, REFUSAL_GOAL_MS = 0.95, 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    model: str
    process: str
    factor: float
    """Of capacity."""
    deadline: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.process} {self.factor:g} {self.deadline}"

    def load(self, bare: BareTimes) -> Offered:
        rate = self.factor * bare.capacity
        arrivals: Arrivals = Poisson(rate) if self.process == "poisson" else Gamma(rate, CV)
        deadlines: Deadlines
        if self.deadline == "mix":
            deadlines = Mix(tuple(factor * bare.alone for factor in FACTORS.values()))
        else:
            deadlines = Fixed(FACTORS[self.deadline] * bare.alone)
        return Offered(self.model, arrivals, deadlines)


ROWS = tuple(
    Row(model, process, factor, deadline)
    for model, loads in LOADS.items()
    for process, factors in loads
    for factor in factors
    for deadline in DEADLINES
)


def run(options: Options) -> Result:
    """Measure what is not in the results file yet, then show all of it."""
    duration, seeds = (15.0, (1,)) if options.quick else (60.0, (1, 2, 3))
    store = Store(RESULTS / f"goodput-{'quick' if options.quick else 'full'}.jsonl")
    if options.fresh:
        store.set_aside()
    result = Result("goodput", seeds=seeds)
    rows = [row for row in ROWS if options.wants(row.name)]
    missing = [(row, seed) for row in rows for seed in seeds if not store.has(row.name, seed)]
    if missing:
        _measure(missing, store, duration, options, result)
    _summarise([record for row in rows for record in store.of(row.name)], result)
    return result


class Store:
    """Measured rows in a file of JSON lines, one for each (row, seed)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def set_aside(self) -> None:
        """Start anew; what was there keeps lying beside it."""
        if self._path.exists():
            self._path.rename(self._path.with_suffix(f".{int(time.time())}.jsonl"))
        self._records = []

    def has(self, row: str, seed: int) -> bool:
        return any(record["row"] == row and record["seed"] == seed for record in self._records)

    def of(self, row: str) -> list[dict[str, Any]]:
        return [record for record in self._records if record["row"] == row]

    def add(self, record: dict[str, Any]) -> None:
        self._records.append(record)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _measure(
    missing: Sequence[tuple[Row, int]],
    store: Store,
    duration: float,
    options: Options,
    result: Result,
) -> None:
    pin(cores().client)
    repository = example_repository()
    for model in {row.model for row, _ in missing}:
        profile(repository / model)
    with servers.slacktide(repository) as ours:
        for model in dict.fromkeys(row.model for row, _ in missing):
            with _beside(model, options, result) as peers:
                for row, seed in missing:
                    if row.model == model:
                        record = _row(row, seed, [ours, *peers], duration)
                        store.add(record)
                        print(_line(record), file=sys.stderr, flush=True)


def profile(folder: Path) -> None:
    """As its manual advises before serving: measure the model on the core it will run on."""
    code = "from slacktide.cli.main import main; main()"
    command = [sys.executable, "-c", code, "profile", str(folder), "--budget", PROFILE_BUDGET]
    subprocess.run(pinned(cores().server, command), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _beside(model: str, options: Options, result: Result) -> Iterator[list[Serving]]:
    """The peers that serve `model`, up together; they cost nothing while nobody asks them."""
    with contextlib.ExitStack() as stack:
        up: list[Serving] = []
        file = model_file(model)
        starts = (
            lambda: servers.mosec(model, file),
            lambda: servers.plain({model: file}, CAP),
        )
        for start in starts if options.peers else ():
            try:
                up.append(stack.enter_context(start()))
            except (PeerMissingError, servers.ServerFailedError) as error:
                remark = str(error)
                if remark not in result.remarks:
                    result.remarks.append(remark)
        yield up


def _row(row: Row, seed: int, servings: Sequence[Serving], duration: float) -> dict[str, Any]:
    """Measure one row with one seed, all servers in turn."""
    sizes = batch_sizes(MAX_BATCH[row.model])
    bare = measure_bare(row.model, sizes, 1.5 if duration < 60 else 4.0)
    load = row.load(bare)
    runs = {}
    for serving in servings:
        rest(serving, [row.model], bare.alone)
        offered_run = offer(serving, [load], duration=duration, warmup=WARMUP, seed=seed)
        runs[serving.name] = {
            **asdict(offered_run.models[row.model]),
            "lateness_p99_ms": offered_run.lateness_p99_ms,
            "complaints": dict(offered_run.complaints),
        }
    after = measure_bare(row.model, [1], 0.5)
    arrivals = planned(load, length=WARMUP + duration, seed=seed)
    return {
        "row": row.name,
        "model": row.model,
        "deadline": row.deadline,
        "seed": seed,
        "duration_s": duration,
        "capacity_rps": bare.capacity,
        "alone_ms": bare.alone * 1e3,
        "alone_after_ms": after.alone * 1e3,
        "batch_ms": {str(size): bare.median(size) * 1e3 for size in sizes},
        "servers": runs,
        "yardstick": yardstick.goodput(
            arrivals, bare, MAX_BATCH[row.model], scored_from=WARMUP, seed=seed
        ),
        "from": provenance(),
    }


def _line(record: dict[str, Any]) -> str:
    """One record in short, for the terminal."""
    goodputs = {**record["yardstick"]}
    goodputs |= {name: run["goodput"] for name, run in record["servers"].items()}
    values = "  ".join(f"{name} {value:.3f}" for name, value in goodputs.items())
    return f"{record['row']}, seed {record['seed']}: {values}"


def _summarise(records: Sequence[dict[str, Any]], result: Result) -> None:
    """Means over seeds for each row, and the worst row of each goal."""
    lines = []
    ratios: dict[str, float] = {}
    leads: dict[str, float] = {}
    refusals: dict[str, float] = {}
    peers = list(
        dict.fromkeys(n for record in records for n in record["servers"] if n != "slacktide")
    )
    for name in dict.fromkeys(record["row"] for record in records):
        mine = [record for record in records if record["row"] == name]
        ours = _mean(mine, "slacktide")
        simulated = {
            policy: float(np.mean([r["yardstick"].get(policy, np.nan) for r in mine]))
            for policy in YARDSTICKS
        }
        beside = {peer: _mean(mine, peer) for peer in peers}
        best = max((value for value in beside.values() if value == value), default=float("nan"))
        refused = max(record["servers"]["slacktide"]["refusal_p99_ms"] for record in mine)
        ratio = ours / max(simulated["edf"], simulated["slack"])
        if mine[0]["deadline"] != "2x":
            ratios[name] = ratio
        leads[name] = ours - best
        if any(record["servers"]["slacktide"]["refusals"] >= 100 for record in mine):
            refusals[name] = refused
        cells = [f"{value:.3f}" for value in (ours, *simulated.values(), ratio, *beside.values())]
        lines.append((name, str(len(mine)), *cells, f"{refused:.2f}"))
    columns = ("row", "seeds", "ours", *YARDSTICKS, "ratio", *peers, "refusal p99 ms")
    result.tables.append(Table("Goodput: ours, yardsticks, peers", columns, tuple(lines)))
    result.details["records"] = list(records)
    _worst(result, "lowest ratio to the better yardstick (5x, 10x, mix)", ratios, RATIO_GOAL, min)
    leads = {name: lead for name, lead in leads.items() if lead == lead}
    _worst(result, "lowest lead over the best peer", leads, 0.0, min)
    _worst(result, "slowest refusals, p99", refusals, REFUSAL_GOAL_MS, max)
    _warn(records, result)


def _worst(result: Result, name: str, values: dict[str, float], limit: float, choose: Any) -> None:
    """The figure that decides a goal: the row that is furthest from it."""
    if values:
        row = choose(values, key=lambda candidate: values[candidate])
        unit = "ms" if choose is max else ""
        goal = at_most(limit) if choose is max else at_least(limit)
        result.figures.append(Figure(name, values[row], unit, goal, note=row))


def _warn(records: Sequence[dict[str, Any]], result: Result) -> None:
    """What makes a record less than trustworthy."""
    for record in records:
        runs = record["servers"].values()
        late = max(run["lateness_p99_ms"] for run in runs)
        where = f"{record['row']}, seed {record['seed']}"
        if late > 2.0:
            result.remarks.append(f"{where}: the client itself was {late:.1f} ms late at p99")
        drift = record["alone_after_ms"] / record["alone_ms"]
        if not 0.9 < drift < 1.1:
            result.remarks.append(
                f"{where}: the machine changed meanwhile: batch 1 takes {drift:.2f} × as long"
            )
    commits = {record["from"]["commit"] for record in records}
    if len(commits) > 1:
        result.remarks.append(f"rows from several commits: {', '.join(sorted(map(str, commits)))}")


def _mean(records: Sequence[dict[str, Any]], server: str) -> float:
    """Mean goodput over seeds; NaN where the server was not measured."""
    goodputs = [r["servers"][server]["goodput"] for r in records if server in r["servers"]]
    return float(np.mean(goodputs)) if goodputs else float("nan")
