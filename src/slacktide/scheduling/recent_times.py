"""`RecentTimes`: a point estimate per batch size, from the last few batches of that size.

What `clockwork` goes by. A `BatchTimes` (engine/ports.py) that knows no distribution: every
quantile is the estimate itself, and a batch is on time for certain or certainly not. A size that
has not run yet is taken to last as long as the profile says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import median

from slacktide.domain import Request
from slacktide.engine.ports import BatchTimes, Learner
from slacktide.profiles import PointTime


class RecentTimes:
    """Medians of the last `window` times by size and cores; between two sizes that of the larger.

    Seconds. Non-decreasing in rows: no size counts as quicker than a smaller one.
    """

    def __init__(self, profile: BatchTimes, sizes: Sequence[int], *, window: int) -> None:
        self._profile = profile
        self._sizes = sizes
        self._window = window
        self._last: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[tuple[int, int], float] = {}
        self._changes = 0

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        """The median of the size that holds `rows`, or of a smaller one if that is longer."""
        until = bisect_left(self._sizes, rows) + 1
        return PointTime(max(self._of(size, cores) for size in self._sizes[:until]))

    def classes(self, cores: int) -> None:
        """All requests are taken to be alike."""

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """A batch of `rows` rows took `seconds`; 0 (it was stopped as it began) says nothing."""
        if seconds <= 0.0:
            return
        key = (self._size(rows), cores)
        last = self._last.get(key)
        if last is None:
            last = self._last[key] = deque(maxlen=self._window)
        last.append(seconds)
        self._keep(key)

    def discount(self) -> None:
        """Forget the oldest time of each size, so that the profile has the last word in the end."""
        for key, last in self._last.items():
            if last:
                last.popleft()
                self._keep(key)
        if isinstance(self._profile, Learner):
            self._profile.discount()

    @property
    def revision(self) -> int:
        """Rises with every median that changes, and with the profile's."""
        return self._changes + self._profile.revision

    def _size(self, rows: int) -> int:
        return self._sizes[min(bisect_left(self._sizes, rows), len(self._sizes) - 1)]

    def _of(self, size: int, cores: int) -> float:
        found = self._medians.get((size, cores))
        return self._profile.of(size, cores).expected if found is None else found

    def _keep(self, key: tuple[int, int]) -> None:
        """Work out a median again."""
        last = self._last[key]
        found = median(last) if last else None
        if found != self._medians.get(key):
            self._changes += 1
            if found is None:
                del self._medians[key]
            else:
                self._medians[key] = found
