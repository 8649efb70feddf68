"""From what became of each request to the numbers of a report. Pure.

`Records` are parallel arrays of shape (n,), one entry for each request sent, whatever world they
were sent in: the load generator fills them from its clock, a simulator from its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import OutcomeKind
from slacktide.load.report.document import Percentiles, StreamReport, Timeline

Seconds = NDArray[np.float64]

_REFUSALS = (OutcomeKind.REJECTED, OutcomeKind.DROPPED)
_ANSWERS = (OutcomeKind.SERVED, OutcomeKind.LATE)


@dataclass(frozen=True, slots=True)
class Ending:
    """One way to end: a label that says why, and the outcome it counts as."""

    label: str
    kind: OutcomeKind


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The requests of one stream. `endings[ending[i]]` is the end of request i."""

    name: str
    model: str
    application: str
    intended: Seconds
    """When it should have been sent, from the start of the run."""
    lateness: Seconds
    """Actual minus intended send; not negative."""
    latency: Seconds
    """End minus intended send."""
    rows: NDArray[np.int64]
    ending: NDArray[np.int64]
    endings: tuple[Ending, ...]

    def __post_init__(self) -> None:
        sizes = {len(a) for a in (self.intended, self.lateness, self.latency, self.rows)}
        if sizes != {len(self.ending)}:
            raise ValueError(f"records of {self.name!r} are of unequal length: {sorted(sizes)}")

    def between(self, start: float, end: float) -> Records:
        """Those due in [start, end)."""
        inside = (self.intended >= start) & (self.intended < end)
        return replace(
            self,
            intended=self.intended[inside],
            lateness=self.lateness[inside],
            latency=self.latency[inside],
            rows=self.rows[inside],
            ending=self.ending[inside],
        )

    def of_kind(self, kinds: Sequence[OutcomeKind]) -> NDArray[np.bool_]:
        """Which requests ended as one of `kinds`; shape (n,)."""
        wanted = np.array([ending.kind in kinds for ending in self.endings], dtype=np.bool_)
        chosen: NDArray[np.bool_] = wanted[self.ending]
        return chosen


def merge(name: str, parts: Sequence[Records]) -> Records:
    """All of `parts` as one stream. They must share their endings."""
    if len({part.endings for part in parts}) > 1:
        raise ValueError("records to be merged must share their endings")
    return Records(
        name=name,
        model="",
        application="",
        intended=np.concatenate([part.intended for part in parts]),
        lateness=np.concatenate([part.lateness for part in parts]),
        latency=np.concatenate([part.latency for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        ending=np.concatenate([part.ending for part in parts]),
        endings=parts[0].endings,
    )


def score(records: Records, duration: float) -> StreamReport:
    """The numbers of one stream over a window of `duration` seconds (already cut to it).

    An empty window (a run that was interrupted at once) has rates of 0.
    """
    per_second = 1.0 / duration if duration > 0.0 else 0.0
    counts = np.bincount(records.ending, minlength=len(records.endings)).tolist()
    outcomes = dict.fromkeys((kind.value for kind in OutcomeKind), 0)
    reasons: dict[str, int] = {}
    for ending, count in zip(records.endings, counts, strict=True):
        outcomes[ending.kind.value] += count
        if count:
            reasons[ending.label] = reasons.get(ending.label, 0) + count
    on_time = records.of_kind((OutcomeKind.SERVED,))
    answered = records.latency[records.of_kind(_ANSWERS)]
    return StreamReport(
        name=records.name,
        model=records.model,
        application=records.application,
        submitted=len(records.ending),
        outcomes=outcomes,
        reasons=reasons,
        rows_submitted=int(records.rows.sum()),
        rows_on_time=int(records.rows[on_time].sum()),
        offered_rps=len(records.ending) * per_second,
        on_time_rps=int(on_time.sum()) * per_second,
        latency=percentiles(answered),
        refusal_latency=percentiles(records.latency[records.of_kind(_REFUSALS)]),
        latency_curve=curve(answered),
    )


def timeline(records: Records, start: float, end: float) -> Timeline:
    """Requests by the second of [start, end) in which they were due; the last may be short."""
    bins = max(1, int(np.ceil(end - start)))
    second = np.clip((records.intended - start).astype(np.int64), 0, bins - 1)

    def count(which: NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(np.bincount(second[which], minlength=bins).tolist())

    on_time = records.of_kind((OutcomeKind.SERVED,))
    refused = records.of_kind(_REFUSALS)
    return Timeline(
        arrivals=count(np.ones(second.shape, dtype=np.bool_)),
        on_time=count(on_time),
        refused=count(refused),
        other=count(~on_time & ~refused),
    )


def percentiles(samples: Seconds) -> Percentiles | None:
    """Of `samples` (seconds, shape (n,)); None if there is none."""
    if samples.size == 0:
        return None
    levels = np.quantile(samples, (0.5, 0.9, 0.99, 0.999), method="inverted_cdf")
    p50, p90, p99, p999 = (float(level) for level in levels)
    return Percentiles(
        count=int(samples.size),
        mean=float(samples.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        p999=p999,
        max=float(samples.max()),
    )


def curve(samples: Seconds) -> tuple[float, ...]:
    """The samples at 0, 1, …, 100 percent; empty without samples."""
    if samples.size == 0:
        return ()
    levels = np.quantile(samples, np.linspace(0.0, 1.0, 101), method="inverted_cdf")
    return tuple(float(level) for level in levels)
