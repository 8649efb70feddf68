"""What the load generator knows of the links that its requests are sent over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slacktide.load.spec import LoadSpec, Transport
from slacktide.workloads import Link, SharedLink


class LinkDelay(NamedTuple):
    """Seconds that one request spends on its link."""

    unseen: float
    """What the server cannot count: until the first byte is there, and the way back."""
    whole: float
    """There and back."""


class LinkModel:
    """Which link each request takes. Over HTTP a request has a connection, and so a link, to
    itself; over gRPC the requests of one channel queue for one; a shared link is one for all."""

    def __init__(self, links: Sequence[Link], sizes: Sequence[int]) -> None:
        """`sizes[p]`: bytes of payload p."""
        self._links = links
        self._sizes = sizes

    @classmethod
    def of(cls, spec: LoadSpec, sizes: Sequence[int]) -> LinkModel | None:
        """The model of a run; None if it has no link."""
        if spec.link is None:
            return None
        if spec.shared_link:
            return cls([SharedLink(spec.link)], sizes)
        if spec.target.transport is Transport.HTTP:
            return cls([spec.link], sizes)
        channels = spec.connections or 1
        return cls([SharedLink(spec.link) for _ in range(channels)], sizes)

    def delay(self, index: int, payload: int, *, now: float) -> LinkDelay:
        """The delay of request `index`, which leaves now (seconds of the link)."""
        link = self._links[index % len(self._links)]
        journey = link.deliver(self._sizes[payload], sent=now)
        back = link.way_back
        return LinkDelay(journey.network_time + back, journey.complete_at - now + back)
