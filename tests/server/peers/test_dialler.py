"""Servers that dial each other over real sockets, with tokens, certificates and names."""

from __future__ import annotations

import asyncio
import datetime
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme
from tests.frontends.doubles import FakeControlPlane
from tests.frontends.grpc.peer_hosts import FakeHost, call_of, forwarded

from slacktide.frontends.common.security import Credentials, PortRules, TlsFiles
from slacktide.frontends.grpc import GrpcServer
from slacktide.server.peers import dialler as dialling
from slacktide.server.peers.addresses import join_address, split_address
from slacktide.server.peers.dialler import PeerDialler

TOKEN = "peers-know-this-token"


@dataclass
class Peer:
    host: FakeHost
    dialler: PeerDialler
    server: GrpcServer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def until(self, condition: Callable[[], object]) -> None:
        await self.host.data.until(condition)

    def whys(self) -> list[str]:
        return [row["why"] for row in self.dialler.status()["addresses"]]

    async def until_said(self, words: str) -> None:
        async with asyncio.timeout(20):
            while words not in str(self.dialler.status()):
                await asyncio.sleep(0.01)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@asynccontextmanager
async def peering(
    machine: str, *peers: str, credentials: Credentials | None = None, port: int = 0
) -> AsyncIterator[Peer]:
    """A server that dials `peers`."""
    credentials = credentials or Credentials(None, None)
    host = FakeHost(machine)
    dialler = PeerDialler(host, machine, peers, credentials, rng=random.Random(1))
    server = GrpcServer(
        host.data,
        FakeControlPlane(),
        authorize=credentials.gate.on(PortRules()),
        peers=dialler,
        peer_access=credentials.peers,
    )
    await server.start("127.0.0.1", port, credentials.http2_context)
    await dialler.start(server)
    try:
        yield Peer(host, dialler, server)
    finally:
        await dialler.close()
        await server.close()


async def test_servers_that_dial_each_other_keep_the_link_of_the_smaller_name(caplog):
    ports = free_port(), free_port()
    a_address, b_address = (f"127.0.0.1:{port}" for port in ports)
    async with (
        peering("a", b_address, port=ports[0]) as a,
        peering("b", a_address, port=ports[1]) as b,
    ):
        await a.until(lambda: a.host.links and a.host.links[0].dialled)
        await b.until(lambda: b.host.links and not b.host.links[0].dialled)
        for peer, other in ((a, b), (b, a)):
            reply = await forwarded(peer.host, call_of(98_304))
            assert reply.outputs
            assert other.host.data.calls[-1].context.client == peer.host.machine
            assert len(peer.host.links) == 1
            (link,) = peer.dialler.members.links()
            assert (link.machine, link.dialled) == (other.host.machine, peer is a)
            assert peer.whys() == [""]


async def test_a_server_that_comes_back_is_linked_again(caplog):
    port = free_port()
    async with peering("a", f"127.0.0.1:{port}") as a:
        await a.until_said("refused")
        for _ in range(2):
            async with peering("b", port=port) as b:
                await b.until(lambda: b.host.links)
                await a.until(lambda: a.host.links)
            await a.until(lambda: not a.host.links)
        assert len(a.host.gone) == 2


async def test_a_server_that_comes_back_by_itself_leaves_no_sentence():
    port = free_port()
    async with peering("z", f"127.0.0.1:{port}") as z:
        async with peering("b", port=port):
            await z.until(lambda: z.host.links)
        await z.until_said("refused")
        async with peering("b", z.address, port=port):
            await z.until(lambda: z.host.links)
            assert z.dialler.status()["notes"] == {}


async def test_a_server_that_drains_is_left_with_its_sentence():
    async with peering("b") as b, peering("a", b.address) as a:
        await a.until(lambda: a.host.links)
        await b.until(lambda: b.host.links)
        assert await b.server.drain(10.0)
        await a.until(lambda: a.host.gone)
        assert a.host.gone == ["the server is shutting down"]


async def test_a_name_that_stands_for_the_server_itself_is_dialled_once(caplog):
    port = free_port()
    async with peering("a", f"dns:localhost:{port}", port=port) as a:
        await a.until_said("this address is the server's own")
        assert a.host.links == []
        assert caplog.text == ""


@pytest.mark.replaces_parts
async def test_a_name_is_looked_up_again(monkeypatch):
    monkeypatch.setattr(dialling, "RESOLVE_S", 0.05)
    loop, places = asyncio.get_running_loop(), []

    async def getaddrinfo(host, port, **kind):
        if not places:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (place, port)) for place in places]

    async with peering("b") as b:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
            async with peering("a", f"dns:peers.lan:{b.server.port}") as a:
                await a.until_said("dns:peers.lan")
                places.append("127.0.0.1")
                await a.until(lambda: a.host.links)
                places[:] = ["127.0.0.2"]
                await a.until_said("127.0.0.2")
                assert len(a.host.links) == 1
                assert "127.0.0.1" not in str(a.dialler.status()["addresses"])


async def test_a_name_that_cannot_be_one_is_said_and_others_are_dialled(tmp_path):
    credentials = Credentials(None, None, token_file(tmp_path, TOKEN))
    async with peering("b", credentials=credentials) as b:
        peers = "dns:a..b", "c..d", b.address
        async with peering("a", *peers, credentials=credentials) as a:
            await a.until(lambda: a.host.links)
            await a.until_said("dns:a..b")
            await a.until(lambda: all(a.whys()[:1]))
            assert "label" in a.whys()[0]


