"""`ForwardingPlane`: the data plane of a server with peers, which chooses the peer of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slacktide.frontends.ports import PeerLink
from slacktide.models.versions import LoadedVersion
from slacktide.peers import ForwardingRule, ModelLoad, PeerLoads
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.server.peers.forwarding_call import ForwardingCall
from slacktide.server.peers.host import ServerPeers
from slacktide.wire.calls import CallContext

MOST_ATTEMPTS: Final = 3
"""Maximum number of peers that are asked for one call."""


class ForwardingPlane:
    """The `DataPlane` of a server that has peers."""

    def __init__(
        self,
        home: ServerDataPlane,
        peers: ServerPeers,
        loads: PeerLoads,
        rule: ForwardingRule,
    ) -> None:
        """`home`: the server's own data plane, which answers the calls of peers."""
        self.home = home
        self.peers = peers
        self.loads = loads
        self._rule = rule
        self._turn: dict[str, tuple[ModelLoad, int]] = {}
        """By version: its load at the beginning of this turn of the loop, and the rows accepted
        since."""
        self.largest_body = home.largest_body
        self.has_slo = home.has_slo
        self.open_session = home.open_session
        self.offered_share = home.offered_share

    def call(self, model: str, version: str | None, context: CallContext) -> ForwardingCall:
        return ForwardingCall(self, self.home.driver.new_id(), model, version, context)

    def sooner(
        self, version: LoadedVersion, deadline: float, rows: int, nbytes: int, *, now: float
    ) -> PeerLink | None:
        """The link to a peer that answers a new request of `rows` rows sooner than this server.
        None: no peer does, and the rows count as accepted here."""
        load, accepted = self._turn.get(version.pin, (None, 0))
        if load is None:
            if not self._turn:
                self.home.loop.call_soon(self._turn.clear)
            load = self.peers.home_load(version)
        ahead = load
        if accepted:
            wait_s = load.wait_s + accepted * load.row_s
            ahead = ModelLoad(load.model, wait_s, load.alone_s, load.row_s)
        peer = self._rule.on_arrival(ahead, rows, nbytes, deadline - now, now=now)
        link = None if peer is None else self.peers.link_to(peer, version, nbytes)
        self._turn[version.pin] = load, accepted + (rows if link is None else 0)
        return link

    def rescuer(
        self,
        version: LoadedVersion,
        rows: int,
        nbytes: int,
        budget_s: float,
        tried: Sequence[str],
        *,
        now: float,
    ) -> PeerLink | None:
        """The link to a peer that has the time for a request which this server has refused. Peers
        in `tried` are left out."""
        if budget_s <= 0.0 or len(tried) >= MOST_ATTEMPTS or not self.peers.serve(version):
            return None
        name = version.name
        peer = self._rule.on_refusal(name, rows, nbytes, budget_s, now=now, tried=tried)
        return None if peer is None else self.peers.link_to(peer, version, nbytes)
