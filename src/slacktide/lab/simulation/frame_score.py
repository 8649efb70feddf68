"""`FrameScore`: outcomes of frames and of the objects on them, over all devices.

An object counts where it is answered: at a stage that feeds no other, back on the device where its
frame came in, and while its frame is waited for. *Effective throughput* is that per second
(OctopInf, §II). Frames count by when they came, so that all of a run's window are judged.
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
    """Frames by outcome."""
    offered: int = 0
    """Objects at the sinks, if everything is served."""
    in_time: int = 0
    """Objects at the sinks, in time."""
    worth: float = 0.0
    """Objects in time, each weighted by the accuracy of its answer."""
    latency_ms: list[int] = field(default_factory=lambda: [0] * (LATENCY_MS + 1))
    """Answered frames by milliseconds from their arrival on, rounded down."""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return self.reasons.total()

    @property
    def complete(self) -> int:
        """Frames answered completely, in time."""
        return self.reasons[Reason.ON_TIME]

    @property
    def partial(self) -> int:
        """Frames answered in part, in time."""
        return self.reasons[Reason.PARTIAL]

    @property
    def lost(self) -> int:
        """Frames without an answer in time."""
        return self.frames - self.complete - self.partial

    def percentile(self, level: float) -> float:
        """Milliseconds within which a share `level` of the answered frames was; 0 of none."""
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
        self.latency_ms = [a + b for a, b in zip(self.latency_ms, score.latency_ms, strict=True)]


class FrameScore:
    """Score of all frames that come from `start` to `end` (seconds)."""

    def __init__(
        self,
        *,
        start: float = 0.0,
        end: float = math.inf,
        bin_s: float = 10.0,
        answered: Callable[[Request, Outcome], None] | None = None,
    ) -> None:
        """`answered` is called for every frame, as for a request to its pipeline."""
        self.start, self.end, self.bin_s = start, end, bin_s
        self._answered = answered
        self.pipelines: dict[str, PipelineScore] = {}
        self.offered_in: dict[int, int] = {}
        """Objects by bin, counted from `start`."""
        self.in_time_in: dict[int, int] = {}
        self.wasted_s = 0.0
        """Seconds that batches ran for rows whose frame had already ended, each for its share."""
        self.ran_s = 0.0
        """Seconds of batches, all in all."""
        self.requests = 0
        """Requests of stages."""
        self.rows = 0
        """Rows of these requests."""
        self.parts: Counter[str] = Counter()
        """Parts that were handed over, by outcome: `answered`, `given up`, `cancelled`."""

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
        """A frame has its outcome."""
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
        """Share of batch seconds that were for frames that had ended."""
        return self.wasted_s / self.ran_s if self.ran_s else 0.0