async def test_two_machines_of_one_name_are_not_linked(caplog):
    async with peering("a") as first, peering("a", first.address) as second:
        await second.until_said("two servers are named 'a': give each its own --machine")
        await first.until_said("two servers are named 'a': give each its own --machine")
        assert first.host.links == second.host.links == []
        assert caplog.text.count("two servers are named 'a'") == 2


async def test_beyond_this_machine_peers_need_credentials():
    async with peering("a", "10.255.255.1:8001") as a:
        await a.until_said("peers on other machines need --peer-token-file")


@pytest.mark.parametrize("peer", ["", "dns:", "x:y", "a:99999", "[::1]:x"])
def test_what_is_no_address_is_refused(peer):
    with pytest.raises(ValueError, match="expected an address such as"):
        PeerDialler(FakeHost(), "a", [peer], Credentials(None, None))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("b", ("b", 8001)),
        ("b:1", ("b", 1)),
        ("[::1]:1", ("::1", 1)),
        ("[::1]", ("::1", 8001)),
    ],
)
def test_addresses_are_read_with_and_without_a_port(text, place):
    assert split_address(text) == place
    assert split_address(join_address(*place)) == place


# -------------------------------------------------------------------- credentials


def token_file(folder: Path, token: str) -> Path:
    file = folder / "peers"
    file.write_text(token)
    file.chmod(0o600)
    return file


async def test_a_wrong_token_is_said_and_the_right_one_taken_from_its_file(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    file = token_file(tmp_path, TOKEN)
    wrong = token_file(tmp_path / "a", "another-horse-battery")
    of_a = Credentials(None, None, wrong)
    async with (
        peering("b", credentials=Credentials(None, None, file)) as b,
        peering("a", b.address, credentials=of_a) as a,
    ):
        await a.until_said("the bearer token is not valid")
        await b.until_said("the bearer token is not valid")
        assert caplog.text.count("the bearer token is not valid") == 2  # however often it dials
        assert TOKEN not in caplog.text
        wrong.write_text(TOKEN)
        of_a.reload()
        await a.until(lambda: a.host.links)
        file.write_text("a-third-horse-battery")
        assert (await forwarded(a.host, call_of())).outputs


class Authority:
    """Issues certificates into files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, trustme.CA()
        self.pem = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.pem))

    def issue(self, machine: str, *names: str, **options) -> TlsFiles:
        issued = self.ca.issue_cert(*names, **options)
        certificate, key = self.folder / f"{machine}.pem", self.folder / f"{machine}.key"
        certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        key.write_bytes(issued.private_key_pem.bytes())
        key.chmod(0o600)
        return TlsFiles(certificate, key, None, self.pem)


def certified(files: TlsFiles) -> Credentials:
    return Credentials(None, files, peer_names=frozenset({"peers.lan"}))


async def test_certificates_that_name_peers_link_them_and_may_be_rotated(tmp_path):
    authority = Authority(tmp_path)
    of_b = certified(authority.issue("b", "127.0.0.1", "peers.lan"))
    of_a = certified(authority.issue("a", "127.0.0.1", "peers.lan"))
    async with (
        peering("b", credentials=of_b) as b,
        peering("a", b.address, credentials=of_a) as a,
    ):
        await a.until(lambda: a.host.links)
        link = a.host.links[0]
        for machine, credentials in (("a", of_a), ("b", of_b)):
            authority.issue(machine, "127.0.0.1", "peers.lan")
            credentials.reload()
        assert (await forwarded(a.host, call_of(98_304))).outputs
        assert a.host.links == [link]
        await b.until(lambda: b.host.links)
        b.host.links[0].close("try again")
        await a.until(lambda: a.host.gone)
        await a.until(lambda: a.host.links)
        assert (await forwarded(a.host, call_of(98_304))).outputs


async def test_a_certificate_that_names_no_peer_is_refused(tmp_path):
    authority = Authority(tmp_path)
    of_b = certified(authority.issue("b", "127.0.0.1", "peers.lan"))
    of_a = certified(authority.issue("a", "client.lan"))
    async with (
        peering("b", credentials=of_b) as b,
        peering("a", b.address, credentials=of_a) as a,
    ):
        await a.until_said("links from other machines need --peer-token-file")
        assert b.host.links == []


async def test_an_expired_certificate_is_said(tmp_path):
    authority = Authority(tmp_path)
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = authority.issue("b", "127.0.0.1", "peers.lan", not_after=past)
    of_a = certified(authority.issue("a", "127.0.0.1", "peers.lan"))
    async with (
        peering("b", credentials=certified(expired)) as b,
        peering("a", b.address, credentials=of_a) as a,
    ):
        await a.until_said("its certificate is refused: certificate has expired")
        async with peering("c", a.address, credentials=certified(expired)) as c:
            await c.until_said("it may refuse this server's certificate")


async def test_a_peer_without_tls_is_said(tmp_path):
    authority = Authority(tmp_path)
    of_a = certified(authority.issue("a", "127.0.0.1", "peers.lan"))
    async with peering("b") as b, peering("a", b.address, credentials=of_a) as a:
        await a.until_said("TLS failed")


def test_certificates_of_peers_are_trusted_on_the_grpc_port_alone(tmp_path):
    (tmp_path / "clients").mkdir()
    files = Authority(tmp_path).issue("a", "127.0.0.1")
    credentials = certified(replace(files, client_ca=Authority(tmp_path / "clients").pem))
    assert len(credentials.context.get_ca_certs()) == 1
    assert len(credentials.http2_context.get_ca_certs()) == 2
