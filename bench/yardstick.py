"""What a scheduler could reach on given arrivals if serving cost nothing: goodput, simulated.

One lane, virtual time. Batch times are drawn from those that onnxruntime alone took in the same
run; there is no network, no copying, no other process. The policies:

    edf     earliest deadline first, the largest batch that its head allows, and a head that cannot
            be on time any more is given up. Knows the median time of each batch size.
    slack   our own scheduler with its admission, by the same medians, learning as in the server.
    symphony, symphony p99   Symphony by the same learning times, or by their p99.

Where requests are of several sizes (`slack_by_size`), `slack` knows what each of them takes.

A live server pays for what the yardstick leaves out, so a ratio of 1 is out of reach in principle;
a better policy than both may still pass it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from bench.models import BareTimes
from slacktide.domain import (
    Batch,
    Deployment,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PoolId,
    Replica,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.engine.ports import Proposal, WaitUntil
from slacktide.lab.simulation import Simulation
from slacktide.models.plugins import offer_entry_points
from slacktide.profiles import BatchLatency, CorrectedTimes, FixedTimes, classes_of_samples
from slacktide.scheduling import make_scheduler

Seconds = NDArray[np.float64]

HEDGE = 1e-9
"""Seconds: rounding must not decide whether a batch that fits exactly is on time."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests of one row, in the order they come. Arrays have shape (n,)."""

    due: Seconds
    """Seconds from the start."""
    allowance: Seconds
    """Seconds from `due` to the deadline."""


class DrawnTimes:
    """Batch times drawn from measured ones.

    Sizes between two measured ones get the same quantile of both, interpolated.
    """

    def __init__(self, bare: BareTimes, rng: np.random.Generator) -> None:
        self._sizes = sorted(bare.samples)
        self._sorted = {size: np.sort(bare.samples[size]) for size in self._sizes}
        self._rng = rng

    def draw(self, rows: int) -> float:
        """Seconds of one batch."""
        return self.quantile(rows, self._rng.random())

    def expected(self, rows: int) -> float:
        """Median seconds."""
        return self.quantile(rows, 0.5)

    def quantile(self, rows: int, level: float) -> float:
        sizes = self._sizes
        index = bisect_left(sizes, rows)
        if index == len(sizes):
            raise ValueError(f"batches of {rows} were not measured")
        high = float(np.quantile(self._sorted[sizes[index]], level))
        if sizes[index] == rows:
            return high
        low = float(np.quantile(self._sorted[sizes[index - 1]], level))
        return low + (high - low) * (rows - sizes[index - 1]) / (sizes[index] - sizes[index - 1])


def edf(arrivals: Arrivals, times: DrawnTimes, max_batch: int) -> NDArray[np.bool_]:
    """Which requests are on time, shape (n,), under `edf` that gives up late heads."""
    expected = [0.0, *(times.expected(rows) for rows in range(1, max_batch + 1))]
    due = arrivals.due
    deadline = due + arrivals.allowance
    on_time = np.zeros(len(due), dtype=np.bool_)
    queue: list[tuple[float, int]] = []
    now, coming = 0.0, 0
    while coming < len(due) or queue:
        if not queue:
            now = max(now, float(due[coming]))
        while coming < len(due) and due[coming] <= now:
            heappush(queue, (float(deadline[coming]), coming))
            coming += 1
        while queue and now + expected[1] > queue[0][0] + HEDGE:
            heappop(queue)
        if not queue:
            continue
        budget = queue[0][0] - now + HEDGE
        rows = max(n for n in range(1, max_batch + 1) if n == 1 or expected[n] <= budget)
        members = [heappop(queue)[1] for _ in range(min(rows, len(queue)))]
        now += times.draw(len(members))
        on_time[members] = now <= deadline[members]
    return on_time


class _Lane:
    """The one lane, as schedulers see it."""

    lanes = 1
    cores = 1

    def __init__(self) -> None:
        self.expected_end = 0.0

    def free_in(self, *, now: float) -> float:
        return max(0.0, self.expected_end - now)

    def leave(self, *, now: float) -> Callable[[float], float]:
        return float


