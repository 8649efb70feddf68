"""`ForwardingRule`: decides whether a request is served by this server or by a peer.

The rule is related to Prequal (Wydrowski et al., NSDI 24), which samples a few replicas and sends a
request to the replica that has reported the lowest latency. It differs in four ways. There is no
balancer in between, so staying at home costs nothing and is preferred by a margin. It compares the
time until the answer to *this* request, by the profile of its model, rather than the median of past
latencies and the number of requests in flight. It corrects a report for its age and for the calls
sent since. A peer that cannot answer by the deadline is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

from slacktide.peers.loads import PeerLoads
from slacktide.peers.messages import ModelLoad

SAMPLE = 8
"""Number of peers to compare. If all servers compared all peers, they would all choose the same
peer."""
MARGIN, MARGIN_MIN_S = 0.1, 0.0005
"""A peer must answer sooner by `MARGIN` × the time of the model alone, and by at least
`MARGIN_MIN_S`."""
DOUBT = 2.0
"""The margin grows by DOUBT × the work that other servers may have sent to the peer since its
report × the part of the budget that is left at home."""


class Chance(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""


class ForwardingRule:
    """The rule of one server."""

    def __init__(self, loads: PeerLoads, rng: Chance) -> None:
        self._loads = loads
        self._rng = rng

    def on_arrival(
        self, home: ModelLoad, rows: int, nbytes: int, budget_s: float, *, now: float
    ) -> str | None:
        """The peer that answers a request of `nbytes` sooner than this server; None: no peer does.
        `home`: this server's load of the model now. `budget_s`: seconds until the deadline."""
        if home.wait_s <= 0.0:
            return None
        answer_s = home.wait_s + home.alone_s + (rows - 1) * home.row_s
        model = home.model
        peer, peer_s = self._soonest(model, rows, nbytes, (), now)
        if peer is None or peer_s > budget_s:
            return None
        if answer_s > budget_s:  # this server would refuse the request
            return peer
        least_s = peer_s + max(MARGIN * home.alone_s, MARGIN_MIN_S)
        if least_s <= answer_s:
            least_s += DOUBT * self._loads.doubt(peer, model, now=now) * (1.0 - answer_s / budget_s)
        return peer if least_s <= answer_s else None

    def on_refusal(
        self,
        model: str,
        rows: int,
        nbytes: int,
        budget_s: float,
        *,
        now: float,
        tried: Collection[str] = (),
    ) -> str | None:
        """The peer that can answer a request that this server has refused; None: no peer can. Peers
        in `tried` are left out."""
        peer, peer_s = self._soonest(model, rows, nbytes, tried, now)
        return peer if peer_s <= budget_s else None

    def _soonest(
        self,
        model: str,
        rows: int,
        nbytes: int,
        tried: Collection[str],
        now: float,
    ) -> tuple[str | None, float]:
        """The sampled peer that answers soonest, and the seconds until its answer is here."""
        loads = self._loads
        best, soonest = None, math.inf
        for peer in self._sampled(loads.serving(model), tried):
            seconds = loads.answer_in(peer, model, rows, nbytes, now=now)
            if seconds < soonest:
                best, soonest = peer, seconds
        return best, soonest

    def _sampled(self, peers: Collection[str], tried: Collection[str]) -> list[str]:
        """At most SAMPLE of `peers`, drawn without replacement."""
        drawn = [peer for peer in peers if peer not in tried] if tried else list(peers)
        size = len(drawn)
        if size <= SAMPLE:
            return drawn
        for place in range(SAMPLE):
            partner = place + int(self._rng.random() * (size - place))
            drawn[place], drawn[partner] = drawn[partner], drawn[place]
        return drawn[:SAMPLE]
