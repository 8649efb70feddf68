"""`SecondsByCores`: how long batches take, as lists, for planners that ask for all of it."""

from __future__ import annotations

from slacktide.scaling.view import BatchSeconds


class SecondsByCores:
    """Seconds of a batch by cores and rows, asked for once per number of cores.

    A planner makes one per decision: predictions do not move while it decides.
    """

    __slots__ = ("_kept", "_most", "_of")

    def __init__(self, times: BatchSeconds, *, most_rows: int, p99: bool) -> None:
        self._of = times.p99 if p99 else times.expected
        self._most = most_rows
        self._kept: dict[int, list[float]] = {}

    def __getitem__(self, cores: int) -> list[float]:
        """Seconds by rows, from 0 (which takes none) to `most_rows`. Not to be changed."""
        kept = self._kept.get(cores)
        if kept is None:
            of = self._of
            kept = self._kept[cores] = [0.0]
            kept.extend([of(rows, cores) for rows in range(1, self._most + 1)])
        return kept
