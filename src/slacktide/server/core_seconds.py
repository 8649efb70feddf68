"""`CoreSeconds`: what serving costs in cores, lane by lane: cores held × time, busy or not."""

from __future__ import annotations

from collections.abc import Mapping


class CoreSeconds:
    """Told whenever lanes come, go or change; adds up in between. Pure: seconds come with calls."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._totals: dict[str, float] = {}
        self._since = 0.0

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._sizes)

    def note(self, sizes: Mapping[str, int], *, now: float) -> None:
        """From now on lanes have so many cores; those not named have none."""
        self._totals = dict(self.totals(now=now))
        self._since = now
        self._sizes = dict(sizes)
        for lane in sizes:
            self._totals.setdefault(lane, 0.0)

    def totals(self, *, now: float) -> Mapping[str, float]:
        """Core-seconds of every lane there ever was, up to now."""
        held = now - self._since
        return {
            lane: total + self._sizes.get(lane, 0) * held for lane, total in self._totals.items()
        }
