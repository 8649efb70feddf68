"""Room for connections: the limit on open files as `slacktide serve` leaves it."""

from __future__ import annotations

import resource

import pytest

from slacktide.cli import serve
from slacktide.server.settings import ServerSettings


@pytest.fixture
def limits(monkeypatch):
    """What the system is asked for and told, without touching this process."""
    state = {"now": (1024, 20_000), "refuses": False}

    def setrlimit(kind, wanted):
        assert kind == resource.RLIMIT_NOFILE
        if state["refuses"]:
            raise ValueError("not allowed to raise maximum limit")
        state["now"] = wanted

    monkeypatch.setattr(serve.resource, "getrlimit", lambda kind: state["now"])
    monkeypatch.setattr(serve.resource, "setrlimit", setrlimit)
    return state


def test_the_limit_is_raised_as_far_as_it_goes(limits):
    assert serve.make_room_for_connections(ServerSettings()) is None
    assert limits["now"] == (20_000, 20_000)


def test_connections_that_do_not_fit_are_told_with_what_would(limits):
    limits["now"] = (1024, 1024)
    message = serve.make_room_for_connections(ServerSettings())
    assert message is not None
    assert "may open 1024 files" in message
    settings = ServerSettings(
        max_connections=int(message.split("--max-connections to ")[1].split()[0])
    )
    assert serve.make_room_for_connections(settings) is None


def test_a_limit_that_cannot_be_raised_is_reckoned_with(limits):
    limits["refuses"] = True
    message = serve.make_room_for_connections(ServerSettings(metrics_port=None))
    assert message is not None
    assert "of 2 ports" in message
