"""What came of one run, as plain data: what `play` hands on to rows and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BIN_S = 10
"""Seconds that a point of a course stands for."""
WARM_S = 60
"""Seconds that come first and are not judged."""


@dataclass(frozen=True, slots=True)
class PlayedFleet:
    """Of one cell. Objects are rows at stages that feed no other, of frames that came in the
    seconds that are judged."""

    seconds: float
    """That were judged."""
    offered: int
    """Objects."""
    in_time: float
    """Those answered in time; of the bound, as many as can be."""
    by_kind: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The same two, by `traffic` and `surveillance`."""
    frames: Mapping[str, int] = field(default_factory=dict)
    """By `complete`, `partial` and `lost`."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    """Of answered frames, from their capture to the answer."""
    memory: float = 0.0
    """Bytes of accelerators' memory that the replicas of all devices take, mean over time."""
    wasted: float = 0.0
    """Share of batch seconds for frames that had ended."""
    offered_in: Sequence[int] = ()
    """Objects by bin of `BIN_S`."""
    in_time_in: Sequence[float] = ()
    instances: Sequence[int] = ()
    """Replicas at the end of each bin."""
    plans: int = 0
    early: int = 0
    """Plans that could not wait."""
    scaled: int = 0
    """Changes of instances between plans."""
    planning_s: float = 0.0
    """Seconds of all plans."""
    requests: int = 0
    """Of stages."""
    cpu_s: float = 0.0
    """That the run took."""
