"""`ServerDataPlane`: the driver, models and limits that calls of all protocols share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from slacktide.domain import Reason
from slacktide.executors.hand_over.arena import MemoryLimitExceeded, Slot
from slacktide.models.versions import Catalog, LoadedVersion
from slacktide.observability.observers import Observers
from slacktide.server.calls.call import ServerCall
from slacktide.server.calls.driver import Driver
from slacktide.server.calls.overload_log import OverloadLog
from slacktide.server.calls.sessions import Sessions, StreamSession
from slacktide.wire.calls import CallContext, SessionTerms, SizeAdvice
from slacktide.wire.errors import WireError
from slacktide.wire.link_estimate import LinkEstimates
from slacktide.wire.parameters import LOOK_ALIKES

MOST_BODIES = 4096
"""Maximum number of bodies that a client may be sending at a time, however small they are: each
takes a place in the queue."""

MOST_CANCELLED = 500.0
"""Early cancellations after which requests of an address are refused."""
FORGIVEN_PER_S = 20.0
"""Early cancellations forgiven per second; each served request also forgives one."""
MOST_ADDRESSES = 4096
"""Number of addresses at which those with no cancellations left to forgive are removed."""


class ClientLimits:
    """Limits on requests, bodies and cancellations of each client."""

    def __init__(
        self,
        requests: int | None,
        arriving: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`requests`: maximum requests in flight per client address; `arriving`: maximum bytes of
        announced bodies that an address may be sending. None: no limit."""
        self._clock = clock
        self._cancelled: dict[str, tuple[float, float]] = {}
        """Number of unforgiven early cancellations, and the time of that count, by client."""
        self._most_requests = requests
        self._most_arriving = arriving
        self._requests: dict[str, int] = {}
        self._arriving: dict[str, tuple[int, int]] = {}
        """Bytes and number of arriving bodies, by client."""

    def admit(self, client: str) -> None:
        """Count one more request in flight. Raises WireError (CLIENT_LIMIT)."""
        if self._cancelled and self._cancelled_by(client) >= MOST_CANCELLED:
            raise WireError(Reason.CLIENT_LIMIT, "this address cancels too many requests")
        count = self._requests.get(client, 0)
        if self._most_requests is not None and count >= self._most_requests:
            raise WireError(Reason.CLIENT_LIMIT, "")
        self._requests[client] = count + 1

    def release(self, client: str) -> None:
        """Count one request fewer in flight."""
        remaining = self._requests[client] - 1
        if remaining:
            self._requests[client] = remaining
        else:
            del self._requests[client]

    def admit_body(self, client: str, length: int) -> None:
        """Count one more request, whose body of `length` bytes is arriving. Raises WireError
        (CLIENT_LIMIT). A client's only arriving body may be longer than the limit."""
        nbytes, count = self._arriving.get(client, (0, 0))
        self.admit(client)
        most = self._most_arriving
        if count >= MOST_BODIES or (count and most is not None and nbytes + length > most):
            self.release(client)
            raise WireError(Reason.CLIENT_LIMIT, "too many request bodies in flight")
        self._arriving[client] = nbytes + length, count + 1

    def arrived(self, client: str, length: int) -> None:
        """Count one arriving body fewer, because it has arrived or never will."""
        nbytes, count = self._arriving[client]
        if count > 1:
            self._arriving[client] = nbytes - length, count - 1
        else:
            del self._arriving[client]

    def cancelled(self, client: str) -> None:
        """Count an early cancellation of a complete request: its batch may run for nobody."""
        if len(self._cancelled) >= MOST_ADDRESSES:
            counts = {address: self._cancelled_by(address) for address in self._cancelled}
            self._cancelled = {a: self._cancelled[a] for a, count in counts.items() if count}
        self._cancelled[client] = self._cancelled_by(client) + 1.0, self._clock()

    def served(self, client: str) -> None:
        """Forgive one early cancellation for a served request."""
        if client in self._cancelled:
            count = self._cancelled_by(client) - 1.0
            if count > 0.0:
                self._cancelled[client] = count, self._clock()
            else:
                del self._cancelled[client]

    def _cancelled_by(self, client: str) -> float:
        count, at = self._cancelled.get(client, (0.0, 0.0))
        return max(0.0, count - FORGIVEN_PER_S * (self._clock() - at))

    @property
    def clients(self) -> frozenset[str]:
        """Addresses that have requests in flight or bodies arriving."""
        return frozenset((*self._requests, *self._arriving))


