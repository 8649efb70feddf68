"""`WorkerHandle`: the server's end of one worker process. A `ReplicaHandle`.

Theory of operation. Two things are watched: the control socket, for what the worker says, and the
pidfd, which becomes readable some ten milliseconds after a `kill -9`. Death is
decided by the pidfd alone; then the socket is read to its end first, so that a result which was
sent counts, and `ReplicaLost` is the last report there is.

Outputs that are long are copied over many turns of the loop. What the worker says meanwhile waits,
and so does the end, so that reports keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from functools import partial
from math import ceil

from slacktide.domain import (
    BatchAborted,
    BatchFailed,
    BatchFinished,
    ExitPolicy,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.domain.crops import Glue
from slacktide.executors.allocator import CpuAllocator, Grant
from slacktide.executors.cgroups import release_memory
from slacktide.executors.crop_frames import encode_attach, encode_crops
from slacktide.executors.exit_frames import (
    ReleasedMessage,
    decode_arranged,
    decode_features,
    decode_released,
    encode_exits,
)
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.loop_watch import PatientTimer, call_later
from slacktide.executors.hand_over.output_file import OutputReader
from slacktide.executors.hand_over.protocol import (
    FinishedMessage,
    FrameKind,
    FrameReader,
    ProtocolError,
    decode_aborted,
    decode_damaged,
    decode_faults,
    decode_finished,
    decode_ready,
    decode_text,
    encode_batch,
    encode_number,
    frame,
)
from slacktide.executors.ports import (
    NO_FAULTS,
    BatchOrder,
    BatchOutputs,
    CropPayload,
    MemberFault,
    MembersReleased,
    Outputs,
    Report,
    Reporter,
    Resized,
    RowsMismatch,
)

_GRACE = 2.0
"""Seconds that a stopped worker has to finish its batch before it is killed."""
_STATUS_WAIT = 0.05
"""Seconds to wait, after a death, for the fork server to say how it came about."""
_AGAIN = 0.01
"""Seconds until a message that found no room is sent again."""
_CPU_OF = 2
"""Makes a process's id, inverted and shifted, the clock of its CPU time (clock_getcpuclockid)."""
_RECEIVE = 1 << 18


class _State(Enum):
    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    """Stopped or killed before the fork server has answered; ends as soon as it has."""
    DEAD = "dead"


