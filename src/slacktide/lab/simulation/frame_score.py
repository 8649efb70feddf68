"""`FrameScore`: outcomes of frames and of the objects on them, over all devices.

An object counts if its answer, from a stage that feeds no other, is back on the device of its
frame's camera before the frame ends. *Effective throughput* is the number of such objects
per second (OctopInf, §II). A frame counts if it arrives within the scored window.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from slacktide.domain import Outcome, OutcomeKind, Reason, Request

LATENCY_MS = 2_000
"""Upper end of the latency histogram, milliseconds."""


@dataclass(slots=True)
class PipelineScore:
    """Score of one pipeline."""

    reasons: Counter[Reason] = field(default_factory=Counter)
    """Number of frames by outcome."""
    offered: int = 0
    """Number of objects at the sinks if everything is served."""
    in_time: int = 0
    """Number of objects answered at the sinks in time."""
    worth: float = 0.0
    """Sum of the accuracies of the objects answered in time."""
    accuracies: Counter[float] = field(default_factory=Counter)
    """Number of these objects by the mean accuracy of their frame."""
    latency_ms: list[int] = field(default_factory=lambda: [0] * (LATENCY_MS + 1))
    """Number of answered frames by milliseconds since their arrival, rounded down."""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return self.reasons.total()

    @property
    def complete(self) -> int:
        """Number of frames answered completely and in time."""
        return self.reasons[Reason.ON_TIME]

    @property
    def partial(self) -> int:
        """Number of frames answered in part and in time."""
        return self.reasons[Reason.PARTIAL]

    @property
    def lost(self) -> int:
        """Number of frames without an answer in time."""
        return self.frames - self.complete - self.partial

    def percentile(self, level: float) -> float:
        """Return the quantile `level` (0 to 1) of answered frames' milliseconds; 0 without any."""
        rank, total = level * sum(self.latency_ms), 0
        for ms, count in enumerate(self.latency_ms):
            total += count
            if count and total >= rank:
                return float(ms)
        return 0.0

    def add(self, score: PipelineScore) -> None:
        """Add the counts of another score."""
        self.reasons += score.reasons
        self.offered += score.offered
        self.in_time += score.in_time
        self.worth += score.worth
        self.accuracies += score.accuracies
        self.latency_ms = [a + b for a, b in zip(self.latency_ms, score.latency_ms, strict=True)]


class FrameScore:
    """Score of all frames that arrive from `start` to `end` (seconds)."""

    def __init__(
        self,
        *,
        start: float = 0.0,
        end: float = math.inf,
        bin_s: float = 10.0,
        answered: Callable[[Request, Outcome], None] | None = None,
    ) -> None:
        """`answered` is called for every frame, with a request that names the pipeline as model."""
        self.start, self.end, self.bin_s = start, end, bin_s
        self._answered = answered
        self.pipelines: dict[str, PipelineScore] = {}
        self.offered_in: dict[int, int] = {}
        """Number of objects by bin of `bin_s` seconds since `start`."""
        self.in_time_in: dict[int, int] = {}
        self.wasted_s = 0.0
        """Batch seconds, shared out by rows, spent on rows whose frame had already ended."""
        self.ran_s = 0.0
        """Total seconds of all batches."""
        self.requests = 0
        """Number of requests of stages."""
        self.rows = 0
        """Number of rows of these requests."""
        self.parts: Counter[str] = Counter()
        """Number of parts sent to other devices, by `answered`, `given up` and `cancelled`."""

    def ended(
        self,
        pipeline: str,
        arrival: float,
        offered: int,
        in_time: int,
        reason: Reason,
        at: float,
        worth: float,
    ) -> None:
        """Note the outcome of a frame."""
        if self._answered is not None:
            self._answered(Request(0, pipeline, arrival, arrival), Outcome(reason, at))
        if not self.start <= arrival < self.end:
            return
        score = self.pipelines.get(pipeline)
        if score is None:
            score = self.pipelines[pipeline] = PipelineScore()
        score.reasons[reason] += 1
        score.offered += offered
        score.in_time += in_time
        score.worth += worth
        number = int((arrival - self.start) / self.bin_s)
        self.offered_in[number] = self.offered_in.get(number, 0) + offered
        if in_time:
            score.accuracies[round(worth / in_time, 4)] += in_time
            self.in_time_in[number] = self.in_time_in.get(number, 0) + in_time
        if reason.kind is OutcomeKind.SERVED:
            score.latency_ms[min(int(1e3 * (at - arrival)), LATENCY_MS)] += 1

    @property
    def total(self) -> PipelineScore:
        """Score of all pipelines together."""
        total = PipelineScore()
        for score in self.pipelines.values():
            total.add(score)
        return total

    @property
    def wasted(self) -> float:
        """Share of batch seconds that were spent on frames that had ended."""
        return self.wasted_s / self.ran_s if self.ran_s else 0.0
