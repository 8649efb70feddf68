"""`SessionMoves`: which session should move to a peer.

Frames of a session are not forwarded one by one: a session moves as a whole, and rarely. The rule
averages the wait at home and the answer times that peers promise. If a peer has promised to answer
sooner for a while, by at least a part of the budget, one session moves. The next move waits until
the averages show the effect, and a session that has just arrived stays longer, so that sessions do
not go back and forth.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from slacktide.peers.loads import PeerLoads
from slacktide.peers.messages import ModelLoad

AVERAGED_S = 1.0
"""Time constant of the averages."""
GAIN = 0.05
"""Minimum gain, as a part of the budget, for which a session moves."""
HOLD_S = 0.5
"""Seconds for which a peer must have promised to answer sooner."""
PAUSE_S = 0.5
"""Minimum seconds between two moves away from this server, or the budget if that is longer: frames
that wait here when a session leaves may take up to that long."""
STAY_S = 5.0
"""Seconds that a session stays after it has come."""


class SessionMoves:
    """The rule of one server. Call `advise` a few times a second."""

    def __init__(self, loads: PeerLoads) -> None:
        self._loads = loads
        self._since: dict[str, float] = {}
        """Time at which each session began or arrived here."""
        self._averages: dict[str, dict[str, float]] = {}
        """Seconds until an answer, by model and server; "" is this server."""
        self._at: dict[str, float] = {}
        """By model: time of the last call of `advise`."""
        self._sooner_since: dict[str, float] = {}
        """By model: time since which a peer has promised to answer sooner."""
        self._moved_at = -math.inf

    def came(self, session: str, *, now: float) -> None:
        """Record that a session has begun here or moved here."""
        self._since[session] = now

    def ended(self, session: str) -> None:
        """Record that a session has ended or moved away."""
        self._since.pop(session, None)

    def advise(
        self,
        home: ModelLoad,
        sessions: Iterable[str],
        nbytes: int,
        budget_s: float,
        *,
        now: float,
        peers: Collection[str] | None = None,
    ) -> tuple[str, str] | None:
        """A session of this model that should move, and the peer; None: all stay. `sessions`: the
        sessions that may move, the first choice first. `nbytes`: size of a frame. `peers`: peers
        that take sessions; None: all that serve the model."""
        model = home.model
        weight = 1.0 - math.exp((self._at.get(model, now) - now) / AVERAGED_S)
        self._at[model] = now
        seconds = {"": home.wait_s + home.alone_s}
        for peer in self._loads.serving(model):
            if peers is None or peer in peers:
                seconds[peer] = self._loads.answer_in(peer, model, 1, nbytes, now=now)
        averages, before = {}, self._averages.get(model, {})
        for server, answer_s in seconds.items():
            answer_s = min(answer_s, 2.0 * budget_s)
            average = before.get(server, answer_s)
            averages[server] = average + weight * (answer_s - average)
        self._averages[model] = dict(averages)
        home_s = averages.pop("")
        best = min(averages, key=averages.__getitem__, default=None)
        soonest = math.inf if best is None else averages[best]
        if best is None or soonest > budget_s or home_s - soonest < GAIN * budget_s:
            self._sooner_since.pop(model, None)
            return None
        since = self._sooner_since.setdefault(model, now)
        if now - since < HOLD_S or now - self._moved_at < max(PAUSE_S, budget_s):
            return None
        for session in sessions:
            if now - self._since.get(session, -math.inf) >= STAY_S:
                self._moved_at = now
                return session, best
        return None
