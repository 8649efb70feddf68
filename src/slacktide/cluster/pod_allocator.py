"""`PodAllocator`: resizes its own pod in place, and then moves threads.

In a pod, affinity alone gives a worker no more time than the container's limit. So a grant of more
cores begins with the `resize` subresource; threads move, and the cores are confirmed, once the
kubelet reports the new limit. A grant of fewer cores needs no permission: threads move immediately.
The limit is lowered some seconds later; cores that are requested again before that need no call.

    more    PATCH resize → poll the pod's status → settled: bind, confirm
    fewer   bind, confirm → after `Times.lower_after` seconds PATCH resize

If the resize is infeasible or refused, if the API server cannot be reached, or if the resize is
still deferred after `Times.patience` seconds, the grant is settled with the cores that fit the
current limit. `condition` gives the reason until a resize succeeds. The missing cores are requested
again later, with doubling intervals; if that succeeds, the grant is confirmed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from enum import Enum

from slacktide.cluster.pod_client import PodClient, PodCpu, PodError, ResizeState
from slacktide.executors.allocator import Confirm, Grant, bind

log = logging.getLogger("slacktide.cores")

AGAIN_AT_MOST = 32.0
"""Maximum factor of `Times.again_after` after repeated failures."""


class Hindrance(Enum):
    """Why a pod does not get the CPU it requested."""

    DEFERRED = "deferred"
    INFEASIBLE = "infeasible"
    IN_PROGRESS = "in_progress"
    """Accepted, but not in effect after `Times.patience`."""
    REFUSED = "refused"
    """Refused by the API server, which may also be unreachable."""


@dataclass(frozen=True, slots=True)
class Times:
    """Waiting times in seconds."""

    poll: float = 0.2
    """Interval between checks of a resize in progress; ten times as long for a deferred one."""
    patience: float = 30.0
    """Time after which a deferred resize counts as failed for now. Kubernetes keeps trying; if it
    succeeds, the next request finds the room."""
    lower_after: float = 10.0
    """Time for which less CPU must have been sufficient before the limit is lowered."""
    again_after: float = 10.0
    """Time after a failure until the next request for more CPU."""


@dataclass(slots=True)
class _Pending:
    """A grant that waits for room."""

    cores: tuple[int, ...]
    confirm: Confirm


class PodAllocator:
    """Shares the CPU of the pod between the processes in it. Belongs to one event loop."""

    def __init__(self, pod: PodClient, *, overhead: int = 500, times: Times | None = None) -> None:
        """`overhead`: millicores for the server's own loop, besides the workers. Raises ValueError
        if it is negative."""
        if overhead < 0:
            raise ValueError(f"overhead: expected 0 or more millicores, got {overhead}")
        self._pod = pod
        self._overhead = overhead
        self._times = times or Times()
        self._cores: dict[int, tuple[int, ...]] = {}
        """Cores that each process is bound to."""
        self._pending: dict[int, _Pending] = {}
        self._unmet: dict[int, _Pending] = {}
        """Grants of fewer cores than requested."""
        self._failures = 0
        """Number of consecutive failures."""
        self._retry: asyncio.TimerHandle | None = None
        self._limit: int | None = 0
        """Millicores of the pod when last read; None: no limit. Unknown before `start`."""
        self._desired = 0
        """Millicores in the pod's specification, which Kubernetes keeps trying to provide."""
        self._resizing: asyncio.Task[None] | None = None
        self._lowering: asyncio.TimerHandle | None = None
        self._ceiling = math.inf
        """Millicores to which the limit is being lowered; infinite otherwise."""
        self._not_before = 0.0
        self.hindrance: Hindrance | None = None
        """Why the pod does not have the requested CPU; None if it does."""
        self.condition = ""
        """The hindrance in words; empty if there is none."""

    def start(self) -> None:
        """Read the pod's CPU. Blocks for one call. Raises PodError."""
        self._record(self._pod.read())

    # CpuAllocator

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        self._pending.pop(pid, None)
        self._unmet.pop(pid, None)
        if self._fits(pid, len(cores)) or len(cores) <= len(self._cores.get(pid, ())):
            self._bind(pid, cores, confirm)
        elif asyncio.get_running_loop().time() < self._not_before:
            self._grant_available(pid, _Pending(cores, confirm))
        else:
            self._pending[pid] = _Pending(cores, confirm)
        self._request_resize()

    def forget(self, pid: int) -> None:
        for table in (self._cores, self._pending, self._unmet):
            table.pop(pid, None)
        self._request_resize()

    async def close(self) -> None:
        """Make no further requests, and wait for the call in progress."""
        for timer in (self._lowering, self._retry):
            if timer is not None:
                timer.cancel()
        if self._resizing is not None:
            self._resizing.cancel()
            await asyncio.gather(self._resizing, return_exceptions=True)

    # Available and required CPU

    @property
    def limit(self) -> int | None:
        """Millicores of the pod when last read; None: no limit."""
        return self._limit

    @property
    def needed(self) -> int:
        """Millicores for all bound and pending grants."""
        cores_by_pid = {**self._cores, **{pid: move.cores for pid, move in self._pending.items()}}
        return self._overhead + 1000 * sum(map(len, cores_by_pid.values()))

    def _room(self, pid: int) -> int | None:
        """Cores that the current limit allows `pid`; None: any number."""
        if self._limit is None:
            return None
        reserved = sum(len(cores) for holder, cores in self._cores.items() if holder != pid)
        # CPU that is about to be removed must not be granted.
        limit = min(self._limit, self._ceiling, self._desired or math.inf)
        return int(max(0, limit - self._overhead - 1000 * reserved)) // 1000

    def _fits(self, pid: int, count: int) -> bool:
        room = self._room(pid)
        return room is None or count <= room

    def _bind(self, pid: int, cores: tuple[int, ...], confirm: Confirm, why: str = "") -> None:
        """Move threads and confirm the grant. Raises ProcessLookupError."""
        try:
            bound, detail = bind(pid, cores)
        except ProcessLookupError:
            self._cores.pop(pid, None)
            raise
        self._cores[pid] = bound
        confirm(Grant(bound, float(len(bound)), detail or why))

    def _grant_available(self, pid: int, grant: _Pending) -> None:
        """Settle a grant with the cores that fit the current limit, but no fewer than `pid` has."""
        room = self._room(pid)
        has = len(self._cores.get(pid, ()))
        count = max(1, has, len(grant.cores) if room is None else min(room, len(grant.cores)))
        self._bind(pid, grant.cores[:count], grant.confirm, self.condition or "no room in the pod")
        self._unmet[pid] = grant
        self._retry_later()

    # Requests

    def _request_resize(self) -> None:
        """Enlarge the pod now, or shrink it later, if its CPU is not what is needed."""
        loop = asyncio.get_running_loop()
        if self._pending and self._resizing is None:
            self._resizing = loop.create_task(self._raise_limit())
            self._resizing.add_done_callback(self._resize_ended)
        elif self._lowering is None and not self._pending and self._too_large():
            self._lowering = loop.call_later(self._times.lower_after, self._lower)

    def _retry_later(self) -> None:
        if self._retry is None:
            loop = asyncio.get_running_loop()
            at = max(self._not_before, loop.time() + self._times.again_after)
            self._retry = loop.call_at(at, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._resizing is not None:
            self._retry_later()
        elif self._unmet:
            self._pending, self._unmet = {**self._unmet, **self._pending}, {}
            self._request_resize()

    def _too_large(self) -> bool:
        if self._limit is None or not self._cores:
            return False
        return max(self._limit, self._desired) > self.needed

    def _lower(self) -> None:
        self._lowering = None
        if self._resizing is None and not self._pending and self._too_large():
            loop = asyncio.get_running_loop()
            self._ceiling = self.needed
            self._resizing = loop.create_task(self._settle(self.needed))
            self._resizing.add_done_callback(self._resize_ended)

    def _resize_ended(self, task: asyncio.Task[None]) -> None:
        self._resizing, self._ceiling = None, math.inf
        if not task.cancelled():
            task.result()
            self._request_resize()

    async def _raise_limit(self) -> None:
        """Request the needed CPU until no grant is pending."""
        while self._pending:
            needed = self.needed
            await self._settle(needed)
            # If not final, more CPU was needed meanwhile: the next resize may make room.
            final = self.needed <= needed
            for pid, grant in tuple(self._pending.items()):
                fits = self._fits(pid, len(grant.cores))
                if fits or final:
                    del self._pending[pid]
                    with contextlib.suppress(ProcessLookupError):  # its handle notices the exit
                        if fits:
                            self._bind(pid, grant.cores, grant.confirm)
                        else:
                            self._grant_available(pid, grant)

    async def _settle(self, millicores: int) -> None:
        """Request a limit and wait until it is in force or has failed for now."""
        loop, times = asyncio.get_running_loop(), self._times
        deadline = loop.time() + times.patience
        try:
            cpu = await asyncio.to_thread(self._pod.resize, millicores)
            while True:
                self._record(cpu)
                if cpu.state is ResizeState.SETTLED:
                    self._clear_hindrance()
                    return
                if cpu.state is ResizeState.INFEASIBLE:
                    self._set_hindrance(Hindrance.INFEASIBLE, cpu.message)
                    break
                deferred = cpu.state is ResizeState.DEFERRED
                if deferred:
                    self._set_hindrance(Hindrance.DEFERRED, cpu.message)
                if loop.time() >= deadline:
                    if not deferred:
                        self._set_hindrance(Hindrance.IN_PROGRESS, cpu.message)
                    break
                await asyncio.sleep(times.poll * (10.0 if deferred else 1.0))
                cpu = await asyncio.to_thread(self._pod.read)
        except PodError as error:
            self._set_hindrance(Hindrance.REFUSED, str(error))
        except Exception as error:  # a bug or a malformed answer must not block the grants
            log.exception("resizing the pod")
            self._set_hindrance(Hindrance.REFUSED, f"unexpected {type(error).__name__}")
        self._not_before = loop.time() + times.again_after * min(2**self._failures, AGAIN_AT_MOST)
        self._failures += 1

    def _record(self, cpu: PodCpu) -> None:
        self._limit, self._desired = cpu.limit, cpu.desired or 0

    def _set_hindrance(self, by: Hindrance, message: str) -> None:
        """Record and log a hindrance, once."""
        self.hindrance = by
        why = f"{by.value.replace('_', ' ')}: {message}"
        if why != self.condition:
            self.condition = why
            log.warning("the pod does not have its target CPU: %s", why)

    def _clear_hindrance(self) -> None:
        self._failures = 0
        if self.hindrance is not None:
            self.hindrance, self.condition = None, ""
            log.info("the pod has its target CPU again")
