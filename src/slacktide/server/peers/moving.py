"""`SessionMover`: advises clients that stream frames to go on at a peer.

Frames are not forwarded, because they are the heaviest traffic. Instead, their session moves, so
that frames take no detour. `peers/session_moves.py` decides which session moves, and when.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from slacktide.models.versions import LoadedVersion
from slacktide.peers import PeerLoads, SessionMoves
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.server.calls.sessions import StreamSession
from slacktide.server.peers.host import ServerPeers

log = logging.getLogger("slacktide.peers")

ADVISE_S: Final = 0.2
"""Seconds between two checks of the sessions."""


class SessionMover:
    """Checks the sessions of a server with peers, from `start` until `close`. Sessions move only to
    peers that serve the same version of their model; sessions of pipelines never move."""

    def __init__(self, home: ServerDataPlane, peers: ServerPeers, loads: PeerLoads) -> None:
        self._home = home
        self._peers = peers
        self._loads = loads
        self._rule = SessionMoves(loads)
        self._ids: set[str] = set()
        """Sessions that the rule knows."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check the sessions from now on."""
        self._timer = self._home.loop.call_later(ADVISE_S, self.start)
        self.look()

    def close(self) -> None:
        """Stop. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Advise the sessions that should move now: at most one of each model."""
        now, sessions = self._home.driver.clock(), self._home.sessions.by_id()
        for id in self._ids - sessions.keys():
            self._rule.ended(id)
        for id in sessions.keys() - self._ids:
            self._rule.came(id, now=now)
        self._ids = set(sessions)
        by_model: dict[str, list[StreamSession]] = {}
        for session in sessions.values():
            by_model.setdefault(session.terms.model, []).append(session)
        for model, group in by_model.items():
            version = self._home.catalog.find(model, None)
            if version is not None and not version.stages and self._peers.serve(version):
                self._advise(version, group, now)

    def _advise(self, version: LoadedVersion, sessions: list[StreamSession], now: float) -> None:
        addresses = {
            peer: address
            for peer in self._loads.serving(version.name)
            if (address := self._peers.client_addresses(peer, version, named=False)[1])
        }
        movable = {
            session.id: session
            for session in sessions
            if session.terms.version in (None, version.version)
        }
        slo = min(session.terms.slo for session in sessions)
        load = self._peers.home_load(version)
        move = self._rule.advise(load, movable, 0, slo, now=now, peers=addresses)
        if move is not None:
            id, peer = move
            self._rule.came(id, now=now)  # the client has not moved yet, and may ignore the advice
            log.debug("session %s of %s should move to peer %s", id, version.name, peer)
            movable[id].move(addresses[peer])
