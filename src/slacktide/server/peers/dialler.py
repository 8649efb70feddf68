"""`PeerDialler`: keeps the links of a server to its peers.

It resolves the addresses of `--peers` and dials them. `peers/members.py` judges every link,
whichever side dialled it, before the server's own host is told of the link. Each attempt reads the
certificate and the token again. Existing links keep the certificate and token that they began with.
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
from math import inf
from typing import Any, Final

from slacktide.domain import Reason
from slacktide.frontends.common.security import Credentials, SecurityError, is_loopback
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.grpc.peers import PeerConnection
from slacktide.frontends.listener import Callbacks
from slacktide.frontends.ports import InferenceCall, PeerHost, PeerLink
from slacktide.peers.members import ITSELF, LINKED, Members
from slacktide.peers.messages import LoadReport, PeerHello
from slacktide.server.peers.addresses import DNS, join_address, split_address
from slacktide.wire.calls import CallContext
from slacktide.wire.errors import WireError

log = logging.getLogger("slacktide.server")

RESOLVE_S: Final = 5.0
"""Seconds between look-ups of the names in `dns:NAME`."""
DIAL_S: Final = 2.0
"""Seconds that connecting may take, TLS included."""
LOCAL_ONLY: Final = "peers on other machines need --peer-token-file, or certificates that name them"
_MOST_SENTENCES: Final = 256
Place = tuple[str, int, str]
"""Host and port of an address, and the name that its certificate must have."""


class PeerDialler:
    """The `PeerHost` to give to `GrpcServer`. Call `start` once the server listens, and `close`."""

    def __init__(
        self,
        host: PeerHost,
        machine: str,
        peers: Sequence[str],
        credentials: Credentials,
        *,
        rng: random.Random | None = None,
    ) -> None:
        """`host` is told of the links that are used. `peers`: addresses, or `dns:NAME` for every
        address of a name, each with an optional port. Raises ValueError for other texts."""
        self._host = host
        self._credentials = credentials
        self._names = {
            peer.removeprefix(DNS): split_address(peer.removeprefix(DNS))
            for peer in peers
            if peer.startswith(DNS)
        }
        self._listed: dict[str, Place] = {
            peer: (*split_address(peer), split_address(peer)[0])
            for peer in peers
            if not peer.startswith(DNS)
        }
        self._resolved: dict[str, dict[str, Place]] = {}
        """Addresses of each name, as of the last look-up that succeeded."""
        self._places: dict[str, Place] = {}
        """All addresses to dial."""
        self._instance = secrets.token_hex(8)
        self.members = Members(machine, self._instance, rng or random.Random())
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sentences: dict[str, str] = {}
        """The last sentence logged about each address or machine."""
        self._server: GrpcServer | None = None

    async def start(self, server: GrpcServer) -> None:
        """Start to dial. The links belong to `server`, which drains and closes them."""
        self._server = server
        self._begin(self._run())

    async def close(self) -> None:
        """Stop dialling. Safe to repeat."""
        self._server = None
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """Each address with the machine linked there or the reason why there is none, and `notes`:
        the last sentence logged about each address or machine."""
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
            raise WireError(Reason.UNAVAILABLE, verdict.refusal)
        if verdict.replaced is not None:
            self._host.left(verdict.replaced, LINKED)
            verdict.replaced.close(LINKED)
        self._host.joined(link, hello)
        self._sentences.pop(hello.machine, None)
        self._sentences.pop(link.address, None)
        for address, machine, _ in self.members.addresses():  # whichever side dialled
            if machine == hello.machine:
                self._sentences.pop(address, None)
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
            self._host.left(link, why)
        if link.dialled:
            self._ended(link.address, why)
        else:
            self._note(link.machine or link.address, why)
            self._changed.set()

    # ---------------------------------------------------------------- dialling

    async def _run(self) -> None:
        resolve_at = -inf
        while True:
            if time.monotonic() >= resolve_at:
                await asyncio.gather(*map(self._resolve, self._names))
                resolve_at = time.monotonic() + RESOLVE_S if self._names else inf
                self._places = dict(self._listed)
                for places in self._resolved.values():
                    self._places.update(places)
                self.members.listed(self._places)
            self._changed.clear()
            for address in self.members.to_dial(now=time.monotonic()):
                self._begin(self._dial(address))
            wakeup = self.members.next_wakeup()
            delay = min(resolve_at, inf if wakeup is None else wakeup) - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if delay == inf else max(0.01, delay)):
                    await self._changed.wait()

    async def _resolve(self, name: str) -> None:
        host, port = self._names[name]
        try:
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: an empty or too long label
            why = getattr(error, "strerror", None) or error
            self._note(DNS + name, f"the name cannot be resolved: {why}")
            return
        self._sentences.pop(DNS + name, None)
        hosts = sorted({str(row[4][0]) for row in rows})
        self._resolved[name] = {join_address(place, port): (place, port, host) for place in hosts}

    async def _dial(self, address: str) -> None:
        server, (host, port, name) = self._server, self._places[address]
        peers = self._credentials.peers
        why = ""
        try:
            if not (peers.is_remote or is_loopback(host)):
                raise SecurityError(LOCAL_ONLY)
            context = await asyncio.to_thread(self._credentials.dialling_context)
            if server is None or server.state.draining:
                return
            connection = PeerConnection(server.state, self, address, peers.token)
            async with asyncio.timeout(DIAL_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: Callbacks(connection),
                    host,
                    port,
                    ssl=context,
                    server_hostname=name if context else None,
                )
        except TimeoutError:
            why = f"no connection within {DIAL_S:g} s"
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is refused: {error.verify_message}"
        except ssl.SSLError as error:
            why = f"TLS failed: {error.reason or error}"
        except OSError as error:
            why = error.strerror or str(error)
        except (SecurityError, UnicodeError) as error:
            why = str(error)
        if why:
            self._ended(address, why)

    def _ended(self, address: str, why: str) -> None:
        """Record that an attempt, or the link that it led to, has ended."""
        self.members.ended(address, why, now=time.monotonic())
        self._note(address, why)
        self._changed.set()

    def _note(self, about: str, why: str) -> None:
        """Log a sentence, unless it repeats the last one about this address or machine, or concerns
        a link that nobody misses."""
        if why not in (ITSELF, LINKED) and self._sentences.get(about) != why:
            if len(self._sentences) >= _MOST_SENTENCES:
                self._sentences.clear()
            self._sentences[about] = why
            log.warning("peer %s: %s", about, why)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
