"""`ServerPeers`: connects the links to peers with this server's models and calls.

It sends peers the digests of this server's models and compares them with theirs, reports when it
could start the next request of each model, and accepts the calls that peers forward. A peer is used
for a version only if it serves the same files in the same way under the same name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from slacktide._version import __version__
from slacktide.domain import Reason
from slacktide.frontends.ports import InferenceCall, PeerLink
from slacktide.models.versions import LoadedVersion
from slacktide.peers import LoadReport, LoadReporter, ModelLoad, PeerHello, PeerLoads
from slacktide.peers.messages import PROTOCOL
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.server.peers.addresses import why_unnamed
from slacktide.server.peers.served_versions import (
    ServedVersions,
    digest_of,
    label_of,
    models_of,
)
from slacktide.server.peers.visiting import VisitingCall
from slacktide.wire.calls import CallContext
from slacktide.wire.errors import WireError

log = logging.getLogger("slacktide.peers")

REPORT_S: Final = 0.1
"""Seconds of a round, in which models are checked once, and then the loads for each peer."""
_UNLIKE: Final = "the peer serves other files or settings under this name"
MOST_GONE: Final = 64
"""Number of peers that are shown after they have left."""


@dataclass(slots=True, eq=False)
class JoinedPeer:
    """A peer that has said hello."""

    link: PeerLink
    hello: PeerHello
    usable: frozenset[str] = frozenset()
    """Versions that either server may answer for the other, as `model:version`."""
    models: frozenset[str] = frozenset()
    """Models that have a usable version."""
    unlike: frozenset[str] = frozenset()
    """Versions that both servers have, but with different files or settings."""
    alike: frozenset[str] = frozenset()
    """Models of which the peer has only versions that are usable."""
    unnamed: str = ""
    """Why clients are not sent to the addresses in the peer's hello; empty if they are."""
    reported_at: float = -inf
    """When its last report came."""
    received: int = 0
    """Number of calls that came on the link."""
    called: set[str] = field(default_factory=set)
    """Models of the calls that came since the last report."""
    reporter: LoadReporter = field(default_factory=LoadReporter)
    """Decides which loads to report to the peer, and when."""
    has_reported: bool = False
    """Whether a report went with an answer in this turn of the loop."""


