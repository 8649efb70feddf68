"""`ModelCounters`: counters of one version, for statistics and metrics.

Counters only rise and are never reset. A histogram has one count per bucket, and bisection finds
the bucket, so that counting a request allocates nothing.
"""

from __future__ import annotations

from bisect import bisect_left

from slacktide.domain import BatchTiming, ExitReport, Outcome, OutcomeKind, Reason
from slacktide.engine import SoloCounts

LATENCY_BOUNDS: tuple[float, ...] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
    0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Upper bounds of latency buckets, seconds: OpenTelemetry's bounds, and finer bounds below 5 ms."""
BUDGET_BOUNDS: tuple[float, ...] = (
    -1.0, -0.1, -0.05, -0.01, -0.005, -0.001, 0.0,
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip
"""Upper bounds for the seconds left to the deadline at completion; negative if late."""
ROWS_BOUNDS: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts by bucket; the last bucket has no upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class ComputeSeconds:
    """Number of batches, and their total seconds by phase."""

    __slots__ = ("count", "infer_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0

    def add(self, timing: BatchTiming) -> None:
        self.count += 1
        self.input_s += timing.input_s
        self.infer_s += timing.infer_s
        self.output_s += timing.output_s


class StageCounters:
    """Counters of one stage of a pipeline, over all its requests."""

    __slots__ = ("by_reason", "request_s", "slack_s")

    def __init__(self) -> None:
        self.by_reason: dict[Reason, int] = {}
        self.request_s = Histogram(LATENCY_BOUNDS)
        """Seconds from a request's complete input to its answer."""
        self.slack_s = Histogram(LATENCY_BOUNDS)
        """Seconds left of the stage's share of the deadline when it answers, at least 0."""


class ModelCounters:
    """One version's counters. A row is one inference in Triton's terms."""

    def __init__(self) -> None:
        self.by_reason: dict[Reason, int] = {}
        self.failed = 0
        """Requests without a result."""
        self.failed_s = 0.0
        """Seconds of failed requests, from arrival to answer."""
        self.compute = ComputeSeconds()
        """Batch times, each counted once per request with a result."""
        self.rows_offered = 0
        """Rows of all requests, whatever became of them."""
        self.rows_served = 0
        self.executions = 0
        self.by_rows: dict[int, ComputeSeconds] = {}
        """Times of executed batches, by number of rows."""
        self.by_variant: dict[str, tuple[int, int]] = {}
        """(executions, rows) by variant."""
        self.last_at_ms = 0
        """Wall-clock milliseconds since the epoch of the last result; 0 before the first."""
        self.load_s = 0.0
        """Seconds that loading took."""
        self.queue_s = Histogram(LATENCY_BOUNDS)
        self.compute_s = Histogram(LATENCY_BOUNDS)
        self.end_to_end_s = Histogram(LATENCY_BOUNDS)
        """Seconds of requests with a result, from arrival to answer."""
        self.budget_s = Histogram(BUDGET_BOUNDS)
        self.batch_rows = Histogram(ROWS_BOUNDS)
        self.crashes = 0
        self.out_of_memory = 0
        """Crashes because a worker exceeded its memory limit."""
        self.circuit_openings = 0
        self.damaged_pictures = 0
        """Number of pictures answered although they may be damaged."""
        self.exits: dict[int, int] = {}
        """Requests answered by a ramp, by position."""
        self.judged: dict[int, tuple[int, int]] = {}
        """(rows on which a ramp was compared with the model, rows that agreed), by position."""
        self.exits_saved_s = 0.0
        """Seconds between a row's answer by a ramp and the end of its batch, summed over rows."""
        self.stages: dict[str, StageCounters] = {}
        """Stages of a pipeline that have answered a request."""
        self.loop_s = 0.0
        """Seconds that the event loop spent between stages of a pipeline."""
        self.samples = SoloCounts()
        """The engine's counts of requests that ran again alone."""

    def answered(self, outcome: Outcome, rows: int, timing: BatchTiming | None) -> None:
        reason = outcome.reason
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        self.rows_offered += rows
        queue_s, compute_s = outcome.queue_s, outcome.compute_s
        kind = reason.kind
        if kind is not OutcomeKind.SERVED and kind is not OutcomeKind.LATE:
            self.failed += 1
            self.failed_s += queue_s + compute_s
            return
        if timing is not None:
            self.compute.add(timing)
        if outcome.ramp is not None:
            self.exits[outcome.ramp] = self.exits.get(outcome.ramp, 0) + 1
        self.rows_served += rows
        self.queue_s.add(queue_s)
        self.compute_s.add(compute_s)
        self.end_to_end_s.add(queue_s + compute_s)
        if outcome.budget_s is not None:
            self.budget_s.add(outcome.budget_s)

    def stage_answered(self, stage: str, outcome: Outcome) -> None:
        counters, reason = self.stages.get(stage), outcome.reason
        if counters is None:
            counters = self.stages[stage] = StageCounters()
        counters.by_reason[reason] = counters.by_reason.get(reason, 0) + 1
        if reason.kind is OutcomeKind.SERVED or reason.kind is OutcomeKind.LATE:
            counters.request_s.add(outcome.queue_s + outcome.compute_s)
            if outcome.budget_s is not None:
                counters.slack_s.add(max(0.0, outcome.budget_s))

    def executed(self, rows: int, timing: BatchTiming, at_ms: int, variant: str = "") -> None:
        self.executions += 1
        self.last_at_ms = at_ms
        self.batch_rows.add(rows)
        batch = self.by_rows.get(rows)
        if batch is None:
            batch = self.by_rows[rows] = ComputeSeconds()
        batch.add(timing)
        if variant:
            batches, before = self.by_variant.get(variant, (0, 0))
            self.by_variant[variant] = batches + 1, before + rows

    def judge(self, report: ExitReport, seconds: float) -> None:
        """Count the answers that ramps gave in a batch that took `seconds`."""
        ramps, stage_s = report.ramps, report.stage_s
        for agrees in report.agrees:
            for ramp, agreed in zip(ramps, agrees, strict=False):  # up to the row's exit
                judged, before = self.judged.get(ramp, (0, 0))
                self.judged[ramp] = judged + 1, before + agreed
        for last_stage in report.left:
            if 0 <= last_stage < len(stage_s):
                self.exits_saved_s += max(0.0, seconds - stage_s[last_stage])
