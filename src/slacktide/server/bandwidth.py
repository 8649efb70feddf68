"""How fast each client's bodies come in, as measured from those that came. Pure.

Feeds `complete_at` of announced requests (DESIGN §4, Notice).
"""

from __future__ import annotations

from collections import OrderedDict

GUESS_BYTES_PER_S = 12.5e6
"""For a client never heard of: 100 Mbit/s."""
CLIENTS_KEPT = 4096
WEIGHT = 0.3
"""Of the newest body in the average; bodies that came in one piece say little and weigh less."""


class Bandwidth:
    """Bytes per second by client; the clients heard of longest ago are forgotten first."""

    def __init__(self) -> None:
        self._rates: OrderedDict[str, float] = OrderedDict()

    def transfer_time(self, client: str, nbytes: int) -> float:
        """Seconds that `nbytes` are expected to take."""
        return nbytes / self._rates.get(client, GUESS_BYTES_PER_S)

    def observe(self, client: str, nbytes: int, seconds: float) -> None:
        """A body of `nbytes` took `seconds`."""
        if seconds <= 0.0 or nbytes <= 0:
            return
        rate = nbytes / seconds
        before = self._rates.pop(client, rate)
        self._rates[client] = before + WEIGHT * (rate - before)
        if len(self._rates) > CLIENTS_KEPT:
            self._rates.popitem(last=False)
