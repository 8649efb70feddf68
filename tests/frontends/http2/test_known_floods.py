"""Attacks on HTTP/2 servers that have a name, over a socket: each ends its own connection, and
another client of the same server is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.frontends.http2.conformance import BLOCK, CALL, cut, fields, head, opened
from tests.frontends.http2.player import Player, serving

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode

MOST = 3000
"""Steps of an attack: three times the patience of a connection."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as listening:
        yield listening


def attack(port: int, step: Callable[[int], bytes], most: int = MOST) -> tuple[str, int]:
    """What `step` for streams 1, 3, … comes to, and how many were sent before the end. Nothing is
    read before the connection has ended, but what the server needs to go on."""
    player, other = Player(port), Player(port)
    with player.socket, other.socket:
        player.begin()
        other.begin()
        sent = 0
        for number in range(most):
            player.send(step(2 * number + 1))
            sent += 1
            if number % 50 == 49:
                player.mark()
            if player.closed:
                break
        other.send(CALL)
        while not other.answered:
            other.hear()
            assert not other.closed
        while not player.closed:
            player.hear()
        return player.error, sent


CALM = "GOAWAY ENHANCE_YOUR_CALM"


def test_cve_2023_44487_rapid_reset(port):
    """Requests that are reset as soon as they have begun."""
    error, sent = attack(port, lambda id: opened(id) + f.reset(id, ErrorCode.CANCEL))
    assert error == CALM
    assert sent < 1200


def test_cve_2024_27316_continuation_without_end(port):
    """A header block that goes on for ever: in bytes, or in empty frames."""
    for piece in (bytes(f.FRAME_BYTES), b"", b"x"):
        begun = head(1, 0, fields())

        def step(id: int, piece: bytes = piece, begun: bytes = begun) -> bytes:
            return (begun if id == 1 else b"") + f.frame(f.CONTINUATION, 0, 1, piece)

        error, sent = attack(port, step, most=50)
        assert error == CALM
        assert sent <= 50


MADE = {
    "a window of 0": lambda id: opened(id) + f.window_update(id, 0),
    "a window beyond all": lambda id: opened(id) + f.window_update(id, 2**31 - 1),
    "another length than stated": lambda id: (
        head(id, f.END_HEADERS, BLOCK + f.header_block(None, ((b"content-length", b"1"),)))
        + f.frame(f.DATA, 0, id, b"12")
    ),
    "HEADERS that do not end it": lambda id: opened(id) + opened(id),
    "a malformed head": lambda id: head(id, block=fields((b"connection", b"close"))),
}


@pytest.mark.parametrize("how", MADE)
def test_cve_2025_8671_made_you_reset(port, how):
    """Streams on which the client has the server send the reset."""
    error, sent = attack(port, MADE[how])
    assert error == CALM
    assert sent < 1200


def test_cve_2016_6581_hpack_bomb(port):
    """A field of 4 KB in the table, named ten thousand times in a block of as many bytes."""
    bomb = b"\x40\x01x\x7f\x81\x1e" + b"v" * 3968 + b"\xbe" * 10_000
    error, sent = attack(port, lambda id: head(id, block=fields() + bomb), most=1)
    assert (error, sent) == (CALM, 1)


def test_table_size_flood(port):
    """A block of nothing but table size updates, of which RFC 7541 §4.2 allows two."""
    updates = b"\x20\x3f\xe1\x1f" * 4000
    error, sent = attack(port, lambda id: head(id, block=updates), most=1)
    assert (error, sent) == ("GOAWAY COMPRESSION_ERROR", 1)


def test_initial_window_flood(port):
    """SETTINGS full of initial windows, while 255 streams are open."""
    windows = f.settings(((f.INITIAL_WINDOW, 1), (f.INITIAL_WINDOW, 2)) * 1360)
    error, sent = attack(port, lambda id: opened(id) if id < 511 else windows, most=400)
    assert error == CALM
    assert sent <= 300


BEGUN = opened()
OTHERS = {
    "CVE-2019-9512, PING": f.frame(f.PING, 0, 0, b"8 bytes!"),
    "CVE-2019-9515, SETTINGS": f.settings(()),
    "CVE-2019-9513, PRIORITY": f.frame(f.PRIORITY, 0, 3, bytes(5)),
    "CVE-2019-9518, empty DATA": f.frame(f.DATA, 0, 1),
    "DATA of padding alone": f.frame(f.DATA, f.PADDED, 1, b"\x20" + bytes(32)),
    "WINDOW_UPDATE": f.window_update(0, 1),
    "WINDOW_UPDATE of a stream": f.window_update(1, 1),
    "GOAWAY": f.goaway(0, ErrorCode.NO_ERROR),
    "frames of no known type": f.frame(77, 0, 0, b"x"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_flood_of_frames(port, kind):
    error, sent = attack(port, lambda id: (BEGUN if id == 1 else b"") + OTHERS[kind])
    assert error == CALM
    assert sent < 1200


def test_cve_2019_9516_fields_without_a_name(port):
    """Empty names and values, which cost a table more than their bytes."""
    error, _ = attack(port, lambda id: head(id, block=fields() + b"\x40\0\0" * 1100), most=1)
    assert error == CALM


def test_header_blocks_in_several_frames_are_no_flood(port):
    player = Player(port)
    with player.socket:
        player.begin()
        for id in range(1, 401, 2):
            player.answered = False
            player.send(cut(5, id))
            while not player.answered:
                player.hear()
        player.mark()
        assert player.error == ""
