"""How fast each client's bodies come in, as measured from those that came. Pure.

Feeds `complete_at` of announced requests.
"""

from __future__ import annotations

from collections import OrderedDict

GUESS_BYTES_PER_S = 12.5e6
"""For an unknown client: 100 Mbit/s."""
CLIENTS_KEPT = 4096
KEPT = 0.7
"""Of what was known of a client, with each new body."""


class Bandwidth:
    """Bytes per second by client; the clients that sent nothing for longest are forgotten first.

    A rate is bytes by seconds, each summed over the bodies with the older ones fading. So small
    bodies, which show little but how prompt the client is, weigh little.
    """

    def __init__(self) -> None:
        self._sums: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def transfer_time(self, client: str, nbytes: int) -> float:
        """Seconds that `nbytes` are expected to take."""
        bytes_sum, seconds_sum = self._sums.get(client, (GUESS_BYTES_PER_S, 1.0))
        return nbytes * seconds_sum / bytes_sum

    def observe(self, client: str, nbytes: int, seconds: float) -> None:
        """A body of `nbytes` took `seconds`."""
        if seconds <= 0.0 or nbytes <= 0:
            return
        bytes_sum, seconds_sum = self._sums.pop(client, (0.0, 0.0))
        self._sums[client] = KEPT * bytes_sum + nbytes, KEPT * seconds_sum + seconds
        if len(self._sums) > CLIENTS_KEPT:
            self._sums.popitem(last=False)
