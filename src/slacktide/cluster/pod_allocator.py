"""`PodAllocator`: has the pod itself resized in place, and moves threads once it is.

In a pod, affinity alone gives a worker no more time than the container's limit. So more cores begin
with the `resize` subresource: threads are moved, and the cores confirmed, once the kubelet reports
the new limit. Fewer cores need no leave: threads move at once, and the limit follows some
seconds later, so that cores that are asked for again at once cost no call.

    more    PATCH resize → poll the pod's status → settled: bind, confirm
    fewer   bind, confirm → after `Times.lower_after` seconds PATCH resize

Where the resize is infeasible, refused or the API server cannot be reached, or it is still deferred
after `Times.patience` seconds, the grant is settled with as many cores as the present limit has
room for (local means), and `condition` says why until a resize succeeds. What could not be had is
tried again after a while, twice as long each time; should it come, the grant is confirmed once
more.
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
"""Most times as long after several failures in a row."""


class Hindrance(Enum):
    """What keeps a pod from the CPU that was asked for."""

    DEFERRED = "deferred"
    INFEASIBLE = "infeasible"
    IN_PROGRESS = "in_progress"
    """Accepted, and not in force when patience ended."""
    REFUSED = "refused"
    """By the API server, or it cannot be reached."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long to wait for what; seconds."""

    poll: float = 0.2
    """Between two looks at a resize that is under way; a deferred one is looked at ten times as
    seldom."""
    patience: float = 30.0
    """After which a deferred resize counts as not to be had for now. Kubernetes goes on trying;
    should it succeed, the next request finds the room there."""
    lower_after: float = 10.0
    """For which less must have been enough before the limit is lowered."""
    again_after: float = 10.0
    """After a failure until the API server is asked for more again."""


@dataclass(slots=True)
class _Pending:
    """A grant that waits for room."""

    cores: tuple[int, ...]
    confirm: Confirm


