"""Requests on their way over a link: when a server hears of them, and when it has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from slacktide.server.bandwidth import Bandwidth
from slacktide.workloads import ConstantLink, SharedLink, TraceLink

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Journeys:
    """Requests of an application, in the order of sending; absolute seconds, shape (n,)."""

    arrival: Column
    """First bytes."""
    complete: Column
    """Last bytes."""
    believed: Column
    """Last bytes, as the server expects them at the first."""


@dataclass(frozen=True, slots=True)
class Way:
    """What an application's requests travel over, and how large they are."""

    link: ConstantLink | TraceLink
    payload_bytes: int
    shared: bool = False
    """Whether they queue for the link."""

    def journeys(self) -> Callable[[Column], Journeys]:
        """Asked for the next requests at each call: the instants at which they are sent (seconds,
        rising, shape (n,))."""
        size, client = self.payload_bytes, ""
        link = SharedLink(self.link) if self.shared else self.link
        # A bandwidth that never changes is no secret for long.
        secret = not isinstance(self.link, ConstantLink)
        # What the server's own measuring makes of the bodies that are complete at each first byte.
        bandwidth = Bandwidth()
        under_way: list[tuple[float, float]] = []

        def of(sent: Column) -> Journeys:
            each = [link.deliver(size, sent=at) for at in sent.tolist()]
            believed = []
            for journey in each:
                first = journey.arrival
                heappush(under_way, (journey.complete_at, first))
                while under_way and under_way[0][0] <= first:
                    end, begin = heappop(under_way)
                    bandwidth.observe(client, size, end - begin)
                believed.append(first + bandwidth.transfer_time(client, size))
            arrival = np.array([journey.arrival for journey in each])
            complete = np.array([journey.complete_at for journey in each])
            return Journeys(arrival, complete, np.array(believed) if secret else complete)

        return of
