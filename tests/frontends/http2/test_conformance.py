"""Every case of h2spec, over a socket, against the gRPC front end, and bench/results/http2.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.frontends.http2.conformance import ANSWER, CASES, OPENING, Case, page
from tests.frontends.http2.player import Player, serving

from slacktide.frontends.http2 import frames as f

PAGE = Path(__file__).parents[3] / "bench" / "results" / "http2.md"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as listening:
        yield listening


def play(port: int, case: Case) -> str:
    player = Player(port)
    with player.socket:
        if not case.bare:
            player.begin()
        for step in case.steps:
            if isinstance(step, bytes):
                player.send(step)
            elif step == "pong":
                player.mark()
            else:
                length = len(player.data)
                while not (player.answered if step == "answer" else len(player.data) > length):
                    player.hear()
                    assert not player.closed
                player.answered = False
                player.data = player.data if step == "data" else []
        if case.result == OPENING:
            while player.first is None:
                player.hear()
            return OPENING if player.first == f.SETTINGS else "another frame first"
        if case.result == ANSWER:
            while not player.answered and not player.closed and not player.error:
                player.hear()
        if case.result.startswith("GOAWAY"):
            while not player.closed:  # the connection ends behind it
                player.hear()
        elif not player.closed:
            player.mark()
        return player.result(case.result)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda at: f"{CASES[at].section}-{at}")
def test_a_case_of_h2spec(port: int, number: int) -> None:
    case = CASES[number]
    assert play(port, case) == case.result, case.words


def test_only_priorities_differ() -> None:
    assert {case.section for case in CASES if not case.meets} == {"http2/5.3.1"}
    assert all(case.note for case in CASES if not case.meets)


def test_the_page_has_these_cases() -> None:
    """Made by `python tests/frontends/http2/conformance.py > bench/results/http2.md`."""
    assert PAGE.read_text() == page()
