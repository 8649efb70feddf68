"""Addresses of peers, and addresses at which clients reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slacktide.frontends.common.security import host_name, is_loopback
from slacktide.frontends.listener import EVERY_ADDRESS
from slacktide.peers.messages import PeerHello
from slacktide.wire.peer_messages import ADDRESS, is_address

DNS: Final = "dns:"
DEFAULT_PORT: Final = 8001
"""gRPC port of an address that names no port."""


def split_address(text: str) -> tuple[str, int]:
    """The host and port of `host`, `host:port`, `[v6]` or `[v6]:port`. Raises ValueError."""
    match = ADDRESS.fullmatch(text) or ADDRESS.fullmatch(f"{text}:{DEFAULT_PORT}")
    if match is None or not 0 < int(match[3]) < 65_536:
        raise ValueError(f"expected an address such as 10.0.0.2:8001 or dns:NAME, got {text!r}")
    return match[1] or match[2], int(match[3])


def join_address(host: str, port: int) -> str:
    """Join a host and a port to an address that `split_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def remote_peer(peers: Sequence[str]) -> str | None:
    """The first of these peers that may be on another machine. Raises ValueError for a bad
    address."""
    for peer in peers:
        host, _ = split_address(peer.removeprefix(DNS))
        if peer.startswith(DNS) or not is_loopback(host):
            return peer
    return None


def client_address(host: str, port: int | None) -> str:
    """The address at which clients reach a port; empty if there is none, or `host` means all
    addresses or is malformed."""
    address = join_address(host.removeprefix("[").removesuffix("]"), port or 0)
    is_named = is_address(address) and host_name(address) not in ("", "0.0.0.0")
    return address if is_named and host not in EVERY_ADDRESS else ""


def why_unnamed(home: PeerHello, hello: PeerHello) -> str:
    """Why clients of this server, whose hello is `home`, must not be sent to the addresses in
    `hello`; empty: they may."""
    home_addresses = {home.http_address, home.grpc_address} - {""}
    addresses = {hello.http_address, hello.grpc_address} - {""}
    if addresses and hello.tls != home.tls:
        return "only one of the two servers uses TLS"
    if any(map(_is_local, addresses)) and not any(map(_is_local, home_addresses)):
        return "its address is on the loopback interface"
    return "its address is this server's own" if addresses & home_addresses else ""


def _is_local(address: str) -> bool:
    return is_loopback(host_name(address))
