"""Inputs that crash a model twice are refused for a while; so are connections that send several."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from tests.server.test_data_plane import Bench, CallContext, call, on_loop

from slacktide.domain import Cancelled, Reason
from slacktide.models.calls import input_blocklist as module
from slacktide.models.calls.input_blocklist import BLOCK_S, SEVERAL, InputBlocklist


def row(first: float) -> bytes:
    return np.array([first, 1, 2, 3], "<f4").tobytes()


def send(bench: Bench, first: float, connection: str = "a:1") -> Any:
    opened = bench.open(CallContext(0.5, "client", "http", connection=connection))
    opened.submit(call(row(first)), bench.replies.append)
    return opened


def reasons(bench: Bench) -> list[Reason]:
    return [reply.outcome.reason for reply in bench.replies]


def crash(bench: Bench, first: float, connection: str = "a:1") -> None:
    bench.driver.end(send(bench, first, connection).id, Reason.CRASHED)


def serve(bench: Bench, first: float, connection: str = "a:1") -> None:
    outputs = (((1, 4), row(first)),)
    bench.driver.end(send(bench, first, connection).id, Reason.ON_TIME, outputs)


def test_the_same_input_is_refused_for_a_while_and_others_are_not(caplog: Any) -> None:
    def test() -> None:
        bench = Bench()
        crash(bench, 7)
        send(bench, 7, "b:2")
        assert reasons(bench) == [Reason.CRASHED, Reason.CRASHED_BEFORE]
        assert bench.version.in_flight == 0
        serve(bench, 8)
        assert reasons(bench)[-1] is Reason.ON_TIME
        bench.driver.now += BLOCK_S
        serve(bench, 7)
        assert reasons(bench)[-1] is Reason.ON_TIME
        assert bench.arena.bytes_in_use == 0
        assert "refusing its input for 60 s" in caplog.text

    on_loop(test)


def test_the_same_input_is_refused_where_it_was_announced() -> None:
    def test() -> None:
        bench = Bench()
        crash(bench, 7)
        announced, place = bench.announce(16)
        place[:] = row(7)
        announced.submit(call(place), bench.replies.append)
        assert reasons(bench)[-1] is Reason.CRASHED_BEFORE
        assert bench.arena.bytes_in_use == 0

    on_loop(test)


def test_waiting_requests_with_the_same_input_are_withdrawn_with_that_reason() -> None:
    def test() -> None:
        bench = Bench()
        first, same, other = send(bench, 7), send(bench, 7), send(bench, 8)
        bench.driver.end(first.id, Reason.CRASHED)
        withdrawn = [event for event in bench.driver.told if isinstance(event, Cancelled)]
        assert withdrawn == [Cancelled(same.id, Reason.CRASHED_BEFORE)]
        assert other.id in bench.driver.open

    on_loop(test)


def test_nothing_is_hashed_unless_it_begins_like_a_blocked_input(monkeypatch: Any) -> None:
    hashed: list[bytes] = []
    real = hashlib.sha256

    def sha256() -> Any:
        hashed.append(b"")
        return real()

    monkeypatch.setattr(hashlib, "sha256", sha256)

    def test() -> None:
        bench = Bench()
        serve(bench, 7)
        assert hashed == []
        crash(bench, 7)
        assert len(hashed) == 1
        serve(bench, 8)
        assert len(hashed) == 1
        send(bench, 7)
        assert len(hashed) == 2
        bench.driver.now += BLOCK_S
        serve(bench, 7)
        assert len(hashed) == 2

    on_loop(test)


def test_a_connection_is_refused_after_several_different_inputs_and_its_address_is_not() -> None:
    def test() -> None:
        bench = Bench()
        for first in range(SEVERAL):
            crash(bench, first)
        send(bench, 100)
        assert reasons(bench)[-1] is Reason.CONNECTION_BLOCKED
        assert bench.replies[-1].retry_after_s == pytest.approx(BLOCK_S)
        context = CallContext(0.5, "client", "http", connection="a:1")
        refused: Any = bench.open(context).announce(16, {})
        assert refused.outcome.reason is Reason.CONNECTION_BLOCKED
        serve(bench, 100, "a:2")
        assert reasons(bench)[-1] is Reason.ON_TIME
        bench.driver.now += BLOCK_S
        serve(bench, 100)
        assert reasons(bench)[-1] is Reason.ON_TIME

    on_loop(test)


def test_a_connection_that_is_served_between_may_be_a_proxys_and_is_not_refused() -> None:
    def test() -> None:
        bench = Bench()
        for first in range(3 * SEVERAL):
            crash(bench, first)
            serve(bench, 100 + first)
        assert Reason.CONNECTION_BLOCKED not in reasons(bench)

    on_loop(test)


def test_connections_without_a_name_are_never_refused() -> None:
    def test() -> None:
        bench = Bench()
        for first in range(2 * SEVERAL):
            crash(bench, first, "")
        serve(bench, 100, "")
        assert reasons(bench)[-1] is Reason.ON_TIME

    on_loop(test)


def test_only_so_many_are_remembered() -> None:
    blocklist = InputBlocklist()
    for first in range(module.MOST + 1):
        blocklist.add([((1, 4), row(first))], "a:1", now=0.0)
    assert not blocklist.contains([((1, 4), row(0))])
    assert blocklist.contains([((1, 4), row(1))])
    assert not blocklist.contains([((2, 2), row(1))])
