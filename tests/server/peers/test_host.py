"""What links see of a server: hellos, digests, reports, and peers that must not be used."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.server.peers.homes import FakeLink, Home, run
from tests.server.test_data_plane import ROW, call

from slacktide.domain import Reason
from slacktide.models.versions import LoadedVersion
from slacktide.peers import LoadReport, ModelLoad, PeerHello
from slacktide.peers.messages import PROTOCOL
from slacktide.server.peers.addresses import client_address, remote_peer
from slacktide.server.peers.service import machine_name
from slacktide.server.settings import ServerSettings
from slacktide.wire.calls import CallContext, InferReply


def test_a_peer_with_other_files_under_a_name_is_not_used_for_it(caplog: Any) -> None:
    def test() -> None:
        home = Home(wait_s=inf, peers="")
        link = FakeLink("b")
        home.links["b"] = link
        for _ in range(2):
            home.peers.joined(link, PeerHello(PROTOCOL, "1", "b", {"m:1": "other", "n:1": "x"}))
            home.report("b", 0.0)
        home.submit()
        assert not home.away
        (status,) = home.peers.status()
        assert status["state"] == "not used"
        assert status["not_used"] == [
            "m:1: the peer serves other files or settings under this name"
        ]
        assert sum("not used for m:1" in record.message for record in caplog.records) == 1
        home.peers.joined(link, PeerHello(PROTOCOL, "1", "b", {"m:1": "same"}))  # it has reloaded
        home.report("b", 0.0)
        home.submit()
        assert len(home.away) == 1

    run(test)


def test_reports_say_what_has_changed_and_how_many_calls_were_received() -> None:
    def test() -> None:
        home = Home(wait_s=0.0, peers="b")
        link = home.links["b"]
        assert link.reports == [LoadReport((ModelLoad("m", 0.0, 0.01, 0.001),), 0)]
        home.peers.tick()
        assert len(link.reports) == 1  # nothing has changed
        replies: list[InferReply] = []
        context = CallContext(1.0, "b", "peer", 5.0)
        visiting = home.peers.call(link, "m", "1", context)
        assert context.client == "peer b"  # its limits are not those of a client named so
        visiting.submit(call(ROW), replies.append)
        home.wait_s = 0.5
        home.bench.driver.end(visiting.id, Reason.ON_TIME, (((1, 4), ROW),))  # type: ignore[attr-defined]
        assert link.reports[1:] == [LoadReport((ModelLoad("m", 0.5, 0.01, 0.001),), 1)]
        assert len(replies) == 1
        # The server that it came to counts it.
        assert home.counts() == {}
        assert home.peers.forwarded == {("m", "in"): 1}
        home.check_empty()

    run(test)


def test_peers_learn_of_a_new_model_also_if_another_link_begins_first() -> None:
    def test() -> None:
        home = Home(peers="b")
        version, catalog = home.bench.version, home.bench.plane.catalog
        new = LoadedVersion(
            "n", "1", 1, version.definition, version.interface, version.arena, version.check,
            version.counters,
        )  # fmt: skip
        new.add_pool(None, version.pool.times)  # type: ignore[arg-type]
        catalog.serve("n", {"1": new})
        assert home.peers.hello().models == {"m:1": "same", "n:1": "same"}  # for another link
        assert home.links["b"].hellos[-1].models == {"m:1": "same", "n:1": "same"}

    run(test)


def test_a_server_that_shuts_down_is_not_chosen() -> None:
    def test() -> None:
        home = Home(wait_s=inf, peers="b")
        home.peers.drain()
        assert home.links["b"].hellos[-1].models == {}
        peer = Home(wait_s=inf, peers="b")
        peer.peers.joined(peer.links["b"], PeerHello(PROTOCOL, "1", "b", {}))
        peer.submit()
        assert not peer.away

    run(test)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"peers": ("10.0.0.1:8001",)}, "--peer-token-file"),
        ({"peers": ("dns:slack",)}, "--peer-token-file"),
        ({"peers": ("127.0.0.1:99999",)}, "expected an address"),
        ({"peers": ("[::1",)}, "expected an address"),
        ({"machine": "two words"}, "letters, digits"),
        ({"machine": "a", "grpc_port": None}, "grpc_port"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: Any, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        ServerSettings(**settings)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:8000"),
        ("::1", "[::1]:8000"),
        ("[fe80::1]", "[fe80::1]:8000"),
        ("gate.example", "gate.example:8000"),
        ("*", ""),
        ("::", ""),
        ("0.0.0.0", ""),
    ],
)
def test_a_server_is_named_by_a_host_that_clients_can_reach(host: str, address: str) -> None:
    assert client_address(host, 8000) == address
    assert client_address(host, None) == ""


HERE, THERE = "127.0.0.1:8000", "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("own", "address", "tls", "why"),
    [
        (HERE, "127.0.0.1:9000", False, ""),
        ("10.0.0.1:8000", THERE, False, ""),
        ("", THERE, False, ""),
        ("", "", True, ""),
        ("10.0.0.1:8000", THERE, True, "only one of the two servers uses TLS"),
        ("", HERE, False, "its address is on the loopback interface"),
        (HERE, HERE, False, "its address is this server's own"),
    ],
)
def test_clients_are_sent_only_where_they_arrive(
    own: str, address: str, tls: bool, why: str, caplog: Any
) -> None:
    def test() -> None:
        home = Home(peers="")
        link = FakeLink("b")
        hello = PeerHello(PROTOCOL, "1", "b", {"m:1": "same"}, "", address, address, tls)
        home.peers.joined(link, hello)
        home.peers.advertise(http=own, grpc=own, tls=False)
        home.peers.joined(link, hello)
        assert (link.hellos[-1].http_address, link.hellos[-1].grpc_address) == (own, own)
        assert link.hellos[-1].models == {"m:1": "same"}
        (status,) = home.peers.status()
        sentence = f"clients are not sent there: {why}"
        assert status["not_used"] == ([sentence] if why else [])
        assert sum(f"{sentence}" in record.message for record in caplog.records) <= 1
        version = home.bench.version
        addresses = home.peers.client_addresses("b", version, named=True)
        assert addresses == (("", "") if why else (address, address))
        assert home.peers.client_addresses("c", version, named=True) == ("", "")
        unlike = {"m:1": "same", "m:2": "newer"}
        home.peers.joined(link, PeerHello(PROTOCOL, "1", "b", unlike, "", address, address, tls))
        assert home.peers.client_addresses("b", version, named=True) == addresses
        assert home.peers.client_addresses("b", version, named=False) == ("", "")

    run(test)


def test_peers_on_this_machine_need_no_credentials() -> None:
    assert remote_peer(("localhost", "127.0.0.1:8001", "[::1]:9")) is None
    assert remote_peer(("localhost", "h.example:1")) == "h.example:1"
    assert machine_name(8001).endswith(":8001")
    assert machine_name(0) != machine_name(0)
