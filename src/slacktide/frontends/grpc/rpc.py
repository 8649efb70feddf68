"""One gRPC call as our handlers see it, and the frame that every handler runs in.

Theory of operation. On the wire a unary call is a stream with one message each way, and grpc.aio
lets a server treat it so. A *unary* handler of grpc.aio starts only when the whole message is
here; a *streaming* one starts at the metadata and reads the message when it likes. All our methods
are therefore registered as streaming, which costs nothing measurable
(docs/decisions/0004-grpc-stack.md) and buys: the clock starts at the first byte; the gate and
announced lengths are judged before the body is read; a cancellation is seen at any time.

Messages stay bytes at this level: a handler parses them itself, so that a malformed one is
INVALID_ARGUMENT with a sentence (grpc.aio would answer UNKNOWN with a Python exception's text).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TypeAlias, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from slacktide.domain import Outcome, Reason
from slacktide.frontends.ports import AccessLog, AccessRecord, EndpointGroup
from slacktide.frontends.refusals import Refusal, refusal_of
from slacktide.frontends.security import ASKED, Authorize, Verdict
from slacktide.wire.status import WireStatus, status_of

Metadata: TypeAlias = Mapping[str, str]
"""A call's metadata, names in lower case; of a name that comes twice, the last value."""


Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

REASON_KEY = "slacktide-reason"
"""Trailing metadata of a refusal: the label of its reason; its numbers are named alike."""
_ASKED = {name: name.decode() for name in ASKED if name != b"content-type"}
LEAST_PUSHBACK_MS = 100
"""Shortest wait asked of clients that retry by themselves, which all do so at once."""

NEVER_S = 365 * 86400.0
"""A gRPC deadline further off than this is none: some clients send the largest number they have,
which grpc-core shortens to three years on the way."""


@dataclass(slots=True)
class GrpcCall:
    """A call in progress. Handlers fill in `model`, `request_id` and `outcome` for the log."""

    context: Context
    first_byte: float
    """Monotonic seconds when its metadata arrived."""
    metadata: Metadata
    client: str
    bodies: MessageTimeouts
    connection: str = ""
    model: str = ""
    request_id: str = ""
    outcome: Outcome | None = None
    """Of a call that is one request."""

    async def message(self) -> bytes:
        """The one message of a unary call. Raises Refusal if it does not come."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        bodies = self.bodies
        bodies.expect(task, self.first_byte)
        try:
            received: object = await self.context.read()
        except BaseException:
            if bodies.came(task):
                raise
            task.uncancel()
            raise Refusal(status_of(Reason.NO_BODY), "the message did not arrive in time") from None
        bodies.came(task)
        if received is grpc.aio.EOF:
            raise Refusal(status_of(Reason.BAD_INPUT), "the call has no message")
        return cast(bytes, received)

    async def next_message(self) -> bytes | None:
        """The next message of a stream; None after the last one."""
        received: object = await self.context.read()
        return None if received is grpc.aio.EOF else cast(bytes, received)

    def budget_s(self) -> float | None:
        """Seconds left of the client's gRPC deadline; None if it has none."""
        remaining = cast("float | None", self.context.time_remaining())
        return None if remaining is None or remaining > NEVER_S else remaining