def why_absent(catalog: Catalog, model: str, version: str | None) -> tuple[Reason, str]:
    """Return the reason why no version of a model answers, and a sentence for it."""
    tried = catalog.absence(model, version)
    if tried is not None:
        return Reason.UNAVAILABLE, f"model {model!r} is unavailable: {tried}"
    if model in catalog.loading:
        return Reason.UNAVAILABLE, f"model {model!r} is still loading"
    if version is not None and catalog.serving(model):
        return Reason.NOT_FOUND, f"model {model!r} has no version {version!r}"
    return Reason.NOT_FOUND, f"unknown model {model!r}"


class ServerDataPlane:
    """The `DataPlane` of a server."""

    def __init__(
        self,
        driver: Driver,
        catalog: Catalog,
        limits: ClientLimits,
        observers: Observers,
        *,
        look_alikes: Mapping[str, str] = LOOK_ALIKES,
        max_sessions: int = 4096,
    ) -> None:
        """`look_alikes`: parameters that are refused, and what to use instead. `max_sessions`:
        maximum number of open sessions."""
        self.draining = False
        self.look_alikes = look_alikes
        self.driver = driver
        self.catalog = catalog
        self.limits = limits
        self.observers = observers
        self.links = LinkEstimates()
        self.loop = asyncio.get_running_loop()
        self.overload = OverloadLog(driver.clock, self.loop.call_later)
        self.sessions = Sessions(
            catalog, driver.post, driver.clock, self.loop.call_soon, max_sessions
        )
        driver.on_plan = self.sessions.planned
        self.offered: Callable[[], float] = float
        """Returns the work offered by clients ÷ the lanes' capacity. Set after
        construction."""

    def largest_body(self, model: str | None = None, version: str | None = None) -> int:
        if model is None:
            return max((loaded.check.largest for loaded in self.catalog.all()), default=0)
        loaded = self.catalog.find(model, version)
        return 0 if loaded is None else loaded.check.largest

    def has_slo(self, model: str, version: str | None) -> bool:
        loaded = self.catalog.find(model, version)
        if loaded is None:
            return False
        settings = loaded.definition.settings
        return settings.slo is not None or settings.max_slo is not None

    def offered_share(self) -> float:
        return self.offered()

    def call(self, model: str, version: str | None, context: CallContext) -> ServerCall:
        return ServerCall(self, self.driver.new_id(), model, version, context)

    def open_session(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> StreamSession:
        if self.draining or self.catalog.find(terms.model, terms.version) is None:
            raise self.absence(terms.model, terms.version)
        return self.sessions.open(terms, address, advise)

    def absence(self, model: str, version: str | None) -> WireError:
        """Return the error for a call that no version answers."""
        if self.draining:
            return WireError(Reason.DRAINING, "the server is shutting down")
        return WireError(*why_absent(self.catalog, model, version))

    def allocate(self, version: LoadedVersion, nbytes: int, client: str) -> Slot:
        """Allocate memory for a payload, if necessary by releasing payloads kept for profiling.
        Raises WireError."""
        arena = version.arena
        try:
            try:
                return arena.allocate(nbytes, client)
            except MemoryLimitExceeded:
                if not self.driver.reclaim():
                    raise
                return arena.allocate(nbytes, client)
        except MemoryLimitExceeded as error:
            raise WireError(error.reason, str(error)) from None
