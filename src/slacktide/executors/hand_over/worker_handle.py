"""`WorkerHandle`: the server's end of one worker process. A `ReplicaHandle`.

Theory of operation. The handle watches the control socket, for messages of the worker, and the
pidfd, which becomes readable some ten milliseconds after a `kill -9`. The pidfd alone decides
whether the worker is dead. Then the socket is read to its end, so that a result that was sent still
counts, and `ReplicaLost` is the last report.

Long outputs are copied over many turns of the loop. Later messages and the end wait meanwhile, so
that reports keep their order.
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
    decode_remembered,
    encode_exits,
    encode_remembered,
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
    RowsKept,
    RowsMismatch,
)

_GRACE = 2.0
"""Seconds that a stopped worker has to finish its batch; then it is killed."""
_STATUS_WAIT = 0.05
"""Seconds to wait, after a death, for the fork server to report the exit status."""
_AGAIN = 0.01
"""Seconds before a message is resent because the socket had no space for it."""
_CPU_OF = 2
"""Low bits of a clock id that select a process's CPU time (clock_getcpuclockid)."""
_RECEIVE = 1 << 18


class _State(Enum):
    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    """Stopped or killed before the fork server has answered. The worker is killed after the
    answer."""
    DEAD = "dead"


class WorkerHandle:
    """The server's end of one worker.

    `control` and `aborts` are the server's ends of the worker's sockets, `outputs` reads its
    results. The handle owns all three, and later the pidfd. `allocator` gives the worker its cores.
    `ended` is called once, at the very end.
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
        ended: Callable[[WorkerHandle], None],
        memory_limit: int | None = None,
    ) -> None:
        self._loop = loop
        self._control = control
        self._aborts = aborts
        self._outputs = outputs
        self._allocator = allocator
        self._id = replica.id
        self._report = report
        self._ended = ended
        self._memory_limit = memory_limit
        self._reader = FrameReader()
        self._send_buffer = b""
        self._member_count = 0
        """Members of the last batch."""
        self._released_places: set[int] = set()
        """Places of members that ramps have answered."""
        self._has_arenas = False
        """Whether a frame arena was ever attached. Without one, no member is a crop."""
        self._faults = NO_FAULTS
        """Faults of the batch that the next report ends."""
        self._copy: Generator[None, None, list[Outputs]] | None = None
        """The copy of long outputs that is under way."""
        self._backlog: deque[tuple[FrameKind, bytes]] = deque()
        """Frames that arrived during the copy."""
        self._end_pending = False
        """Whether the worker's end must be handled after the copy."""
        self._output_count = 0
        self._listening = True
        self._state = _State.STARTING
        self._silent = False
        """Whether the driver has stopped the worker and wants no more reports."""
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None
        self._failure = ""
        """Reason why the worker cannot continue."""
        self._permanent = self._out_of_memory = self._was_computing = False
        self._batch_start = 0.0, 0.0
        """Time at which the last batch was sent, and the worker's CPU time then."""
        self._cores = replica.cores
        self._resizes = 0
        self._lacks_cores = False
        """Whether the last report on its cores said that they differ from the requested ones."""
        self._timer: PatientTimer | None = None
        for end in (control, aborts):
            end.setblocking(False)
        loop.add_reader(control, self._receive)

    # Calls of the driver (ReplicaHandle)

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def descriptor(self) -> int | None:
        number = self._control.fileno()
        return number if number >= 0 else None

    def run(self, order: BatchOrder) -> None:
        """Send a batch. Raises ValueError if it has no members."""
        if self._state is _State.STARTING:
            raise RuntimeError("a replica was given a batch before it was ready")
        members = order.members
        if not members:
            raise ValueError("a batch needs members")
        self._member_count = len(members)
        self._batch_start = time.monotonic(), self._cpu_time()
        if self._released_places:
            self._released_places = set()
        frames = encode_batch(order)
        if self._has_arenas:
            cut = {at: crop for at, crop in enumerate(members) if isinstance(crop, CropPayload)}
            frames = encode_crops(cut) + frames if cut else frames
        if order.remembered:
            frames = encode_remembered(int(order.refreshes), order.remembered) + frames
        self._send(frames)

    def publish(self, policy: ExitPolicy) -> None:
        self._send(encode_exits(policy))

    def abort(self, batch: int) -> None:
        # Ignore a dead worker (ReplicaLost follows), and a worker with thousands of unread aborts.
        with contextlib.suppress(OSError):
            self._aborts.send(encode_number(FrameKind.ABORT, batch))

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        self._has_arenas = True
        self._send_on_abort_socket(encode_attach(number, glue), frames)

    def detach(self, number: int) -> None:
        self._send_on_abort_socket(encode_number(FrameKind.DETACH, number))

    def _send_on_abort_socket(self, data: bytes, frames: Arena | None = None) -> None:
        """Send on the socket of aborts. If thousands of aborts are unread, send later."""
        if self._aborts.fileno() < 0 or (frames is not None and frames.fd < 0):
            return
        try:
            socket.send_fds(self._aborts, [data], [] if frames is None else [frames.fd])
        except BlockingIOError:
            self._loop.call_later(_AGAIN, self._send_on_abort_socket, data, frames)
        except OSError:  # dead; ReplicaLost follows
            return

    def resize(self, cores: tuple[int, ...]) -> None:
        """Move the worker now, or as soon as the fork server has started it."""
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
        at, cpu = self._batch_start
        self._was_computing = 2.0 * (self._cpu_time() - cpu) >= time.monotonic() - at
        self._end()

    def _end(self) -> None:
        if self._pidfd is not None:
            _kill(self._pidfd)
        elif self._state is _State.STARTING:
            self._state = _State.ENDING

    def _cpu_time(self) -> float:
        """CPU seconds of the process; 0 if it has ended."""
        try:
            return 0.0 if self._pid is None else time.clock_gettime(~self._pid << 3 | _CPU_OF)
        except OSError:
            return 0.0

    # Reports of the fork server (through `ForkClient`, on the loop)

    def spawned(self, pid: int, pidfd: int) -> None:
        """The worker has started. The handle owns `pidfd` from now on."""
        self._pid, self._pidfd = pid, pidfd
        self._loop.add_reader(pidfd, self._on_death)
        if self._state is _State.ENDING:
            _kill(pidfd)
        elif self._cores:
            self._move(pid, self._cores)

    def not_spawned(self, detail: str) -> None:
        """The worker could not be started."""
        self._failure = self._failure or detail
        self._close()

    def exited(self, status: int) -> None:
        """The worker ended with this exit status, or minus the signal that killed it."""
        self._status = status
        if self._state is _State.DEAD:
            self._close()

    # Messages of the worker

    def _receive(self) -> bool:
        """Read once and handle the frames; False if there was nothing to read.

        If the stream has ended or makes no sense, the worker is killed.
        """
        try:
            data = self._control.recv(_RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for kind, body in self._reader.feed(data):
                if self._copy is None:
                    self._on_frame(kind, body)
                else:
                    self._backlog.append((kind, body))
        except ProtocolError as error:
            self._give_up(error)
            return False
        if not data:
            self._stop_listening()
        return bool(data)

    def _give_up(self, error: ProtocolError) -> None:
        self._failure = f"the worker sent an invalid message: {error}"
        self._permanent = self._out_of_memory = False
        self._stop_listening()

    def _stop_listening(self) -> None:
        self._listening = False
        self._loop.remove_reader(self._control)
        self._end()

    def _on_frame(self, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.FINISHED:
            self._on_finished(body)
        elif kind is FrameKind.FAULTS:
            self._faults = decode_faults(body, self._member_count)[1]
        elif kind is FrameKind.ROWS:
            self._tell(RowsMismatch(*decode_text(body)))
        elif kind is FrameKind.DAMAGED:
            self._tell(decode_damaged(body))
        elif kind is FrameKind.FAILED:
            self._tell(BatchFailed(*decode_text(body)))
        elif kind is FrameKind.ABORTED:
            self._tell(BatchAborted(*decode_aborted(body)))
        elif kind is FrameKind.RELEASED:
            self._on_released(body)
        elif kind is FrameKind.ARRANGED:
            self._tell(decode_arranged(body))
        elif kind is FrameKind.FEATURES:
            self._tell(decode_features(body))
        elif kind is FrameKind.REMEMBERED:
            batch, contents = decode_remembered(body)
            if max(contents, default=0) >= self._member_count:
                raise ProtocolError(f"members {[*contents]} remembered, of {self._member_count}")
            self._tell(RowsKept(batch, contents))
        elif kind is FrameKind.READY:
            if self._state is _State.STARTING:
                self._state = _State.UP
            opened = decode_ready(body)
            self._output_count = len(opened.interface.outputs)
            if not self._silent:
                self._report(ReplicaUp(self._id), opened=opened)
        elif kind is FrameKind.BROKEN:
            number, self._failure = decode_text(body)
            self._permanent, self._out_of_memory = number == 1, number == 2
            self._end()  # unless it has ended already
        else:
            raise ProtocolError(f"{kind.name} from a worker")

    def _on_finished(self, body: bytes) -> None:
        message = decode_finished(body)
        counts = (len(message.outputs), message.members)
        expected = (self._output_count, self._member_count - len(self._released_places))
        if counts != expected:
            raise ProtocolError(f"expected {expected} outputs and members, got {counts}")
        self._take_outputs(message)

    def _on_released(self, body: bytes) -> None:
        message = decode_released(body, self._member_count)
        count, expected = len(message.outputs), self._output_count
        if count != expected or not self._released_places.isdisjoint(message.members):
            raise ProtocolError(
                f"expected {expected} outputs and no member twice, got {count} outputs"
            )
        self._released_places.update(message.members)
        self._take_outputs(message)

    def _take_outputs(self, message: FinishedMessage | ReleasedMessage) -> None:
        """Copy outputs and report them, over several turns of the loop if they are long. The worker
        does not overwrite them before they are reported."""
        if self._outputs.is_long(message):
            self._copy = self._outputs.take_in_steps(message)
            self._loop.call_soon(self._continue_copy, message)
        else:
            self._report_outputs(message, self._outputs.take(message))

    def _report_outputs(
        self, message: FinishedMessage | ReleasedMessage, outputs: list[Outputs]
    ) -> None:
        if isinstance(message, ReleasedMessage):
            places = tuple(message.members)
            self._tell(MembersReleased(message.batch, places, message.ramp), outputs)
            return
        if released := self._released_places:
            remaining = iter(outputs)
            nothing: Outputs = ()
            members = range(self._member_count)
            outputs = [nothing if place in released else next(remaining) for place in members]
        faults, self._faults = self._faults, NO_FAULTS
        self._tell(BatchFinished(message.batch, message.timing, message.exits), outputs, faults)

    def _continue_copy(self, message: FinishedMessage | ReleasedMessage) -> None:
        copy = self._copy
        assert copy is not None
        try:
            if not self._silent:  # else nobody waits for the outputs
                next(copy)
                self._loop.call_soon(self._continue_copy, message)
                return
            self._copy = None
        except StopIteration as stop:
            self._copy = None
            self._report_outputs(message, stop.value)
        try:
            while self._backlog and self._copy is None:
                self._on_frame(*self._backlog.popleft())
        except ProtocolError as error:
            self._give_up(error)
        if self._end_pending:
            self._close()

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
        if self._send_buffer:
            self._send_buffer += data
            return
        try:
            sent = self._control.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # dead; ReplicaLost follows
            return
        if sent < len(data):
            self._send_buffer = data[sent:]
            self._loop.add_writer(self._control, self._flush)

    def _flush(self) -> None:
        self._loop.remove_writer(self._control)
        data, self._send_buffer = self._send_buffer, b""
        self._send(data)

    def _move(self, pid: int, cores: tuple[int, ...]) -> None:
        with contextlib.suppress(ProcessLookupError):  # ReplicaLost follows
            self._allocator.grant(pid, cores, partial(self._on_grant, self._resizes))

    def _on_grant(self, number: int, grant: Grant) -> None:
        """The allocator has carried out the resize with this number."""
        if number == self._resizes and self._state is not _State.DEAD:
            self._send(encode_number(FrameKind.CORES, max(1, ceil(grant.amount - 1e-6))))
            # The cores of the start need no report unless they differ from the requested ones.
            if number or self._lacks_cores or grant.detail:
                self._lacks_cores = bool(grant.detail)
                report = Resized(grant.cores, grant.detail)
                self._loop.call_soon(self._report_resize, number, report)

    def _report_resize(self, number: int, report: Resized) -> None:
        """Report a resize, unless another one has begun. Never called from inside `resize`."""
        if number == self._resizes and self._state in (_State.STARTING, _State.UP):
            self._tell(report)

    # The end

    def _on_death(self) -> None:
        """The pidfd is readable: the process is dead."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        while self._listening and self._receive():
            pass  # messages sent before its death count
        self._state = _State.DEAD
        if self._timer is not None:
            self._timer.cancel()
        if self._status is not None or self._failure or self._silent:
            self._close()
        else:
            self._timer = call_later(self._loop, _STATUS_WAIT, self._close)

    def _close(self) -> None:
        """Close everything and report the loss, once."""
        if self._control.fileno() < 0:
            return
        self._state = _State.DEAD
        if self._copy is not None:
            self._end_pending = True
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
        detail = self._failure or _cause(self._status)
        limit, breached = self._memory_limit, self._out_of_memory
        if limit is not None and self._pid is not None:
            breached = release_memory(self._pid) or breached
            if breached:
                detail = f"out of memory: a worker may use at most {limit >> 20} MiB"
        if not self._silent:
            permanent = self._permanent and not breached
            lost = ReplicaLost(self._id, detail, permanent, self._was_computing)
            self._report(lost, out_of_memory=breached)
        self._ended(self)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _cause(status: int | None) -> str:
    if status is None:
        return "the worker process ended"
    if status < 0:
        return f"the worker process was killed by signal {-status}"
    return f"the worker process exited with status {status}"
