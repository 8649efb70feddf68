"""`CpuShare`: whether batches had their cores to themselves while they were timed.

It is CPU time ÷ wall time of the thread that runs a batch. That thread computes from the first to
the last operator, on one core or on several, so on a quiet machine the ratio is close to 1. If
other programs use the same cores, it falls: two programs on one core get half of it each.
"""

from __future__ import annotations

from slacktide.domain import BatchTiming

QUIET_SHARE = 0.7
"""Minimum share at which times are trusted. One core shared with a second program gives 0.5."""


class CpuShare:
    """CPU time ÷ wall time, summed over batches."""

    __slots__ = ("cpu_s", "wall_s")

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    def add(self, timing: BatchTiming) -> None:
        """Count a batch, unless its executor reports no CPU time of the thread."""
        if timing.thread_s > 0.0:
            self.cpu_s += timing.thread_s
            self.wall_s += timing.input_s + timing.infer_s + timing.output_s

    @property
    def value(self) -> float | None:
        """0 to 1; None before the first batch."""
        return min(1.0, self.cpu_s / self.wall_s) if self.wall_s > 0.0 else None


def is_quiet(share: float | None) -> bool:
    """Whether times measured with this share of CPU are trusted; True if it is unknown."""
    return share is None or share >= QUIET_SHARE


def busy_note(share: float | None) -> str:
    """A remark for times that were measured with this share; empty if they are trusted."""
    if share is None or is_quiet(share):
        return ""
    return f"measured while other programs used {100 * (1.0 - share):.0f} % of these cores"
