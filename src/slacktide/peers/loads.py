"""`PeerLoads`: estimates the waits at peers from their reports and from the calls sent since.

For each model, a peer reports when it could start the next request. Between reports this start
stays the same, so the wait shrinks as time passes; each call sent that the report does not include
yet postpones the start by the time of its rows.

A report may be outdated, lost or false. Four measures help:

- A report states how many calls the peer had received, which dates the report: the peer made it
  before the first of the later calls arrived. The estimate continues from that time, and a report
  that a newer report has overtaken is ignored.
- Inflow: other servers send calls to the peer too, so its waits fall more slowly than time passes.
  If no report comes for two intervals, the wait has fallen as expected.
- Own calls without an answer count as waiting at the peer, however old its report is.
- Excess: calls that were refused or late, although the reports promised an answer in time, add to
  later estimates. It decays, so that a peer is tried again.
"""

from __future__ import annotations

import math
from collections import deque

from slacktide.peers.messages import LoadReport, ModelLoad

EXCESS_GAIN = 0.1
"""Weight of the newest answer in the excess of a peer's answers over its promises."""
EXCESS_DECAY_S = 1.0
"""Seconds within which the excess falls to 1 / e while nothing is sent."""
INFLOW_GAIN = 0.1
"""Weight of the newest report in the inflow."""
INFLOW_S = 0.2
"""Age of a report up to which inflow is assumed: a peer reports ten times a second if its wait has
not fallen as expected."""
UNREPORTED_MOST = 1_024
"""Maximum number of calls to remember for a peer that does not report."""
OLD_S = 0.1
"""Age of a report from which own calls without an answer count in full."""


class PeerCall:
    """A call that was sent to a peer, and the answer that was promised for it."""

    __slots__ = (
        "budget_s",
        "ended",
        "link",
        "model",
        "number",
        "peer",
        "promised_s",
        "rows",
        "sent_at",
    )

    def __init__(
        self,
        peer: str,
        model: str,
        rows: int,
        number: int,
        sent_at: float,
        promised_s: float,
        budget_s: float,
        link: object,
    ) -> None:
        self.peer = peer
        self.link = link
        """The link on which the call was sent; a later link to the peer keeps counts of its own."""
        self.model = model
        self.rows = rows
        self.number = number
        """Number of calls sent to this peer before this call, since the peer joined."""
        self.sent_at = sent_at
        self.promised_s = promised_s
        """Seconds from `sent_at` within which the answer was expected by the reports alone."""
        self.budget_s = budget_s
        """Seconds from `sent_at` until its deadline."""
        self.ended = False


