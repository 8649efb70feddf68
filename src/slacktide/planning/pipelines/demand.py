"""Learns the demand of pipelines: rates, fan-out, burstiness.

Devices report sums since they started, so that a lost report costs nothing; the planner takes
differences over up to a minute. A frame counts at its camera, even if a link loses it. Fan-out is
learnt from answered rows, so that dropped rows do not look like less demand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import OutcomeKind, Reason
from slacktide.engine.request_table import ModelCounts
from slacktide.pipelines import Frames
from slacktide.planning.pipelines.problem import PipelineView

KEPT_S = 60.0
"""Longest average, seconds."""
LEAST_ROWS = 10
"""Minimum rows from which a fan-out or burstiness is learnt; with fewer rows, the stated value
holds."""


class StageArrivals:
    """Sums over the rows of one stage that arrived at one device. Constant work per request."""

    __slots__ = ("_last", "gaps", "rows", "seconds", "squares")

    def __init__(self) -> None:
        self._last = math.nan
        self.rows = 0
        self.gaps = 0
        """Number of gaps between rows; gaps within a request are 0."""
        self.seconds = 0.0
        """Sum of the gaps, in seconds."""
        self.squares = 0.0
        """Sum of the squared gaps."""

    def add(self, rows: int, at: float) -> None:
        """Count rows that arrive together."""
        gap = at - self._last
        self._last = at
        self.rows += rows
        if gap >= 0.0:  # not the first
            self.gaps += rows
            self.seconds += gap
            self.squares += gap * gap


@dataclass(frozen=True, slots=True)
class PipelineCounts:
    """Counts of a pipeline on one device since the device started."""

    frames: int
    """Frames from cameras of the device."""
    edges: Mapping[tuple[str, str], tuple[int, int]]
    """By (upstream, downstream): rows of the upstream stage answered there, and rows handed on."""
    stages: Mapping[str, tuple[int, int, float, float]]
    """By stage that runs there: rows, gaps, seconds and squares of `StageArrivals`."""
    ended: int = 0
    """Frames and parts of frames with an outcome."""
    served: float = 0.0
    """Frames and parts answered in time; one with only some stages counts half."""


def counts_of(
    frames: Frames | None, arrivals: Mapping[str, Mapping[str, StageArrivals]]
) -> dict[str, PipelineCounts]:
    """Return the report of a device, by pipeline. `arrivals`: by pipeline and stage."""
    counts = {}
    for name, served in {} if frames is None else frames.pipelines.items():
        edges = zip(served.pipeline.edges, served.fan_outs, strict=True)
        outcomes = frames.counts[name] if frames and name in frames.counts else ModelCounts()
        counts[name] = PipelineCounts(
            served.frames,
            {(e.upstream, e.downstream): (fan.rows, fan.handed_on) for e, fan in edges},
            {
                stage: (counter.rows, counter.gaps, counter.seconds, counter.squares)
                for stage, counter in arrivals.get(name, {}).items()
            },
            outcomes.ended,
            outcomes.count(OutcomeKind.SERVED) - 0.5 * outcomes.by_reason.get(Reason.PARTIAL, 0),
        )
    return counts


class Demand:
    """Demand of one pipeline, from the counts of all devices."""

    def __init__(self, view: PipelineView) -> None:
        """`view`: the stated demand, which holds until more is known."""
        self.view = view
        self._history: dict[str, deque[tuple[float, list[float]]]] = {}
        """By device: (time, counts) of the last minute."""

    def note(self, device: str, counts: PipelineCounts, *, now: float) -> None:
        """Add the report of a device."""
        flat: list[float] = [counts.frames]
        stages = self.view.stages
        for stage in stages:
            for inflow in stage.inflows:
                flat += counts.edges.get((stages[inflow.stage].name, stage.name), (0, 0))
        for stage in stages:
            flat += counts.stages.get(stage.name, (0, 0, 0.0, 0.0))
        flat += (counts.ended, counts.served)
        history = self._history.setdefault(device, deque())
        if history and any(count < last for count, last in zip(flat, history[-1][1], strict=True)):
            history.clear()  # the device has restarted
        history.append((now, flat))
        while len(history) > 2 and history[1][0] <= now - KEPT_S:
            history.popleft()

    def rows(self, stage: int) -> int:
        """Return how many rows have arrived at a stage so far, on all devices."""
        first = self._first(stage)
        return int(sum(history[-1][1][first] for history in self._history.values()))

    def outcomes(self, window: float, *, now: float) -> tuple[float, float]:
        """Return (frames with an outcome, frames served) in the last `window` seconds."""
        history = self._history.get(self.view.source)
        if not history:
            return 0.0, 0.0
        first = next((flat for at, flat in reversed(history) if at <= now - window), history[0][1])
        last = history[-1][1]
        return last[-2] - first[-2], last[-1] - first[-1]

    def measured(self, windows: Sequence[float], *, now: float) -> PipelineView:
        """Return the pipeline as measured: the largest rate and fan-outs of several windows
        (seconds, ascending), and the burstiness over the longest. Unknown values stay as stated."""
        samples = [sample for sample in (self._over(w, now) for w in windows) if sample is not None]
        if not samples:
            return self.view
        rate = max(sample[0] for sample in samples)
        longest = samples[-1][1]
        at, stages = 0, []
        for number, stage in enumerate(self.view.stages):
            inflows = []
            for inflow in stage.inflows:
                fan_outs = []
                for _, counts in samples:
                    rows, handed_on = counts[1 + at : 3 + at]
                    if rows >= LEAST_ROWS:
                        fan_outs.append(handed_on / rows)
                at += 2
                inflows.append(replace(inflow, fan_out=max(fan_outs, default=inflow.fan_out)))
            _, gaps, seconds, squares = longest[self._first(number) :][:4]
            bursts = stage.burstiness
            if gaps >= LEAST_ROWS and seconds > 0.0:
                bursts = math.sqrt(max(0.0, gaps * squares / (seconds * seconds) - 1.0))
            stages.append(replace(stage, inflows=tuple(inflows), burstiness=bursts))
        return replace(self.view, rate=rate, stages=tuple(stages))

    def _over(self, window: float, now: float) -> tuple[float, list[float]] | None:
        """Return (frames per second, counts) of the last `window` seconds; None: unknown."""
        total: list[float] = []
        rate, known_for = 0.0, 0.0
        for history in self._history.values():
            begin = history[0]
            for sample in reversed(history):
                begin = sample
                if sample[0] <= now - window:
                    break
            seconds = history[-1][0] - begin[0]
            if seconds <= 0.0 or seconds < 0.5 * window:
                continue
            known_for = max(known_for, seconds)
            counts = [last - first for last, first in zip(history[-1][1], begin[1], strict=True)]
            rate += counts[0] / seconds
            total = [a + b for a, b in zip(total, counts, strict=True)] if total else counts
        return (rate, total) if known_for > 0.0 else None

    def _first(self, stage: int) -> int:
        edges = sum(len(view.inflows) for view in self.view.stages)
        return 1 + 2 * edges + 4 * stage
