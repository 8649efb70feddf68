"""Play one cell in virtual time: engine, scheduler, exits planner, and a table as worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import (
    Command,
    Deployment,
    Event,
    ExitMode,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Request,
    Route,
    RunBatch,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import AsExpected, ExitTable, Simulation, TableExits
from slacktide.planning import Planner
from slacktide.planning.exits import ExitsPlanner, StatedExits
from slacktide.profiles import CorrectedTimes
from slacktide.scheduling import PoolRecipe
from slacktide_papers.apparate.baselines import (
    AnsweredRows,
    Floats,
    best_single,
    offline_optimum,
    online_optimum,
    tuned_once,
)
from slacktide_papers.apparate.experiments import ExitCell
from slacktide_papers.apparate.setting import MAX_BATCH, MODEL, SLO_X, arrivals, load_table, peak
from slacktide_papers.harness.experiments import Contender

Bools = NDArray[np.bool_]

LOSS = 0.01
"""Largest permitted share of wrong answers, unless a contender states another."""
WINDOW = 512
"""Answers in a window over which accuracy should hold."""
BEGIN_S = 2.0
"""Seconds before the first request, in which replicas start and the first ramps open."""
WITHIN = 2
"""Frames after a change within which its answer should come."""
JOB_S = 0.01
"""Seconds that a tuning job computes off the event loop."""
DROPPED = 0.2
"""Texts come so fast that just under this share is dropped without exits (§5.1)."""
PLATFORMS: Mapping[str, PoolRecipe] = MappingProxyType(
    {
        "clockwork": PoolRecipe("clockwork"),
        "fifo": PoolRecipe("fifo", {"max_queue": 2 * MAX_BATCH}),
        "slack": PoolRecipe("slack"),
    }
)
"""`fifo` works like TF-Serving: in order, at most two waiting batches (Apparate's code)."""
LEAST_LOAD, MOST_LOAD, LOAD_STEP = 0.05, 4.0, 0.02
"""Range of the search for the highest load, and its precision."""
_POOL = PoolId(MODEL, "1")
_PLAN = Plan(
    (LaneSpec("lane", (0,)),), (Deployment(_POOL, "lane", MAX_BATCH),), (Route(MODEL, _POOL),)
)


@dataclass(frozen=True, slots=True)
class PlayedExits:
    """Outcome of a run."""

    requests: int
    answered: int
    on_time: int
    latency_ms: Sequence[float]
    """Latency of answered requests, from arrival: percentiles 0 to 100."""
    agreement: float
    """Share of answers that equal the model's own."""
    windows: float
    """Share of windows of 512 consecutive answers with at least 99 % (or 1 − loss) right."""
    course: Sequence[float]
    """Agreement in each block of 512 answers, in order."""
    exits: float
    """Share of answers given by a ramp."""
    ramps: float
    """Active ramps, averaged over time."""
    moves: int
    """Changes of the active ramps."""
    rows: float
    """Rows of a batch, on average."""
    busy: float
    """Share of the time in which batches ran."""
    load: float = 0.0
    """Arrival rate as a multiple of peak throughput with full batches."""
    caught: float | None = None
    """Share of changes of the model's answer whose answer came within two frames; None: the table
    does not hold the model's answers."""
    delay_p95: float | None = None
    """95th percentile of the delay, in frames, to an answer that lasts two further frames."""
    remembered: float = 0.0
    """Share of remembered answers."""


def play(cell: ExitCell) -> PlayedExits:
    """Play `cell`; equal cells give equal outcomes. Raises ReproduceError."""
    table = load_table(cell.table, cell.digest)
    if cell.inputs:
        table = table.part(0, cell.inputs)
    if not cell.on_time:
        return _played(cell, table)
    least, most = 0.0, MOST_LOAD
    best = _played(replace(cell, load=LEAST_LOAD), table)
    while most - least > LOAD_STEP:
        load = 0.5 * (least + most)
        played = _played(replace(cell, load=load), table)
        if played.on_time >= cell.on_time * played.requests:
            least, best = load, replace(played, load=load)
        else:
            most = load
    return best


def _played(cell: ExitCell, table: ExitTable) -> PlayedExits:
    alone = float(table.whole[0])
    rate = cell.rate or cell.load * peak(table) or table.rate
    even = table.rate > 0.0
    if not rate:
        rate = _text_rate(cell.table, cell.digest, len(table), cell.folder)
    instants = arrivals(len(table), rate, cell.folder, cell.seed, even=even)
    options = dict(cell.contender.options)
    loss = float(options.get("accuracy_loss", LOSS))
    if cell.contender.policy != "optimum":
        stated = _stated(cell.contender, table, loss)
        return _Run(table, cell.platform, cell.slo_x * alone, instants, stated).played(loss)
    run = _Run(table, cell.platform, cell.slo_x * alone, instants, None)
    run.played(loss)
    rows = run.answered_rows()
    pasts = [int(past) for past in str(options["pasts"]).split()]
    exits = online_optimum(table, rows, pasts, loss) if pasts else offline_optimum(table, rows)
    latency = rows.ending_at(table, exits)
    everywhere = np.column_stack((table.agrees, np.ones(len(table), bool)))
    right = everywhere[rows.inputs, exits]
    return run.concluded(latency, right, float((exits < len(table.positions)).mean()), loss)


def _stated(contender: Contender, table: ExitTable, loss: float) -> StatedExits | None:
    """How the contender's exits are managed; None: it has no exits."""
    options = dict(contender.options)
    every = tuple(range(len(table.positions)))
    if contender.policy == "vanilla":
        return None
    if contender.policy == "single":
        ramp, threshold = best_single(table, loss)
        return StatedExits(
            ramp_budget=1.0, mode=ExitMode.RELEASE, ramps=(ramp,), thresholds=(threshold,)
        )
    if contender.policy == "once":
        thresholds = tuned_once(table, str(options["kind"]), loss)
        return StatedExits(
            ramp_budget=1.0, mode=ExitMode.RELEASE, ramps=every, thresholds=thresholds
        )
    return StatedExits(
        accuracy_loss=loss,
        ramp_budget=float(options.get("ramp_budget", 0.05)),
        mode=ExitMode(str(options["mode"])),
        moving=not options.get("fixed"),
        promise=str(options.get("promise", "window")),
        remember_frames=int(options.get("remember", 0)),
    )


@lru_cache(maxsize=8)
def _text_rate(path: Path, digest: str, inputs: int, folder: Path | None) -> float:
    """Requests per second at which just under a fifth of them is dropped without exits."""
    table = load_table(path, digest).part(0, min(inputs, 6_000))
    low, high = 0.0, 2.0 * peak(table)
    for _ in range(8):
        rate = 0.5 * (low + high)
        instants = arrivals(len(table), rate, folder, 1, even=False)
        run = _Run(table, "clockwork", SLO_X * float(table.whole[0]), instants, None)
        played = run.played(LOSS)
        low, high = (rate, high) if played.answered > (1.0 - DROPPED) * len(table) else (low, rate)
    return low


def changes(table: ExitTable, right: Bools) -> tuple[float | None, float | None]:
    """Share of caught changes, and p95 of the delay (`PlayedExits`). `right` [inputs]: whether the
    answer that was given equals the model's own."""
    answers = table.answers
    if answers is None:
        return None, None
    session = np.zeros(len(table), np.int64) if table.session is None else table.session
    after = np.arange(1, len(table) - WITHIN)
    changed = (answers[after] != answers[after - 1]) & (
        session[after - 1] == session[after + WITHIN]
    )
    first = after[changed]
    delay, lasts = np.full(len(first), np.inf), np.ones(len(first), bool)
    for later in range(WITHIN + 1):
        lasts &= answers[first + later] == answers[first]
        delay = np.where(lasts & right[first + later], np.minimum(delay, later), delay)
    if not lasts.any():
        return None, None
    ranked = np.sort(delay[lasts])
    return float(np.isfinite(delay).mean()), float(ranked[int(np.ceil(0.95 * len(ranked))) - 1])


class _Run:
    """One simulation and its counters."""

    def __init__(
        self,
        table: ExitTable,
        platform: str,
        slo: float,
        instants: Floats,
        stated: StatedExits | None,
    ) -> None:
        self._table, self._slo, self._instants = table, slo, instants
        self._recipe = replace(PLATFORMS[platform], exits=stated is not None)
        self._answers: list[tuple[int, float, int]] = []
        """(request, latency in seconds, ramp that answered or −1), in order of completion."""
        self._on_time = 0
        self._batch_of: dict[int, tuple[int, int]] = {}
        """By request: (number, rows) of its last batch."""
        self._ramps: list[tuple[float, tuple[int, ...]]] = []
        """(instant of a change, ramps active from then on)."""
        planners: tuple[Planner, ...] = () if stated is None else (ExitsPlanner(),)
        self._remembers = int(stated is not None and stated.remember_frames > 0)
        """Number of ramps in front of those of the table."""
        self._exits = TableExits(table, stated)
        self._simulation = Simulation(
            Engine(self._parts),
            _PLAN,
            AsExpected(CorrectedTimes(table.times)),
            answered=self._answered,
            watch=self._watch,
            begin=-BEGIN_S,
            planners=planners,
            stated={} if stated is None else {MODEL: stated},
            job_s=JOB_S,
            exits={} if stated is None else {MODEL: self._exits},
        )

    def played(self, loss: float) -> PlayedExits:
        end = float(self._instants[-1]) + 10.0 * self._slo + 1.0
        self._simulation.run(self._requests(), until=end)
        answers = sorted(self._answers)
        inputs = np.array([id for id, _, _ in answers], dtype=np.int64)
        ramps = np.array([ramp for _, _, ramp in answers], dtype=np.int64)
        is_early = ramps >= 0
        is_remembered = is_early & (ramps < self._remembers)
        agrees = self._table.agrees[inputs, ramps - self._remembers]
        remembered = np.array(
            [self._exits.remembered.get(id, True) for id in inputs.tolist()], bool
        )
        right = ~is_early | np.where(is_remembered, remembered, agrees)
        latency = np.array([seconds for _, seconds, _ in answers])
        played = self.concluded(latency, right, float(is_early.mean()) if answers else 0.0, loss)
        on_input: Bools = np.zeros(len(self._table), bool)
        on_input[inputs] = right
        caught, delay_p95 = changes(self._table, on_input)
        share = float(is_remembered.mean()) if answers else 0.0
        return replace(played, caught=caught, delay_p95=delay_p95, remembered=share)

    def concluded(
        self, latency: Floats, right: np.ndarray, exits: float, loss: float
    ) -> PlayedExits:
        """The outcome of a run whose answers, in order, have these latencies and this
        correctness."""
        hardware = self._simulation.hardware
        edges = np.arange(0, max(1, len(right) - WINDOW + 1), WINDOW)
        sums = np.concatenate(([0], np.cumsum(right)))
        window = min(WINDOW, len(right))
        sliding = (sums[window:] - sums[: len(sums) - window]) / max(1, window)
        length = float(self._instants[-1]) or 1.0
        return PlayedExits(
            requests=len(self._instants),
            answered=len(right),
            on_time=self._on_time,
            latency_ms=np.percentile(1e3 * latency if len(latency) else [0.0], range(101))
            .round(3)
            .tolist(),
            agreement=float(right.mean()) if len(right) else 1.0,
            windows=float((sliding >= 1.0 - loss).mean()),
            course=sliding[edges].round(4).tolist(),
            exits=exits,
            ramps=self._mean_ramps(length),
            moves=max(0, len(self._ramps) - 1),
            rows=hardware.rows / max(1, hardware.batches),
            busy=hardware.busy_s / length,
        )

    def answered_rows(self) -> AnsweredRows:
        """Answered requests, in the order of their batches."""
        answers = sorted((*self._batch_of[id], id, seconds) for id, seconds, _ in self._answers)
        batches, rows, ids, latency = (np.array(column) for column in zip(*answers, strict=True))
        return AnsweredRows(ids, batches, rows, latency)

    def _mean_ramps(self, end: float) -> float:
        ends = [at for at, _ in self._ramps[1:]] + [end]
        spans = zip(self._ramps, ends, strict=False)  # empty for a run without exits
        return sum(len(ramps) * (to - max(at, 0.0)) for (at, ramps), to in spans if to > 0.0) / end

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(self._table.times)
        return self._recipe.parts(times, max_batch=max_batch, view=view)

    def _requests(self) -> Iterator[Request]:
        for id, at in enumerate(self._instants.tolist()):
            session, frame = self._table.frame(id)
            yield Request(id, MODEL, at, at + self._slo, session=session, frame=frame)

    def _answered(self, request: Request | Notice, outcome: Outcome) -> None:
        if outcome.kind in (OutcomeKind.SERVED, OutcomeKind.LATE):
            ramp = -1 if outcome.ramp is None else outcome.ramp
            self._answers.append((request.id, outcome.at - request.arrival, ramp))
            self._on_time += outcome.kind is OutcomeKind.SERVED

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        for event in events:
            if isinstance(event, PlanChanged):
                for policy in event.plan.exits:
                    if not self._ramps or self._ramps[-1][1] != policy.ramps:
                        self._ramps.append((now, policy.ramps))
        for command in commands:
            if isinstance(command, RunBatch):
                batch = command.batch
                for member in batch.members:
                    self._batch_of[member.id] = (batch.id, batch.rows)
