"""Sessions that move to a peer: one at a time, and not back and forth."""

from __future__ import annotations

import itertools

from slacktide.peers import LoadReport, ModelLoad, PeerLoads, SessionMoves


def moves_of(
    home_s: float, peer_s: float, seconds: float = 3.0, budget_s: float = 0.1
) -> list[tuple[float, str, str]]:
    """Advice, ten times a second; the loads stay as they are."""
    loads = PeerLoads()
    loads.joined("b", now=0.0)
    rule = SessionMoves(loads)
    sessions = [f"s{i}" for i in range(10)]
    for session in sessions:
        rule.came(session, now=-60.0)
    advice = []
    for step in range(int(10 * seconds)):
        now = 0.1 * step
        loads.reported("b", LoadReport((ModelLoad("m", peer_s, 0.01, 0.004),), 0), now=now)
        move = rule.advise(ModelLoad("m", home_s, 0.01, 0.004), sessions, 0, budget_s, now=now)
        if move is not None:
            sessions.remove(move[0])
            rule.ended(move[0])
            advice.append((now, *move))
    return advice


def test_sessions_move_one_by_one_to_a_peer_that_is_sooner():
    advice = moves_of(0.05, 0.0)
    assert [move[1:] for move in advice[:2]] == [("s0", "b"), ("s1", "b")]
    assert advice[0][0] >= 0.5
    assert all(later[0] - move[0] >= 0.5 for move, later in itertools.pairwise(advice))


def test_a_long_queue_gets_the_time_to_become_shorter_before_the_next_session_moves():
    advice = moves_of(1.5, 0.0, seconds=9.0, budget_s=2.0)
    assert len(advice) > 2
    assert all(later[0] - move[0] >= 2.0 for move, later in itertools.pairwise(advice))


def test_small_gains_move_nothing_and_neither_does_a_peer_without_time():
    assert moves_of(0.016, 0.012) == []
    assert moves_of(0.190, 0.120) == []
    assert moves_of(0.0, 0.050) == []


def test_a_session_that_has_come_stays_for_a_while():
    loads = PeerLoads()
    loads.joined("b", now=0.0)
    rule = SessionMoves(loads)
    rule.came("s", now=0.0)
    moved = []
    for step in range(80):
        now = 0.1 * step
        loads.reported("b", LoadReport((ModelLoad("m", 0.0, 0.01, 0.004),), 0), now=now)
        if rule.advise(ModelLoad("m", 0.05, 0.01, 0.004), ["s"], 0, 0.1, now=now):
            moved.append(now)
    assert moved
    assert moved[0] >= 5.0
