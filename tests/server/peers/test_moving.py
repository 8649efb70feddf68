"""Sessions that should go on at a peer: which are told, where to, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from tests.server.peers.homes import Home, run

from slacktide.peers import PeerHello
from slacktide.peers.messages import PROTOCOL
from slacktide.peers.session_moves import PAUSE_S, STAY_S
from slacktide.server.peers.moving import SessionMover
from slacktide.wire.calls import SessionTerms

TERMS = SessionTerms("m", None, 10.0, 0.2)


class Sessions:
    """Sessions of a server whose wait is 0.5 s, with a peer `b` that starts at once."""

    def __init__(self, *terms: SessionTerms, address: str = "10.0.0.2:8001") -> None:
        self.home = Home(wait_s=0.5, peers="")
        self.home.join("b", address=address)
        self.mover = SessionMover(self.home.bench.plane, self.home.peers, self.home.loads)
        self.moves: list[tuple[float, int, str]] = []
        """(when, session, address)"""
        self.open = [self.home.plane.open_session(term, "client", print) for term in terms]
        for number, session in enumerate(self.open):
            session.move = self._noting(number)

    def _noting(self, number: int) -> Callable[[str], None]:
        driver = self.home.bench.driver
        return lambda address: self.moves.append((driver.now, number, address))

    def play(self, seconds: float, **waits: float) -> None:
        driver = self.home.bench.driver
        for _ in range(round(seconds / 0.2)):
            driver.now += 0.2
            for machine in self.home.links:
                self.home.report(machine, waits.get(machine, 0.0))
            self.mover.look()


def test_one_session_after_the_other_is_told_of_the_peer_and_none_twice_in_a_while() -> None:
    def test() -> None:
        sessions = Sessions(*[TERMS] * 4)
        sessions.home.join("c")  # is nowhere to be reached by clients
        sessions.play(STAY_S - 0.2)
        assert sessions.moves == []
        sessions.play(4 * PAUSE_S)
        assert [move[1:] for move in sessions.moves[:3]] == [
            (number, "10.0.0.2:8001") for number in range(3)
        ]
        sessions.play(4.0)  # nobody follows
        times = [when for when, _, _ in sessions.moves]
        assert all(later - when >= PAUSE_S - 1e-9 for when, later in itertools.pairwise(times))
        sessions.play(20.0)
        for number in range(4):
            times = [when for when, moved, _ in sessions.moves if moved == number]
            assert len(times) >= 3
            assert all(later - when >= STAY_S - 1e-9 for when, later in itertools.pairwise(times))
        moves = len(sessions.moves)
        for session in sessions.open:
            session.close()
        sessions.play(10.0)
        assert len(sessions.moves) == moves
        assert not sessions.mover._rule._since

    run(test)


@pytest.mark.parametrize(
    "why", ["no address", "other files", "another version", "busy", "other version named", "stages"]
)
def test_sessions_stay_where_no_peer_would_answer_the_same_sooner(
    why: str, monkeypatch: Any
) -> None:
    def test() -> None:
        terms = SessionTerms("m", "7", 10.0, 0.2) if why == "other version named" else TERMS
        address = "" if why == "no address" else "10.0.0.2:8001"
        sessions = Sessions(TERMS, address=address)
        sessions.open[0].terms = terms
        models = {"other files": {"m:1": "other"}, "another version": {"m:1": "same", "m:2": "x"}}
        if why in models:
            hello = PeerHello(PROTOCOL, "1", "b", models[why], "", address, address)
            sessions.home.peers.joined(sessions.home.links["b"], hello)
        if why == "stages":
            monkeypatch.setattr(type(sessions.home.bench.version), "stages", ("one",))
        sessions.play(10.0, b=inf if why == "busy" else 0.0)
        assert sessions.moves == []

    run(test)