class ServerPeers:
    """The `PeerHost` of a server. Belongs to the server's loop."""

    def __init__(
        self,
        machine: str,
        plane: ServerDataPlane,
        loads: PeerLoads,
        digest: Callable[[LoadedVersion], str] = digest_of,
    ) -> None:
        """`machine`: the server's name; `plane` answers the calls of peers. `digest`: the text by
        which two servers compare a version."""
        self.machine = machine
        self.forwarded: Counter[tuple[str, str]] = Counter()
        """Calls sent (`out`) and received (`in`), and requests whose clients were sent to a peer
        (`redirected`), by model and direction."""
        self._greeting = PeerHello(PROTOCOL, __version__, machine, {})
        """The hello, without models."""
        self._plane = plane
        self._loads = loads
        self._peers: dict[str, JoinedPeer] = {}
        self._versions = ServedVersions(plane.catalog, digest)
        self.next_start = plane.driver.next_start
        """When the next request of a version would start, by its model and pin."""
        self.in_flight: Callable[[], int] = lambda: plane.driver.in_flight
        """The number of this server's requests. If it is 0, the next request starts immediately."""
        self._usable: frozenset[str] = frozenset()
        """Versions for which at least one peer may answer."""
        self._gone: dict[str, None] = {}
        """Peers that have left, latest last."""
        self._waiting: list[str] = []
        """Peers that have not had their turn for a report in this round."""
        self.draining = False

    # ── for links ────────────────────────────────────────────────────────────────────────────

    def hello(self) -> PeerHello:
        self._greet()  # peers that are linked already must learn of changes, too
        return self._hello()

    def _hello(self) -> PeerHello:
        return replace(self._greeting, models=self._versions.digests)

    @property
    def scheme(self) -> str:
        """Scheme of the HTTP ports of this server, and of peers whose addresses it names."""
        return "https" if self._greeting.tls else "http"

    def advertise(self, *, http: str, grpc: str, tls: bool) -> None:
        """Tell peers the addresses at which clients reach this server; empty: none."""
        self._greeting = replace(self._greeting, http_address=http, grpc_address=grpc, tls=tls)
        for peer in self._peers.values():
            peer.link.greet(self._hello())
            self._note_addresses(peer)

    def joined(self, link: PeerLink, hello: PeerHello) -> None:
        name = hello.machine
        self._greet()
        now = self._plane.driver.clock()
        peer = self._peers.get(name)
        if peer is None or peer.link is not link:
            peer = self._peers[name] = JoinedPeer(link, hello)
            self._loads.joined(name, now=now)
            self._gone.pop(name, None)
            log.info("peer %s (%s) has joined, release %s", name, link.address, hello.release)
        peer.hello = hello
        self._note_addresses(peer)
        self._compare(peer)
        self._report(peer, peer.models)

    def reported(self, link: PeerLink, report: LoadReport) -> None:
        peer = self._peers.get(link.machine)
        if peer is None or peer.link is not link:
            return
        now = peer.reported_at = self._plane.driver.clock()
        usable = tuple([load for load in report.loads if load.model in peer.models])
        self._loads.measured(link.machine, rtt_s=link.rtt, bytes_per_s=inf)
        self._loads.reported(link.machine, LoadReport(usable, report.received), now=now)

    def call(
        self, link: PeerLink, model: str, version: str | None, context: CallContext
    ) -> InferenceCall:
        context.client = f"peer {link.machine}"  # not the address of a client
        context.connection = ""  # crashing inputs of one client must not block the whole peer
        loaded = self._plane.catalog.find(model, version)
        if loaded is not None and not self._versions.is_current(loaded) and not self.draining:
            raise WireError(Reason.UNAVAILABLE, f"model {model!r} is not the one that peers know")
        peer = self._peers.get(link.machine)
        self.forwarded[model if model in self._plane.catalog.names() else "", "in"] += 1
        if peer is not None:
            peer.received += 1
            if model in peer.models:
                peer.called.add(model)

        def ended() -> None:  # the report goes with the answer
            if peer is not None and not peer.has_reported:
                peer.has_reported = True
                self._plane.loop.call_soon(setattr, peer, "has_reported", False)
                self._report(peer, peer.called | (peer.models & {model}), answering=True)

        plane = self._plane
        return VisitingCall(plane, plane.driver.new_id(), model, version, context, ended)

    def left(self, link: PeerLink, why: str) -> None:
        peer = self._peers.get(link.machine)
        if peer is not None and peer.link is link:
            del self._peers[link.machine]
            self._gone[link.machine] = None
            if len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
            self._loads.left(link.machine)
            self._note_usable()
            log.warning("peer %s (%s) has left: %s", link.machine, link.address, why)

    # ── for calls ────────────────────────────────────────────────────────────────────────────

    def serve(self, version: LoadedVersion) -> bool:
        """Whether any peer may answer for this version."""
        return label_of(version) in self._usable and self._versions.is_current(version)

    def _usable_peer(self, machine: str, version: LoadedVersion) -> JoinedPeer | None:
        """The peer of this name, or None if it may not answer for this version."""
        peer = self._peers.get(machine)
        is_usable = peer is not None and label_of(version) in peer.usable
        return peer if is_usable and self._versions.is_current(version) else None

    def link_to(self, machine: str, version: LoadedVersion, nbytes: int) -> PeerLink | None:
        """The link to a peer that may take a call of this version now; None if it may not."""
        peer = self._usable_peer(machine, version)
        return peer.link if peer is not None and peer.link.has_room(nbytes) else None

    def client_addresses(
        self, machine: str, version: LoadedVersion, *, named: bool
    ) -> tuple[str, str]:
        """The HTTP and gRPC addresses at which a peer answers clients for a version; empty: clients
        are not sent there. `named`: whether the client has named the version."""
        peer = self._usable_peer(machine, version)
        if peer is None or peer.unnamed or not (named or version.name in peer.alike):
            return "", ""
        return peer.hello.http_address, peer.hello.grpc_address

    def home_load(self, version: LoadedVersion) -> ModelLoad:
        """This server's load of a version now."""
        start = self.next_start(version.name, version.pin)
        return ModelLoad(version.name, start.wait_s, start.alone_s, start.row_s)

    # ── for people ───────────────────────────────────────────────────────────────────────────

    def status(self) -> list[dict[str, Any]]:
        """One object for each peer that has said hello."""
        now = self._plane.driver.clock()
        return [
            {
                "machine": name,
                "address": peer.link.address,
                "state": "up" if peer.usable else "not used",
                "release": peer.hello.release,
                "rtt_us": round(peer.link.rtt * 1e6),
                "last_report_ms": (
                    None if peer.reported_at == -inf else round((now - peer.reported_at) * 1e3)
                ),
                "models": sorted(peer.usable),
                "not_used": self._why_not(peer),
            }
            for name, peer in sorted(self._peers.items())
        ]

    def _why_not(self, peer: JoinedPeer) -> list[str]:
        """Sentences on the versions for which a peer is not used."""
        sentences = [f"{label}: {_UNLIKE}" for label in sorted(peer.unlike)]
        sentences += [
            f"{label}: the peer does not serve it"
            for label in sorted(self._versions.digests.keys() - peer.hello.models.keys())
        ]
        if peer.unnamed:
            sentences.append(f"clients are not sent there: {peer.unnamed}")
        return sentences

    def states(self) -> dict[str, tuple[bool, float]]:
        """Whether each peer is used, and its round trip in seconds, by name."""
        states = {name: (bool(peer.usable), peer.link.rtt) for name, peer in self._peers.items()}
        return states | dict.fromkeys(self._gone, (False, 0.0))

    # ── its parts ────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Tell peers to stop forwarding: this server shuts down."""
        self.draining = True
        self._greet()

    def tick(self) -> None:
        """From now on, check models once in a round, and then the loads for each peer."""
        # One peer after the other: peers that get reports together all send to the same free
        # server.
        if not self._waiting:
            self._greet()
            self._waiting = list(self._peers)
        self._plane.loop.call_later(REPORT_S / max(1, len(self._peers)), self.tick)
        peer = self._peers.get(self._waiting.pop()) if self._waiting else None
        if peer is not None:
            self._report(peer, peer.models)

    def _greet(self) -> None:
        """Say hello again if the versions that peers may use have changed."""
        if self._versions.withdraw() if self.draining else self._versions.update():
            for peer in self._peers.values():
                peer.link.greet(self._hello())
                self._compare(peer)

    def _compare(self, peer: JoinedPeer) -> None:
        """Decide for which versions a peer is used."""
        reported, local, machine = peer.hello.models, self._versions.digests, peer.hello.machine
        shared = local.keys() & reported.keys()
        peer.usable = frozenset([label for label in shared if local[label] == reported[label]])
        unlike_before, peer.unlike = peer.unlike, frozenset(shared - peer.usable)
        for label in sorted(peer.unlike - unlike_before):
            log.warning("peer %s is not used for %s: %s", machine, label, _UNLIKE)
        models = models_of(peer.usable)
        withdrawn = tuple([ModelLoad(model, inf, 0.0, 0.0) for model in peer.models - models])
        if withdrawn:
            now = self._plane.driver.clock()
            self._loads.reported(machine, LoadReport(withdrawn, 0), now=now)
        for model in models - peer.models:
            peer.reporter.forget(model)  # the peer may have ignored earlier reports
        peer.models = models
        peer.alike = models - models_of(reported.keys() - peer.usable)
        self._note_usable()

    def _note_addresses(self, peer: JoinedPeer) -> None:
        """Decide whether clients may be sent to a peer."""
        why = why_unnamed(self._greeting, peer.hello)
        if why and why != peer.unnamed:
            log.warning("peer %s: clients are not sent there: %s", peer.hello.machine, why)
        peer.unnamed = why

    def _note_usable(self) -> None:
        self._usable = frozenset().union(*[peer.usable for peer in self._peers.values()])

    def _report(
        self, peer: JoinedPeer, models: Collection[str], *, answering: bool = False
    ) -> None:
        """Tell a peer the loads of these models that have changed, if any."""
        find, loads = self._plane.catalog.find, []
        for model in models:
            version = find(model, None)
            loads.append(
                ModelLoad(model, inf, 0.0, 0.0) if version is None else self.home_load(version)
            )
        now = self._plane.driver.clock()
        report = peer.reporter.report(loads, peer.received, now=now, answering=answering)
        if report is not None:
            peer.called.clear()
            peer.link.report(report)
