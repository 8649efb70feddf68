"""`HandOvers`: predicts when a part would be answered that is handed to another device now.

A link sends one part after another, so a part waits for those before it. The transfer of each is as
the plan states. If parts are not back when they should be, the link or the device has become
slower: then the next part is expected to be as late as the latest of them. Lateness halves each
`HALVES_S` seconds, so that the device is tried again.
"""

from __future__ import annotations

import math

from slacktide.domain import StagePlace

HALVES_S = 1.0


class HandOvers:
    """The parts that one device has handed to others. Times are absolute seconds."""

    __slots__ = ("_due", "_free", "_late")

    def __init__(self) -> None:
        self._free: dict[str, float] = {}
        """By device: when the link to it should be free."""
        self._due: dict[int, tuple[str, float]] = {}
        """By part: its device, and when it should be answered."""
        self._late: dict[str, tuple[float, float]] = {}
        """By device: seconds by which a part was late, and when it ended."""

    def seconds(self, place: StagePlace, behind: float, *, now: float) -> float:
        """Return the seconds until a part would be answered. `behind`: seconds from its arrival
        there to its answer here."""
        wait = max(0.0, self._free.get(place.device, now) - now)
        return wait + place.transfer + behind + self._lateness(place.device, now)

    def sent(self, part: int, place: StagePlace, behind: float, *, now: float) -> None:
        """Note that a part is handed over."""
        free = max(now, self._free.get(place.device, now)) + place.transfer
        self._free[place.device] = free
        self._due[part] = place.device, free + behind

    def ended(self, part: int, *, now: float) -> None:
        """Note that a part was answered or given up."""
        if (sent := self._due.pop(part, None)) is not None:
            device, due = sent
            self._late[device] = max(0.0, now - due), now

    def _lateness(self, device: str, now: float) -> float:
        late, at = self._late.get(device, (0.0, now))
        late *= math.exp2((at - now) / HALVES_S)
        return max([late, *(now - due for to, due in self._due.values() if to == device)])
