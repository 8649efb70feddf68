"""What was wanted of late, and what every number of replicas would have cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Held:
    """The largest of what was wanted within the last `seconds`: sizes rise at once, fall later."""

    __slots__ = ("_seconds", "_wanted")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()
        """(when, how much) of those that no later one surpassed, so falling."""

    def most(self, wanted: int, *, now: float) -> int:
        """The largest since `seconds` ago, `wanted` included. `now` never falls."""
        held = self._wanted
        while held and held[-1][1] <= wanted:
            held.pop()
        held.append((now, wanted))
        while held[0][0] < now - self._seconds:
            held.popleft()
        return held[0][1]


class ReplicaHistory:
    """Core-seconds by number of replicas, over the last `window` seconds.

    Fed once a period with the fewest cores each number of replicas would need. Cores are given
    back only after `patience` seconds, so what counts is the most cores of that time.
    """

    __slots__ = ("_held", "_patience", "_samples", "_window")

    def __init__(self, window: float, patience: float) -> None:
        self._window = window
        self._patience = patience
        self._held: dict[int, Held] = {}
        self._samples: deque[tuple[float, Mapping[int, tuple[int, bool]]]] = deque()
        """(from when, (cores of all, whether enough) by number of replicas), oldest first."""

    def note(self, cores: Mapping[int, int | None], most_cores: int, *, now: float) -> None:
        """Cores of each replica by number of replicas; None where even `most_cores` are too few."""
        self._samples.append(
            (
                now,
                {
                    n: (
                        n
                        * self._held.setdefault(n, Held(self._patience)).most(
                            most_cores if c is None else c, now=now
                        ),
                        c is not None,
                    )
                    for n, c in cores.items()
                },
            )
        )
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()

    def full(self, *, now: float) -> bool:
        """Whether the whole window is known."""
        return bool(self._samples) and self._samples[0][0] <= now - self._window

    def cost(self, replicas: int, *, now: float) -> tuple[float, float]:
        """(core-seconds, share of the time in which they would have been too few)."""
        total = short = seconds = 0.0
        ends = [*(at for at, _ in self._samples), now][1:]
        for (at, by_count), end in zip(self._samples, ends, strict=True):
            if replicas in by_count:
                cores, enough = by_count[replicas]
                lasting = end - at
                total += cores * lasting
                seconds += lasting
                short += 0.0 if enough else lasting
        return total, short / seconds if seconds > 0.0 else 0.0
