"""Requests on their way over a link: when a server hears of them, and when it has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slacktide.server.bandwidth import Bandwidth
from slacktide.workloads import ConstantLink, SharedLink, TraceLink

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Journeys:
    """All requests of an application, in the order of sending; absolute seconds, shape (n,)."""

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

    def journeys(self, sent: Column) -> Journeys:
        """Those of requests that are sent at these instants (seconds, rising, shape (n,))."""
        size = self.payload_bytes
        link = SharedLink(self.link) if self.shared else self.link
        each = [link.deliver(size, sent=at) for at in sent.tolist()]
        arrival = np.array([journey.arrival for journey in each])
        complete = np.array([journey.complete_at for journey in each])
        # A bandwidth that never changes is no secret for long.
        known = isinstance(self.link, ConstantLink)
        return Journeys(
            arrival, complete, complete if known else _believed(size, arrival, complete)
        )


def _believed(size: int, arrival: Column, complete: Column) -> Column:
    """What the server's own measuring makes of the bodies that are complete at each first byte."""
    bandwidth, client = Bandwidth(), ""
    ends = sorted(zip(complete.tolist(), arrival.tolist(), strict=True), reverse=True)
    believed = []
    for first in arrival.tolist():
        while ends and ends[-1][0] <= first:
            end, begin = ends.pop()
            bandwidth.observe(client, size, end - begin)
        believed.append(first + bandwidth.transfer_time(client, size))
    return np.array(believed)