class WorkerHandle:
    """One worker. `control` and `aborts` are our ends of its sockets, `outputs` its results.

    Owns all three, and the pidfd once it comes. `allocator` gives it the cores of `replica`, and
    others later. `report` gets what happens, `gone` is called once at the very end, always.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        control: socket.socket,
        aborts: socket.socket,
        outputs: OutputReader,
        allocator: CpuAllocator,
        replica: Replica,
        report: Reporter,
        gone: Callable[[WorkerHandle], None],
        memory_limit: int | None = None,
    ) -> None:
        self._loop = loop
        self._control = control
        self._aborts = aborts
        self._outputs = outputs
        self._allocator = allocator
        self._id = replica.id
        self._report = report
        self._gone = gone
        self._memory_limit = memory_limit
        self._reader = FrameReader()
        self._unsent = b""
        self._members = 0
        """Of the batch that it was given last."""
        self._released: set[int] = set()
        """Places of those that ramps have answered."""
        self._cuts = False
        """Whether it was ever told of a frame arena: only then may members be crops."""
        self._faults = NO_FAULTS
        """Of the batch that is about to be reported."""
        self._copying: Generator[None, None, list[Outputs]] | None = None
        """What copies outputs that are long."""
        self._waiting: deque[tuple[FrameKind, bytes]] = deque()
        """What the worker has said meanwhile."""
        self._buries = False
        """Whether its end waits as well."""
        self._model_outputs = 0
        self._listening = True
        self._state = _State.STARTING
        self._silent = False
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None
        self._broken = ""
        """Why it cannot go on, in the worker's words or ours."""
        self._permanent = self._out_of_memory = self._computed = False
        self._began = 0.0, 0.0
        """When it was given its last batch, and its CPU time then."""
        self._cores = replica.cores
        self._resizes = 0
        self._short = False
        """Whether it was said to have something else than its cores."""
        self._timer: PatientTimer | None = None
        for end in (control, aborts):
            end.setblocking(False)
        loop.add_reader(control, self._receive)

    # What a driver asks (ReplicaHandle)

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def descriptor(self) -> int | None:
        number = self._control.fileno()
        return number if number >= 0 else None

    def run(self, order: BatchOrder) -> None:
        """Hand a batch over. Raises ValueError if it has no members."""
        if self._state is _State.STARTING:
            raise RuntimeError("a replica was given a batch before it was ready")
        members = order.members
        if not members:
            raise ValueError("a batch needs members")
        self._members = len(members)
        self._began = time.monotonic(), self._cpu_time()
        if self._released:
            self._released = set()
        data = encode_batch(order)
        if self._cuts:
            cut = {at: crop for at, crop in enumerate(members) if isinstance(crop, CropPayload)}
            data = encode_crops(cut) + data if cut else data
        self._send(data)

    def publish(self, policy: ExitPolicy) -> None:
        self._send(encode_exits(policy))

    def abort(self, batch: int) -> None:
        # It may be dead (ReplicaLost follows), or have thousands of aborts unread: nothing to stop.
        with contextlib.suppress(OSError):
            self._aborts.send(encode_number(FrameKind.ABORT, batch))

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        self._cuts = True
        self._tell_aside(encode_attach(number, glue), frames)

    def detach(self, number: int) -> None:
        self._tell_aside(encode_number(FrameKind.DETACH, number))

    def _tell_aside(self, data: bytes, frames: Arena | None = None) -> None:
        """On the socket that batches do not use; later, while thousands of aborts are unread."""
        if self._aborts.fileno() < 0 or (frames is not None and frames.fd < 0):
            return
        try:
            socket.send_fds(self._aborts, [data], [] if frames is None else [frames.fd])
        except BlockingIOError:
            self._loop.call_later(_AGAIN, self._tell_aside, data, frames)
        except OSError:  # dead; ReplicaLost follows
            return

    def resize(self, cores: tuple[int, ...]) -> None:
        """While the fork server has not answered yet, the worker is moved as soon as it has."""
        self._cores = cores
        self._resizes += 1
        if self._pid is not None and self._state in (_State.STARTING, _State.UP):
            self._move(self._pid, cores)

    def stop(self) -> None:
        self._silent = True
        if self._state is _State.UP:
            self._send(frame(FrameKind.STOP))
            if self._timer is None:
                self._timer = call_later(self._loop, _GRACE, self._end)
        else:
            self._end()  # it has nothing to finish

    def kill(self) -> None:
        at, cpu = self._began
        self._computed = 2.0 * (self._cpu_time() - cpu) >= time.monotonic() - at
        self._end()

    def _end(self) -> None:
        if self._pidfd is not None:
            _kill(self._pidfd)
        elif self._state is _State.STARTING:
            self._state = _State.ENDING

    def _cpu_time(self) -> float:
        """Seconds that the process has computed; 0 if it is gone."""
        try:
            return 0.0 if self._pid is None else time.clock_gettime(~self._pid << 3 | _CPU_OF)
        except OSError:
            return 0.0

    # What the fork server reports (by `ForkClient`, on the loop)

    def spawned(self, pid: int, pidfd: int) -> None:
        """The worker lives; `pidfd` is ours now."""
        self._pid, self._pidfd = pid, pidfd
        self._loop.add_reader(pidfd, self._died)
        if self._state is _State.ENDING:
            _kill(pidfd)
        elif self._cores:
            self._move(pid, self._cores)

    def not_spawned(self, detail: str) -> None:
        self._broken = self._broken or detail
        self._bury()

    def exited(self, status: int) -> None:
        """How it ended: its exit status, or minus the signal that killed it."""
        self._status = status
        if self._state is _State.DEAD:
            self._bury()

    # What the worker says

    def _receive(self) -> bool:
        """Read once and handle it; False if there is nothing (more) to be had.

        A stream that ends, or makes no sense, belongs to a worker that is dead or must be.
        """
        try:
            data = self._control.recv(_RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for kind, body in self._reader.feed(data):
                if self._copying is None:
                    self._heard(kind, body)
                else:
                    self._waiting.append((kind, body))
        except ProtocolError as error:
            self._give_up(error)
            return False
        if not data:
            self._listen_no_more()
        return bool(data)

    def _give_up(self, error: ProtocolError) -> None:
        self._broken = f"the worker talks nonsense: {error}"
        self._permanent = self._out_of_memory = False
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        self._listening = False
        self._loop.remove_reader(self._control)
        self._end()

    def _heard(self, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.FINISHED:
            self._finished(body)
        elif kind is FrameKind.FAULTS:
            self._faults = decode_faults(body, self._members)[1]
        elif kind is FrameKind.ROWS:
            self._tell(RowsMismatch(*decode_text(body)))
        elif kind is FrameKind.DAMAGED:
            self._tell(decode_damaged(body))
        elif kind is FrameKind.FAILED:
            self._tell(BatchFailed(*decode_text(body)))
        elif kind is FrameKind.ABORTED:
            self._tell(BatchAborted(*decode_aborted(body)))
        elif kind is FrameKind.RELEASED:
            self._members_released(body)
        elif kind is FrameKind.ARRANGED:
            self._tell(decode_arranged(body))
        elif kind is FrameKind.FEATURES:
            self._tell(decode_features(body))
        elif kind is FrameKind.READY:
            if self._state is _State.STARTING:
                self._state = _State.UP
            opened = decode_ready(body)
            self._model_outputs = len(opened.interface.outputs)
            if not self._silent:
                self._report(ReplicaUp(self._id), opened=opened)
        elif kind is FrameKind.BROKEN:
            number, self._broken = decode_text(body)
            self._permanent, self._out_of_memory = number == 1, number == 2
            self._end()  # where it has not ended by itself
        else:
            raise ProtocolError(f"{kind.name} from a worker")

    def _finished(self, body: bytes) -> None:
        message = decode_finished(body)
        released = self._released
        got = (len(message.outputs), message.members)
        expected = (self._model_outputs, self._members - len(released))
        if got != expected:
            raise ProtocolError(f"{got} outputs and members where {expected} belong")
        if self._outputs.is_long(message):
            self._copy(message)
        else:
            self._report_finished(message, self._outputs.take(message))

    def _report_finished(self, message: FinishedMessage, outputs: list[Outputs]) -> None:
        released = self._released
        if released:
            remaining = iter(outputs)
            nothing: Outputs = ()
            places = range(self._members)
            outputs = [nothing if place in released else next(remaining) for place in places]
        faults, self._faults = self._faults, NO_FAULTS
        self._tell(BatchFinished(message.batch, message.timing, message.exits), outputs, faults)

    def _members_released(self, body: bytes) -> None:
        message = decode_released(body, self._members)
        got = len(message.outputs)
        if got != self._model_outputs or not self._released.isdisjoint(message.members):
            raise ProtocolError(f"{got} outputs of members released twice, or of {self._members}")
        self._released.update(message.members)
        if self._outputs.is_long(message):
            self._copy(message)
        else:
            self._report_released(message, self._outputs.take(message))

    def _report_released(self, message: ReleasedMessage, outputs: list[Outputs]) -> None:
        self._tell(MembersReleased(message.batch, tuple(message.members), message.ramp), outputs)

    def _copy(self, message: FinishedMessage | ReleasedMessage) -> None:
        """Begin to copy long outputs: the worker does not touch them before they are reported."""
        self._copying = self._outputs.take_in_steps(message)
        self._loop.call_soon(self._copy_on, message)

    def _copy_on(self, message: FinishedMessage | ReleasedMessage) -> None:
        copying = self._copying
        assert copying is not None
        try:
            if not self._silent:  # else nobody waits for them
                next(copying)
                self._loop.call_soon(self._copy_on, message)
                return
            self._copying = None
        except StopIteration as stop:
            self._copying = None
            if isinstance(message, FinishedMessage):
                self._report_finished(message, stop.value)
            else:
                self._report_released(message, stop.value)
        try:
            while self._waiting and self._copying is None:
                self._heard(*self._waiting.popleft())
        except ProtocolError as error:
            self._give_up(error)
        if self._buries:
            self._bury()

    def _tell(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        if not self._silent:
            self._report(event, outputs, faults=faults)

    # Sending

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._control.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # dead; ReplicaLost follows
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._control, self._send_rest)

    def _send_rest(self) -> None:
        self._loop.remove_writer(self._control)
        data, self._unsent = self._unsent, b""
        self._send(data)

    def _move(self, pid: int, cores: tuple[int, ...]) -> None:
        with contextlib.suppress(ProcessLookupError):  # ReplicaLost follows
            self._allocator.grant(pid, cores, partial(self._granted, self._resizes))

    def _granted(self, number: int, grant: Grant) -> None:
        """The allocator has settled our resize with this number."""
        if number == self._resizes and self._state is not _State.DEAD:
            self._send(encode_number(FrameKind.CORES, max(1, ceil(grant.amount - 1e-6))))
            # What it was started with needs no report, unless that is not what it has.
            if number or self._short or grant.detail:
                self._short = bool(grant.detail)
                self._loop.call_soon(self._resized, number, Resized(grant.cores, grant.detail))

    def _resized(self, number: int, report: Resized) -> None:
        """Not from inside `resize`, and not if another resize has come since."""
        if number == self._resizes and self._state in (_State.STARTING, _State.UP):
            self._tell(report)

    # The end

    def _died(self) -> None:
        """The pidfd is readable: the process is dead, whatever else may follow."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        while self._listening and self._receive():
            pass  # its last words count
        self._state = _State.DEAD
        if self._timer is not None:
            self._timer.cancel()
        if self._status is not None or self._broken or self._silent:
            self._bury()
        else:
            self._timer = call_later(self._loop, _STATUS_WAIT, self._bury)

    def _bury(self) -> None:
        """Close everything and report the loss, once."""
        if self._control.fileno() < 0:
            return
        self._state = _State.DEAD
        if self._copying is not None:
            self._buries = True
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._control)
        self._loop.remove_writer(self._control)
        self._control.close()
        self._aborts.close()
        self._outputs.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._pid is not None:
            self._allocator.forget(self._pid)
        detail = self._broken or _cause(self._status)
        limit, breached = self._memory_limit, self._out_of_memory
        if limit is not None and self._pid is not None:
            breached = release_memory(self._pid) or breached
            if breached:
                detail = f"out of memory: a worker may take {limit >> 20} MiB"
        if not self._silent:
            permanent = self._permanent and not breached
            lost = ReplicaLost(self._id, detail, permanent, self._computed)
            self._report(lost, out_of_memory=breached)
        self._gone(self)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was quicker
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _cause(status: int | None) -> str:
    if status is None:
        return "the worker process ended"
    if status < 0:
        return f"the worker process was killed by signal {-status}"
    return f"the worker process exited with status {status}"
