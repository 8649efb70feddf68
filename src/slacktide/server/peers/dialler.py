"""`PeerDialler`: keeps the links of a server to its peers.

It resolves the addresses of `--peers` and dials them. Every link, whoever dialled it, is judged
before the server's own host hears of it (`peers/members.py` decides). Each attempt reads the
certificate and the token anew; links that exist go on with those that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final

from slacktide.domain import Reason
from slacktide.frontends.common.security import Credentials, SecurityError, is_loopback
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.grpc.peers import PeerConnection
from slacktide.frontends.listener import Callbacks
from slacktide.frontends.ports import InferenceCall, PeerHost, PeerLink
from slacktide.peers.members import ITSELF, LINKED, MAX_LINKS, Members
from slacktide.peers.messages import LoadReport, PeerHello
from slacktide.wire.calls import CallContext
from slacktide.wire.errors import WireError

log = logging.getLogger("slacktide.server")

DNS: Final = "dns:"
RESOLVE_S: Final = 5.0
"""Seconds between look-ups of the names after `dns:`."""
DIAL_S: Final = 2.0
"""Seconds that connecting may take, TLS included."""
LOCAL_ONLY: Final = "peers on other machines need --peer-token-file, or certificates that name them"
_MOST_SENTENCES: Final = 256


class PeerDialler:
    """The `PeerHost` to give to `GrpcServer`. Call `start` once the server listens, and `close`."""

    def __init__(
        self,
        host: PeerHost,
        machine: str,
        peers: Sequence[str],
        credentials: Credentials,
        *,
        default_port: int,
        max_links: int = MAX_LINKS,
        rng: random.Random | None = None,
    ) -> None:
        """`host` hears of the links that are used. `peers`: addresses, or `dns:NAME` for all that a
        name stands for, each with an optional port. Raises ValueError for others."""
        self._host, self._machine = host, machine
        self._credentials = credentials
        self._names = [peer.removeprefix(DNS) for peer in peers if peer.startswith(DNS)]
        self._listed = [peer for peer in peers if not peer.startswith(DNS)]
        self._default_port = default_port
        self._places = {peer: split_address(peer, default_port) for peer in self._listed}
        """Host and port by address."""
        for name in self._names:
            split_address(name, default_port)
        self._tls_names: dict[str, str] = {}
        """Name that the certificate of an address must have, if it is another than its host."""
        self._resolved: dict[str, list[str]] = {}
        """Addresses by name, as of the last look-up that worked."""
        self._instance = secrets.token_hex(8)
        self.members = Members(machine, self._instance, rng or random.Random(), max_links=max_links)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sentences: dict[str, str] = {}
        """What was logged last about an address or a machine."""
        self._server: GrpcServer | None = None

    async def start(self, server: GrpcServer) -> None:
        """Dial from now on. The links belong to `server`, which drains and closes them."""
        self._server = server
        self._begin(self._run())

    async def close(self) -> None:
        """Dial no more. Safe to repeat."""
        self._server = None
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """Each address, what is linked there or why nothing is, and what is wrong with peers."""
        return {
            "addresses": [
                {"address": address, "machine": machine, "why": why}
                for address, machine, why in self.members.addresses()
            ],
            "notes": dict(self._sentences),
        }

    # ---------------------------------------------------------------- the host of all links

    def hello(self) -> PeerHello:
        return replace(self._host.hello(), instance=self._instance)

    def joined(self, link: PeerLink, hello: PeerHello) -> None:
        if self.members.holds(link, hello.machine):  # it says hello again
            self._host.joined(link, hello)
            return
        verdict = self.members.admit(hello, link, address=link.address, dialled=link.dialled)
        if verdict.refusal:
            if not link.dialled and verdict.refusal not in (ITSELF, LINKED):
                self._note(f"{hello.machine} at {link.address}", verdict.refusal)
            raise WireError(Reason.UNAVAILABLE, verdict.refusal)
        if verdict.replaced is not None:
            self._host.left(verdict.replaced, "another link took its place")
            verdict.replaced.close("another link took its place")
        self._host.joined(link, hello)
        self._sentences.pop(hello.machine, None)
        self._sentences.pop(link.address, None)
        log.info("peer %s is linked (%s)", hello.machine, link.address)

    def reported(self, link: PeerLink, report: LoadReport) -> None:
        if self.members.holds(link, link.machine):
            self._host.reported(link, report)

    def call(
        self, link: PeerLink, model: str, version: str | None, context: CallContext
    ) -> InferenceCall:
        return self._host.call(link, model, version, context)

    def left(self, link: PeerLink, why: str) -> None:
        if self.members.left(link, link.machine):
            if not link.dialled:  # else `_ended` says so
                self._note(link.machine, why)
            self._host.left(link, why)
            self._changed.set()

    # ---------------------------------------------------------------- dialling

    async def _run(self) -> None:
        resolve_at = -inf
        while self._server is not None:
            now = time.monotonic()
            if now >= resolve_at and (self._names or resolve_at < 0.0):
                await asyncio.gather(*map(self._resolve, self._names))
                now = time.monotonic()
                resolve_at = now + RESOLVE_S
                addresses = [a for name in self._names for a in self._resolved.get(name, ())]
                self.members.listed(dict.fromkeys([*self._listed, *addresses]))
            self._changed.clear()
            for address in self.members.to_dial(now=now):
                self._begin(self._dial(address))
            wakeup = self.members.next_wakeup()
            moments = [resolve_at] if self._names else []
            moments += [] if wakeup is None else [wakeup]
            delay = max(0.01, min(moments) - time.monotonic()) if moments else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), delay)

    async def _resolve(self, name: str) -> None:
        host, port = split_address(name, self._default_port)
        try:
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: an empty or too long label
            why = getattr(error, "strerror", None) or error
            self._note(DNS + name, f"the name cannot be resolved: {why}")
            return
        self._sentences.pop(DNS + name, None)
        places = {join_address(str(row[4][0]), port): str(row[4][0]) for row in rows}
        self._resolved[name] = sorted(places)
        for address, place in places.items():
            self._places[address], self._tls_names[address] = (place, port), host

    async def _dial(self, address: str) -> None:
        server, (host, port) = self._server, self._places[address]
        peers = self._credentials.peers
        ended = partial(self._ended, address)
        try:
            if not (peers.is_remote or is_loopback(host)):
                raise SecurityError(LOCAL_ONLY)
            context = await asyncio.to_thread(self._credentials.dialling_context)
            if server is None or server.state.draining:
                return
            connection = PeerConnection(server.state, self, address, peers.token, ended)
            async with asyncio.timeout(DIAL_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: Callbacks(connection),
                    host,
                    port,
                    ssl=context,
                    server_hostname=self._tls_names.get(address, host) if context else None,
                )
        except TimeoutError:
            ended(f"no connection within {DIAL_S:g} s")
        except ssl.SSLCertVerificationError as error:
            ended(f"its certificate is refused: {error.verify_message}")
        except ssl.SSLError as error:
            ended(f"TLS failed: {error.reason or error}")
        except OSError as error:
            ended(error.strerror or str(error))
        except (SecurityError, UnicodeError) as error:
            ended(str(error))

    def _ended(self, address: str, why: str) -> None:
        """An attempt or its link has ended."""
        self.members.ended(address, why, now=time.monotonic())
        if why not in (ITSELF, LINKED):
            self._note(address, why)
        self._changed.set()

    def _note(self, about: str, why: str) -> None:
        """Log a sentence, unless it is the last one about this address or machine."""
        if self._sentences.get(about) != why:
            if len(self._sentences) >= _MOST_SENTENCES:
                self._sentences.clear()
            self._sentences[about] = why
            log.warning("peer %s: %s", about, why)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """The host and port of `host`, `host:port`, `[v6]:port` or `v6`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or text[-1:] == "]" or (":" in host and host[:1] != "["):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"expected an address such as 10.0.0.2:8001 or dns:NAME, got {text!r}")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