class _Reported:
    """The last report of one model by one peer."""

    __slots__ = (
        "alone_s", "calls", "excess_at", "excess_s", "fallen_s", "free_at", "made_at", "missed_s",
        "outstanding", "reported_free_at", "row_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.alone_s = self.row_s = 0.0
        self.reported_free_at = math.inf
        """Time at which a lane is free for the next request, without the calls that the report does
        not include."""
        self.free_at = math.inf
        """`reported_free_at`, postponed by the calls that the report does not include."""
        self.excess_s = 0.0
        self.excess_at = -math.inf
        self.made_at = -math.inf
        self.missed_s = 0.0
        """Moving average of the seconds by which the reported wait exceeded the wait expected at
        that time."""
        self.fallen_s = 0.0
        """Moving average of the seconds by which a wait was expected to fall between reports."""
        self.outstanding = 0
        """Rows of this server's own calls that have no answer and whose deadlines are not past."""
        self.calls: deque[PeerCall] = deque()
        """The calls behind `outstanding`, and some that have ended."""

    def excess(self, now: float) -> float:
        if not self.excess_s:
            return 0.0
        return self.excess_s * math.exp((self.excess_at - now) / EXCESS_DECAY_S)

    def inflow(self, now: float) -> float:
        """Work that other servers send, as a share of the work that the peer has done since its
        report."""
        if self.missed_s <= 0.0 or now - self.made_at > INFLOW_S:
            return 0.0
        return 1.0 if self.missed_s >= self.fallen_s else self.missed_s / self.fallen_s

    def fallen(self, now: float) -> float:
        """Seconds by which the wait has fallen since the report, without the inflow."""
        return max(0.0, min(now, self.free_at) - self.made_at)

    def forget_past(self, now: float) -> None:
        """Stop counting calls that have ended, or whose deadline is past."""
        calls = self.calls
        while calls and (calls[0].ended or calls[0].sent_at + calls[0].budget_s < now):
            self.end(calls.popleft())

    def end(self, call: PeerCall) -> None:
        """Stop counting a call. Later calls of this method do nothing."""
        if not call.ended:
            call.ended = True
            self.outstanding -= call.rows

    def add(self, rows: int, at: float) -> None:
        """Count a call of `rows` rows that reaches the peer at `at`."""
        if self.free_at <= at:  # idle: the call runs alone immediately
            self.free_at = at + self.alone_s + (rows - 1) * self.row_s
        else:
            self.free_at += rows * self.row_s


class _Peer:
    __slots__ = ("bytes_per_s", "models", "received", "rtt_s", "sent", "unreported")

    def __init__(self) -> None:
        self.rtt_s = 0.0
        self.bytes_per_s = math.inf
        self.sent = 0
        """Number of calls sent since it joined."""
        self.received = 0
        self.unreported: deque[PeerCall] = deque(maxlen=UNREPORTED_MOST)
        """Calls that its last report does not include."""
        self.models: dict[str, _Reported] = {}


class PeerLoads:
    """The loads of all peers. Times are seconds. Report only models that this server serves too, so
    that a peer cannot fill memory with names."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._serving: dict[str, list[str]] = {}

    def joined(self, peer: str, *, now: float) -> None:
        """Start counting for a new link to `peer`; the counts of an earlier link are dropped."""
        self.left(peer)
        self._peers[peer] = _Peer()

    def left(self, peer: str) -> None:
        """Forget a peer; unknown peers are ignored."""
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
        received, loads = min(report.received, link.sent), report.loads
        if received < link.received:  # a newer report came first, or models are withdrawn
            received = link.received
            loads = tuple([load for load in loads if load.wait_s == math.inf])
        link.received = received
        changed = set()
        unreported, hop = link.unreported, 0.5 * link.rtt_s
        while unreported and unreported[0].number < received:
            changed.add(unreported.popleft().model)
        made_at = now - hop
        if unreported:  # the report was made before the first of these calls had arrived
            made_at = min(made_at, unreported[0].sent_at + hop)
        for load in loads:
            changed.add(load.model)
            self._note(peer, link, load, made_at)
        for model in changed:
            reported = link.models.get(model)
            if reported is not None:
                reported.free_at = reported.reported_free_at
        for call in unreported:
            if call.model in changed and call.model in link.models:
                link.models[call.model].add(call.rows, call.sent_at + hop)

    def _note(self, peer: str, link: _Peer, load: ModelLoad, made_at: float) -> None:
        reported = link.models.get(load.model)
        is_first = reported is None
        if reported is None:
            reported = link.models[load.model] = _Reported()
        reported.alone_s, reported.row_s = max(0.0, load.alone_s), max(0.0, load.row_s)
        wait = max(0.0, load.wait_s)
        if reported.alone_s == math.inf or reported.row_s == math.inf:
            reported.alone_s = reported.row_s = 0.0
            wait = math.inf  # the report is unusable
        if not is_first and wait < math.inf and reported.free_at < math.inf:
            missed = wait - max(0.0, reported.free_at - made_at)
            if reported.outstanding and wait:  # a batch of own calls has begun
                missed -= max(0.0, reported.alone_s - reported.row_s)
            reported.missed_s += INFLOW_GAIN * (missed - reported.missed_s)
            reported.fallen_s += INFLOW_GAIN * (reported.fallen(made_at) - reported.fallen_s)
        reported.reported_free_at = made_at + wait
        reported.made_at = made_at
        serving = self._serving.setdefault(load.model, [])
        if (wait < math.inf) != (peer in serving):
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
        hop = 0.5 * link.rtt_s
        arrives = hop + nbytes / link.bytes_per_s
        starts = reported.free_at - now  # the peer works on while the call travels
        age = now - reported.made_at
        if starts < 0.0:
            starts = 0.0
        starts += reported.inflow(now) * reported.fallen(now)
        if reported.calls:
            reported.forget_past(now)
        least = reported.outstanding * reported.row_s * min(1.0, age / OLD_S) - link.rtt_s
        if starts < least:  # own calls wait there, whatever the report says
            starts = least
        if starts < arrives:
            starts = arrives
        return starts + reported.alone_s + (rows - 1) * reported.row_s + hop + reported.excess(now)

    def doubt(self, peer: str, model: str, *, now: float) -> float:
        """Seconds of work that other servers may have sent to a peer since its report."""
        link = self._peers.get(peer)
        reported = None if link is None else link.models.get(model)
        return 0.0 if reported is None else reported.inflow(now) * (now - reported.made_at)

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
            return PeerCall(peer, model, rows, -1, now, promised, budget_s, None)
        reported = link.models.get(model)
        if reported is not None:
            promised -= reported.excess(now)
            reported.add(rows, now + 0.5 * link.rtt_s)
            reported.outstanding += rows
        call = PeerCall(peer, model, rows, link.sent, now, promised, budget_s, link)
        if reported is not None:
            if len(reported.calls) >= 2 * UNREPORTED_MOST:  # behind one without an answer
                reported.calls = deque([sent for sent in reported.calls if not sent.ended])
            reported.calls.append(call)
        link.sent += 1
        link.unreported.append(call)
        return call

    def redirected(self, peer: str, model: str, *, now: float) -> None:
        """Count a call whose client is sent to a peer, until the peer's next report."""
        link = self._peers.get(peer)
        reported = None if link is None else link.models.get(model)
        if link is not None and reported is not None:
            reported.add(1, now + link.rtt_s)

    def answered(self, call: PeerCall, *, in_time: bool | None, now: float) -> None:
        """Count off a call that has ended, and learn from it. `in_time`: whether it was served
        before its deadline; None: it was cancelled here, or failed for another reason than time."""
        link = self._peers.get(call.peer)
        reported = None if link is None else link.models.get(call.model)
        if reported is None or link is not call.link or call.promised_s == math.inf:
            return
        reported.end(call)
        if in_time is None:
            return
        excess = 0.0
        if not in_time:
            latest = now - call.sent_at
            if call.budget_s < math.inf:
                latest = max(latest, call.budget_s)  # refused: it would have taken longer
            excess = max(0.0, latest - call.promised_s)
        before = reported.excess(now)
        reported.excess_s = before + EXCESS_GAIN * (excess - before)
        reported.excess_at = now