def scheduled(
    policy: str,
    options: Mapping[str, object],
    arrivals: Arrivals,
    times: DrawnTimes,
    bare: BareTimes,
    max_batch: int,
) -> NDArray[np.bool_]:
    """Which requests are on time, shape (n,), under a scheduler by name."""
    lane = _Lane()
    believed = CorrectedTimes(bare.table())
    scheduler = make_scheduler(policy, options, max_batch=max_batch, times=believed, view=lane)
    replica = Replica(0, PoolId("m", "1"), "lane", (0,), max_batch)
    due = arrivals.due
    deadline = due + arrivals.allowance
    on_time = np.zeros(len(due), dtype=np.bool_)
    now, coming, batches = 0.0, 0, 0

    def admit(until: float) -> None:
        nonlocal coming
        while coming < len(due) and due[coming] <= until:
            at = float(due[coming])
            scheduler.expire(now=at)
            scheduler.add(Request(coming, "m", at, float(deadline[coming])), now=at)
            coming += 1

    while coming < len(due) or len(scheduler):
        if not len(scheduler):
            now = max(now, float(due[coming]))
        admit(now)
        scheduler.expire(now=now)
        proposal = scheduler.propose(replica, now=now)
        if not isinstance(proposal, Proposal):
            if len(scheduler):  # until it wants to be asked again, or the next request
                expiry = scheduler.next_expiry()
                wake = proposal.at if isinstance(proposal, WaitUntil) else inf
                wake = min(wake, inf if expiry is None else expiry)
                now = min(wake, float(due[coming]) if coming < len(due) else inf)
            continue
        batch = Batch(batches, replica, proposal.members, proposal.rows, now, now + 1.0)
        batches += 1
        scheduler.take(batch)
        lane.expected_end = now + believed.of(proposal.rows, 1).expected
        seconds = times.draw(proposal.rows)
        admit(now + seconds)
        now += seconds
        believed.observe(seconds, (), proposal.rows, 1)
        members = [member.id for member in proposal.members]
        on_time[members] = now <= deadline[members]
        lane.expected_end = now
    return on_time


def goodput(
    arrivals: Arrivals, bare: BareTimes, max_batch: int, *, scored_from: float, seed: int
) -> dict[str, float]:
    """Share of requests that come at `scored_from` or later and are on time, by policy."""

    def drawn() -> DrawnTimes:
        return DrawnTimes(bare, np.random.default_rng([seed, 0xB16]))

    policies: dict[str, Callable[[], NDArray[np.bool_]]] = {
        "edf": lambda: edf(arrivals, drawn(), max_batch),
        "slack": lambda: scheduled("slack", {}, arrivals, drawn(), bare, max_batch),
        "symphony": lambda: scheduled("symphony", {}, arrivals, drawn(), bare, max_batch),
        "symphony p99": lambda: scheduled(
            "symphony", {"guarantee": "p99"}, arrivals, drawn(), bare, max_batch
        ),
    }
    offer_entry_points()
    scored = arrivals.due >= scored_from
    return {name: float(policy()[scored].mean()) for name, policy in policies.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """Requests of several sizes, in the order they come. Arrays have shape (n,)."""

    arrivals: Arrivals
    size: NDArray[np.int64]
    """Which size each request is of, counted from 0."""


class TimesBySize:
    """Batches of one size take `fixed` + k · (seconds alone − `fixed`), k being their rows."""

    def __init__(self, alone: Sequence[Seconds], fixed: float, rng: np.random.Generator) -> None:
        """`alone[s]`: seconds that single rows of size s took, shape (n_s,)."""
        self._alone = alone
        self._fixed = fixed
        self._rng = rng

    def believed(self) -> FixedTimes:
        """As predictions: every size a class of its own, named by its number."""
        lengths = {str(size): seconds - self._fixed for size, seconds in enumerate(self._alone)}
        latency = BatchLatency(self._fixed, 1.0)
        return FixedTimes(classes_of_samples(lengths, latency, most=len(lengths)))

    def seconds(self, batch: Batch, cores: int) -> float:
        """As the simulation's `Execution`."""
        samples = self._alone[int(batch.members[0].application)]
        return self._fixed + batch.rows * (float(self._rng.choice(samples)) - self._fixed)


def slack_by_size(
    sized: Sized, alone: Sequence[Seconds], fixed: float, max_batch: int, *, seed: int
) -> NDArray[np.bool_]:
    """Which requests are on time, shape (n,), under `slack` that knows from the start how long
    each size takes: the server's engine on one lane, in virtual time. As `TimesBySize`."""
    times = TimesBySize(alone, fixed, np.random.default_rng([seed, 0x512E]))
    believed, pool = times.believed(), PoolId("m", "1")

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        scheduler = make_scheduler("slack", {}, max_batch=max_batch, times=believed, view=view)
        return PoolParts(scheduler, believed)

    lanes = (LaneSpec("lane", (0,)),)
    plan = Plan(lanes, (Deployment(pool, "lane", max_batch),), (Route("m", pool),))
    due, deadline = sized.arrivals.due, sized.arrivals.due + sized.arrivals.allowance
    requests = (
        Request(i, "m", at, until, signature=((size,),), application=str(size))
        for i, (at, until, size) in enumerate(
            zip(due.tolist(), deadline.tolist(), sized.size.tolist(), strict=True)
        )
    )
    on_time = np.zeros(len(due), dtype=np.bool_)

    def answered(request: Request | Notice, outcome: Outcome) -> None:
        on_time[request.id] = outcome.kind is OutcomeKind.SERVED

    Simulation(Engine(parts), plan, times, answered=answered).run(requests)
    return on_time