class PodAllocator:
    """The CPU of one pod, shared by the processes in it. Belongs to one event loop."""

    def __init__(self, pod: PodClient, *, overhead: int = 500, times: Times | None = None) -> None:
        """`overhead`: millicores that the server's own loop is to have beside the workers. Raises
        ValueError if it is negative."""
        if overhead < 0:
            raise ValueError(f"overhead: expected 0 or more millicores, got {overhead}")
        self._pod = pod
        self._overhead = overhead
        self._times = times or Times()
        self._cores: dict[int, tuple[int, ...]] = {}
        """Cores of each process, as bound."""
        self._pending: dict[int, _Pending] = {}
        self._unmet: dict[int, _Pending] = {}
        """Grants that were settled with less than was asked for."""
        self._failures = 0
        """In a row."""
        self._retry: asyncio.TimerHandle | None = None
        self._limit: int | None = 0
        """Millicores that the pod has, as last read; None: no limit. Unknown until `start`."""
        self._stated = 0
        """Millicores that its specification asks for: Kubernetes goes on trying to give them."""
        self._asking: asyncio.Task[None] | None = None
        self._lowering: asyncio.TimerHandle | None = None
        self._ceiling = math.inf
        """Millicores to which the limit is being lowered; infinite while it is not."""
        self._not_before = 0.0
        self.hindrance: Hindrance | None = None
        """What keeps the pod from the CPU that was asked for, if anything does."""
        self.condition = ""
        """The same in words; empty if nothing does."""

    def start(self) -> None:
        """Read what the pod has. Blocks for one call; raises PodError."""
        self._note(self._pod.read())

    # CpuAllocator

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        self._pending.pop(pid, None)
        self._unmet.pop(pid, None)
        if self._fits(pid, len(cores)) or len(cores) <= len(self._cores.get(pid, ())):
            self._bind(pid, cores, confirm)
        elif asyncio.get_running_loop().time() < self._not_before:
            self._make_do(pid, _Pending(cores, confirm))
        else:
            self._pending[pid] = _Pending(cores, confirm)
        self._pursue()

    def forget(self, pid: int) -> None:
        for table in (self._cores, self._pending, self._unmet):
            table.pop(pid, None)
        self._pursue()

    async def close(self) -> None:
        """Ask for nothing more; returns once no call is under way."""
        for timer in (self._lowering, self._retry):
            if timer is not None:
                timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    # What is there, what is needed

    @property
    def limit(self) -> int | None:
        """Millicores that the pod had when last looked at; None: no limit."""
        return self._limit

    @property
    def needed(self) -> int:
        """Millicores for everything that is bound or waits to be."""
        cores_by_pid = {**self._cores, **{pid: move.cores for pid, move in self._pending.items()}}
        return self._overhead + 1000 * sum(map(len, cores_by_pid.values()))

    def _room(self, pid: int) -> int | None:
        """Cores that the present limit has for `pid`; None: as many as there are."""
        if self._limit is None:
            return None
        reserved = sum(len(cores) for holder, cores in self._cores.items() if holder != pid)
        # What is about to be taken away can be given no more.
        limit = min(self._limit, self._ceiling, self._stated or math.inf)
        return int(max(0, limit - self._overhead - 1000 * reserved)) // 1000

    def _fits(self, pid: int, count: int) -> bool:
        room = self._room(pid)
        return room is None or count <= room

    def _bind(self, pid: int, cores: tuple[int, ...], confirm: Confirm, why: str = "") -> None:
        """Move threads and settle the grant. Raises ProcessLookupError."""
        try:
            bound, detail = bind(pid, cores)
        except ProcessLookupError:
            self._cores.pop(pid, None)
            raise
        self._cores[pid] = bound
        confirm(Grant(bound, float(len(bound)), detail or why))

    def _make_do(self, pid: int, grant: _Pending) -> None:
        """Settle a grant with what the present limit has room for: no fewer than it has."""
        room = self._room(pid)
        has = len(self._cores.get(pid, ()))
        count = max(1, has, len(grant.cores) if room is None else min(room, len(grant.cores)))
        self._bind(pid, grant.cores[:count], grant.confirm, self.condition or "no room in the pod")
        self._unmet[pid] = grant
        self._retry_later()

    # Asking for it

    def _pursue(self) -> None:
        """Have the pod made larger now, or smaller after a while, if it is not what is needed."""
        loop = asyncio.get_running_loop()
        if self._pending and self._asking is None:
            self._asking = loop.create_task(self._raise_limit())
            self._asking.add_done_callback(self._asked)
        elif self._lowering is None and not self._pending and self._too_large():
            self._lowering = loop.call_later(self._times.lower_after, self._lower)

    def _retry_later(self) -> None:
        if self._retry is None:
            loop = asyncio.get_running_loop()
            at = max(self._not_before, loop.time() + self._times.again_after)
            self._retry = loop.call_at(at, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._asking is not None:
            self._retry_later()
        elif self._unmet:
            self._pending, self._unmet = {**self._unmet, **self._pending}, {}
            self._pursue()

    def _too_large(self) -> bool:
        if self._limit is None or not self._cores:
            return False
        return max(self._limit, self._stated) > self.needed

    def _lower(self) -> None:
        self._lowering = None
        if self._asking is None and not self._pending and self._too_large():
            loop = asyncio.get_running_loop()
            self._ceiling = self.needed
            self._asking = loop.create_task(self._settle(self.needed))
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking, self._ceiling = None, math.inf
        if not task.cancelled():
            task.result()
            self._pursue()

    async def _raise_limit(self) -> None:
        """Ask for what is needed, until no grant waits for room."""
        while self._pending:
            needed = self.needed
            await self._settle(needed)
            # Else more was asked for meanwhile, and what does not fit now may do so after that.
            final = self.needed <= needed
            for pid, grant in tuple(self._pending.items()):
                fits = self._fits(pid, len(grant.cores))
                if fits or final:
                    del self._pending[pid]
                    with contextlib.suppress(ProcessLookupError):  # its handle learns of it
                        if fits:
                            self._bind(pid, grant.cores, grant.confirm)
                        else:
                            self._make_do(pid, grant)

    async def _settle(self, millicores: int) -> None:
        """Ask for a limit and wait until it is in force, or known not to come for now."""
        loop, times = asyncio.get_running_loop(), self._times
        deadline = loop.time() + times.patience
        try:
            cpu = await asyncio.to_thread(self._pod.resize, millicores)
            while True:
                self._note(cpu)
                if cpu.state is ResizeState.SETTLED:
                    self._unhindered()
                    return
                if cpu.state is ResizeState.INFEASIBLE:
                    self._hindered(Hindrance.INFEASIBLE, cpu.message)
                    break
                deferred = cpu.state is ResizeState.DEFERRED
                if deferred:
                    self._hindered(Hindrance.DEFERRED, cpu.message)
                if loop.time() >= deadline:
                    if not deferred:
                        self._hindered(Hindrance.IN_PROGRESS, cpu.message)
                    break
                await asyncio.sleep(times.poll * (10.0 if deferred else 1.0))
                cpu = await asyncio.to_thread(self._pod.read)
        except PodError as error:
            self._hindered(Hindrance.REFUSED, str(error))
        except Exception as error:  # a fault of ours, or an answer like no other: no grant waits on
            log.exception("resizing the pod")
            self._hindered(Hindrance.REFUSED, f"unexpected {type(error).__name__}")
        self._not_before = loop.time() + times.again_after * min(2**self._failures, AGAIN_AT_MOST)
        self._failures += 1

    def _note(self, cpu: PodCpu) -> None:
        self._limit, self._stated = cpu.limit, cpu.wanted or 0

    def _hindered(self, by: Hindrance, message: str) -> None:
        """Say once what is in the way."""
        self.hindrance = by
        why = f"{by.value.replace('_', ' ')}: {message}"
        if why != self.condition:
            self.condition = why
            log.warning("the pod does not have its target CPU, %s", why)

    def _unhindered(self) -> None:
        self._failures = 0
        if self.hindrance is not None:
            self.hindrance, self.condition = None, ""
            log.info("the pod has its target CPU again")
