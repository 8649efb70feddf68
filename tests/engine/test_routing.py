"""The narrowest route that matches leads the way."""

from __future__ import annotations

import pytest

from slacktide.domain import PoolId, Request, Route
from slacktide.engine import EngineSettings, PoolParts
from slacktide.engine.lanes import Pool
from slacktide.engine.state import RouteTable
from slacktide.profiles import BatchTimes


class NoScheduler:
    """In place of a scheduler: none is asked."""


def pool(name: str) -> PoolId:
    return PoolId("m", name)


POOLS = {
    id: Pool(id, 1, lambda *_: PoolParts(NoScheduler(), BatchTimes()), EngineSettings())
    for id in map(pool, ("plain", "two", "app", "two-app", "client"))
}

TABLE = RouteTable(
    POOLS,
    (
        Route("m", pool("plain")),
        Route("m", pool("two"), version="2"),
        Route("m", pool("app"), application="app"),
        Route("m", pool("two-app"), version="2", application="app"),
        Route("m", pool("client"), client="client"),
    ),
)


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        ("plain", {}),
        ("plain", {"application": "other", "client": "other"}),
        ("two", {"version": "2"}),
        ("two", {"version": "2", "application": "other"}),
        ("two", {"version": "2", "client": "client"}),
        ("app", {"application": "app"}),
        ("app", {"application": "app", "client": "other"}),
        ("two-app", {"version": "2", "application": "app"}),
        ("client", {"client": "client"}),
        ("client", {"client": "client", "application": "app"}),
        (None, {"version": "3"}),
        (None, {"version": "3", "application": "app", "client": "client"}),
    ],
)
def test_client_before_application_before_the_plain_route(expected, fields):
    chosen = TABLE.pool_for(Request(1, "m", 0.0, 1.0, **fields))
    assert chosen is (None if expected is None else POOLS[pool(expected)])


def test_a_route_of_one_model_serves_no_other():
    assert TABLE.pool_for(Request(1, "n", 0.0, 1.0, application="app", client="client")) is None


def test_a_table_without_a_plain_route_serves_only_those_it_names():
    table = RouteTable(POOLS, (Route("m", pool("app"), application="app"),))
    assert table.pool_for(Request(1, "m", 0.0, 1.0)) is None
    assert table.pool_for(Request(1, "m", 0.0, 1.0, application="app")) is POOLS[pool("app")]


def test_a_route_to_a_pool_that_is_not_there_leads_nowhere():
    table = RouteTable(POOLS, (Route("m", pool("gone")),))
    assert table.pool_for(Request(1, "m", 0.0, 1.0)) is None
