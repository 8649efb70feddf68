"""`PeerLoads`: what peers have reported, and what is known about them since.

A peer reports for each model when the next request would start. Between reports that instant is
carried forward: it comes closer as time passes, and moves away by the time per row of each call
that was sent and that the report does not know of yet.

A report may be wrong: old, or a lie. So each answer is compared with what the reports promised when
the call was sent. The excess, a moving average per peer and model, is added to later estimates, and
decays so that a peer is tried again.
"""

from __future__ import annotations

import math
from collections import deque

from slacktide.peers.messages import LoadReport, ModelLoad

EXCESS_GAIN = 0.3
"""Weight of the newest answer in the excess of a peer's answers over its promises."""
EXCESS_DECAY_S = 1.0
"""Seconds within which the excess falls to 1 / e while nothing is sent."""


class PeerCall:
    """A call that was sent to a peer, and the answer that was promised for it."""

    __slots__ = ("budget_s", "model", "number", "peer", "promised_s", "rows", "sent_at")

    def __init__(
        self,
        peer: str,
        model: str,
        rows: int,
        number: int,
        sent_at: float,
        promised_s: float,
        budget_s: float,
    ) -> None:
        self.peer = peer
        self.model = model
        self.rows = rows
        self.number = number
        """Number of calls sent to this peer before it, since it joined."""
        self.sent_at = sent_at
        self.promised_s = promised_s
        """Seconds from `sent_at` within which the answer was expected by the reports alone."""
        self.budget_s = budget_s
        """Seconds from `sent_at` until its deadline."""


class _Reported:
    """The last report of one model by one peer."""

    __slots__ = ("alone_s", "excess_at", "excess_s", "free_at", "reported_free_at", "row_s")

    def __init__(self) -> None:
        self.alone_s = self.row_s = 0.0
        self.reported_free_at = math.inf
        """When a lane is free for the next request, without calls that the report did not know."""
        self.free_at = math.inf
        """The same with these calls."""
        self.excess_s = 0.0
        self.excess_at = -math.inf

    def excess(self, now: float) -> float:
        if not self.excess_s:
            return 0.0
        return self.excess_s * math.exp((self.excess_at - now) / EXCESS_DECAY_S)

    def add(self, rows: int, at: float) -> None:
        """Count a call of `rows` rows that was sent at `at`."""
        self.free_at = max(self.free_at, at) + rows * self.row_s


class _Peer:
    __slots__ = ("bytes_per_s", "models", "received", "rtt_s", "sent", "unreported")

    def __init__(self) -> None:
        self.rtt_s = 0.0
        self.bytes_per_s = math.inf
        self.sent = 0
        """Number of calls sent since it joined."""
        self.received = 0
        self.unreported: deque[PeerCall] = deque()
        """Calls that its last report did not know of."""
        self.models: dict[str, _Reported] = {}


class PeerLoads:
    """The loads of all peers. Times are seconds. Report only models that this server serves too, so
    that a peer cannot fill memory with names."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._serving: dict[str, list[str]] = {}

    def joined(self, peer: str, *, now: float) -> None:
        """Begin to count for a new link to `peer`; what was known of an earlier one is dropped."""
        self.left(peer)
        self._peers[peer] = _Peer()

    def left(self, peer: str) -> None:
        """Forget a peer. Nothing happens if it is not known."""
        if self._peers.pop(peer, None) is not None:
            for peers in self._serving.values():
                if peer in peers:
                    peers.remove(peer)

    def measured(self, peer: str, *, rtt_s: float, bytes_per_s: float) -> None:
        """Set the link's round trip of an empty message, and its rate (infinite: no limit)."""
        link = self._peers.get(peer)
        if link is not None:
            link.rtt_s, link.bytes_per_s = rtt_s, bytes_per_s

    def reported(self, peer: str, report: LoadReport, *, now: float) -> None:
        """Take a report that arrives now. Reports of unknown peers are ignored."""
        link = self._peers.get(peer)
        if link is None:
            return
        changed = set()
        unreported = link.unreported
        link.received = max(link.received, min(report.received, link.sent))
        while unreported and unreported[0].number < link.received:
            changed.add(unreported.popleft().model)
        made_at = now - 0.5 * link.rtt_s
        for load in report.loads:
            changed.add(load.model)
            self._note(peer, link, load, made_at)
        for model in changed:
            reported = link.models.get(model)
            if reported is not None:
                reported.free_at = reported.reported_free_at
        for call in unreported:
            if call.model in changed and call.model in link.models:
                link.models[call.model].add(call.rows, call.sent_at)

    def _note(self, peer: str, link: _Peer, load: ModelLoad, made_at: float) -> None:
        reported = link.models.get(load.model)
        if reported is None:
            reported = link.models[load.model] = _Reported()
        reported.alone_s, reported.row_s = max(0.0, load.alone_s), max(0.0, load.row_s)
        reported.reported_free_at = made_at + max(0.0, load.wait_s)
        serving = self._serving.setdefault(load.model, [])
        if (load.wait_s < math.inf) != (peer in serving):
            if peer in serving:
                serving.remove(peer)
            else:
                serving.append(peer)

    def serving(self, model: str) -> list[str]:
        """Peers whose last report says that they serve `model`, longest known first. Do not change
        the list."""
        return self._serving.get(model, [])

    def answer_in(self, peer: str, model: str, rows: int, nbytes: int, *, now: float) -> float:
        """Seconds until the answer to a call of `nbytes` would be here; infinite if the peer or its
        model is not known."""
        link = self._peers.get(peer)
        reported = None if link is None else link.models.get(model)
        if link is None or reported is None:
            return math.inf
        wait = max(0.0, reported.free_at - now)
        work = reported.alone_s + (rows - 1) * reported.row_s
        return wait + work + link.rtt_s + nbytes / link.bytes_per_s + reported.excess(now)

    def sent(
        self,
        peer: str,
        model: str,
        rows: int,
        *,
        now: float,
        nbytes: int = 0,
        budget_s: float = math.inf,
    ) -> PeerCall:
        """Count a call that is sent now. Pass the result to `answered` when its answer is here, so
        that a peer whose reports are wrong is found out."""
        promised = self.answer_in(peer, model, rows, nbytes, now=now)
        link = self._peers.get(peer)
        if link is None:
            return PeerCall(peer, model, rows, -1, now, promised, budget_s)
        reported = link.models.get(model)
        if reported is not None:
            promised -= reported.excess(now)
            reported.add(rows, now)
        call = PeerCall(peer, model, rows, link.sent, now, promised, budget_s)
        link.sent += 1
        link.unreported.append(call)
        return call

    def answered(self, call: PeerCall, *, in_time: bool, now: float) -> None:
        """Learn from the end of a call. `in_time`: whether it was served before its deadline. Do
        not report calls that were cancelled here or failed for another reason than time."""
        link = self._peers.get(call.peer)
        reported = None if link is None else link.models.get(call.model)
        if reported is None or call.promised_s == math.inf:
            return
        took = now - call.sent_at
        if not in_time and call.budget_s < math.inf:
            took = max(took, call.budget_s)  # refused: it would have taken longer than that
        excess = max(0.0, took - call.promised_s)
        before = reported.excess(now)
        reported.excess_s = before + EXCESS_GAIN * (excess - before)
        reported.excess_at = now