GrpcHandler = Callable[[GrpcCall], Awaitable[bytes | None]]
"""A handler: returns the serialized answer of a unary method; one that streams answers writes them
itself. Raises Refusal, WireError or ControlError for anything but OK."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """A row of the service table."""

    group: EndpointGroup
    behaviour: GrpcHandler
    streams: bool = False
    """Whether there may be more than one answer."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What surrounds every handler: the gate, errors to statuses, the access log."""

    authorize: Authorize | None
    access_log: AccessLog | None
    clock: Callable[[], float]
    bodies: MessageTimeouts
    triton_strict: bool

    def handler(self, name: str, method: GrpcMethod) -> grpc.RpcMethodHandler[bytes, bytes]:
        """`method` as grpc.aio wants it; `name` is its full name."""
        behaviour = method.behaviour

        async def run(_messages: object, context: Context) -> bytes | None:
            pairs = cast("tuple[tuple[str, str], ...]", context.invocation_metadata() or ())
            peer = context.peer()
            client = peer_host(peer)
            # Without a port all connections have one name.
            connection = peer if peer.startswith("ip") else ""
            rpc = GrpcCall(context, self.clock(), dict(pairs), client, self.bodies, connection)
            rpc.request_id = rpc.metadata.get("x-request-id", "")
            status = "CANCELLED"  # unless something better is known below
            try:
                self._admit(method.group, rpc)
                answer = await behaviour(rpc)
                status = "OK"
                return answer
            except grpc.aio.BaseError:
                raise  # the call is over, and grpc.aio knows
            except Exception as error:
                refusal = refusal_of(error, triton_strict=self.triton_strict, what=name)
                status = refusal.status.grpc
                if rpc.outcome is None and refusal.reason is not None:
                    rpc.outcome = Outcome(refusal.reason, rpc.first_byte)
                return await context.abort(
                    grpc.StatusCode[status], refusal.message, _trailing(refusal)
                )
            finally:
                if self.access_log is not None:
                    seconds = self.clock() - rpc.first_byte
                    self.access_log(
                        AccessRecord(
                            "grpc",
                            client,
                            name,
                            rpc.model,
                            status,
                            seconds,
                            rpc.request_id,
                            outcome=rpc.outcome,
                        )
                    )

        if method.streams:
            return grpc.stream_stream_rpc_method_handler(run)
        return grpc.stream_unary_rpc_method_handler(run)

    def _admit(self, group: EndpointGroup, rpc: GrpcCall) -> None:
        """grpc.aio does not pass on the `:authority`; browsers do not speak gRPC, and what comes
        through a proxy has its Origin."""
        if self.authorize is None:
            return
        metadata = rpc.metadata
        asked = {n: metadata[text].encode() for n, text in _ASKED.items() if text in metadata}
        verdict = self.authorize(group, asked)
        if verdict is not Verdict.PASS:
            status = verdict.status
            name = "UNAUTHENTICATED" if status == 401 else "PERMISSION_DENIED"
            raise Refusal(WireStatus(status, name), verdict.value)


def _trailing(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    """Trailing metadata: the reason with its numbers, and when to try again, for people's code and
    gRPC's retries.

    A place may be free within a millisecond, but not for all that were refused: never at once.
    """
    trailing = [] if refusal.reason is None else [(REASON_KEY, refusal.reason.label)]
    for name, number in refusal.numbers.items():
        trailing.append((f"slacktide-{name.replace('_', '-')}", str(number)))
    seconds = refusal.retry_after_s
    if seconds is not None:
        trailing.append(("retry-after", str(max(1, ceil(seconds)))))
        pushback_ms = max(LEAST_PUSHBACK_MS, ceil(seconds * 1e3))
        trailing.append(("grpc-retry-pushback-ms", str(pushback_ms)))
    return tuple(trailing)


@lru_cache(maxsize=4096)
def peer_host(peer: str) -> str:
    """The address in grpc-core's name of a peer, without the port.

    `ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:…` (all clients of a socket are one).
    """
    scheme, _, rest = unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return scheme
    return rest.rpartition(":")[0].strip("[]")


_LOOKS_PER_TIMEOUT = 4


class MessageTimeouts:
    """Cancels the tasks that wait for a message that does not come in time.

    A timer for each call would cost a tenth of what the call may cost in all, and nearly every one
    would be cancelled at once. So there is one for all: calls are kept in the order they came, and
    a look every quarter of the limit finds those that are overdue. `expect` and `came` are called
    by the task itself.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._since: dict[asyncio.Task[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, task: asyncio.Task[object], now: float) -> None:
        """From now on, cancel `task` if it does not say `came` within the limit."""
        self._since[task] = now
        if self._timer is None:
            self._arm()

    def came(self, task: asyncio.Task[object]) -> bool:
        """The wait of `task` is over. False if it had timed out, and `task` was cancelled."""
        return self._since.pop(task, None) is not None

    def _arm(self) -> None:
        delay = self._timeout_s / _LOOKS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        latest = self._clock() - self._timeout_s
        for task in [task for task, since in self._since.items() if since <= latest]:
            del self._since[task]
            task.cancel()
        if self._since:
            self._arm()
