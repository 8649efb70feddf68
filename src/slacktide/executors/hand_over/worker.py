"""The worker: one process, one model, one batch at a time.

The fork server forks it. It has a lower priority than the server's loop, is killed first when
memory is short, and ends when the server's socket closes or its parent dies. Only workers and the
in-process executor open model files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from slacktide.domain import BatchTiming, ExitPolicy, ExitReport
from slacktide.executors.arranging import Arranger
from slacktide.executors.cgroups import limit_memory
from slacktide.executors.crop_frames import Crops, decode_attach, decode_crops, with_crops
from slacktide.executors.crops import FrameArenas
from slacktide.executors.exit_frames import (
    ReleasedMessage,
    decode_exits,
    decode_remembered,
    encode_arranged,
    encode_features,
    encode_released,
    encode_remembered,
)
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.hand_over.arena import map_read_only
from slacktide.executors.hand_over.output_file import OutputWriter
from slacktide.executors.hand_over.protocol import (
    FinishedMessage,
    FrameKind,
    FrameReader,
    decode_batch,
    decode_number,
    encode_aborted,
    encode_damaged,
    encode_faults,
    encode_finished,
    encode_ready,
    encode_text,
)
from slacktide.executors.hand_over.tensor_io import RowCountError
from slacktide.executors.idle_features import IdleFeatures
from slacktide.executors.kept_cores import keep_cores
from slacktide.executors.onnx_runtime import (
    Fault,
    ModelError,
    client_detail,
    fault_of,
)
from slacktide.executors.openvino_session import load_openvino
from slacktide.executors.ports import BatchOrder
from slacktide.executors.remembering import RowMemory
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import SessionPool
from slacktide.executors.spawning import SpawnRequest
from slacktide.executors.staged import StageChain, StagedBatch

NICENESS = 5
"""Niceness added, so that the loop stays prompt while every core computes."""
FIRST_RUN_S = 60.0
"""Maximum seconds of a row's first run. Slower models are useless to a server with deadlines."""
_SLICE_NS = 1_000_000  # of CPU time; the kernel's default is 0.7 to 2.8 ms, by the number of cores
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, for which Python and older C libraries have no function."""
_OOM_SCORE_ADJ = 500  # of 1000: killed before the server, but after expendable processes
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_RECEIVE = 1 << 16


def run_worker(request: SpawnRequest, descriptors: list[int], parent: int) -> int:
    """Run as a worker until the server ends it. Returns the exit status.

    `descriptors` are the control socket, the socket of aborts, the input arena and the output file.
    `parent` is the fork server's process id.
    """
    _become_worker(parent)
    control_fd, abort_fd, inputs_fd, outputs_fd = descriptors
    control = socket.socket(fileno=control_fd)
    aborts = socket.socket(fileno=abort_fd)
    limit = request.source.worker_memory
    # The kernel enforces a control group's limit. Under RLIMIT_DATA, allocations fail instead.
    confined = limit is not None and not limit_memory(limit) and request.device == "cpu"
    try:
        if request.source.backend == "openvino":
            load_openvino()
            keep_cores()
        pool = SessionPool.open(
            request.source,
            cores=len(request.cores),
            device=request.device,
            first_run=_first_run(request, control),
        )
    except ModelError as error:
        control.sendall(encode_text(FrameKind.BROKEN, 1, str(error)))
        return 0
    except Exception as error:  # out of memory, a disk error: another try may succeed
        detail = client_detail(error, request.source.path, request.source.root)
        breach = confined and fault_of(error) is Fault.MEMORY
        control.sendall(encode_text(FrameKind.BROKEN, 2 if breach else 0, detail))
        return 1
    session = pool.session
    arena, outputs = map_read_only(inputs_fd), OutputWriter(outputs_fd)
    arranger = Arranger(
        session,
        [size.threads for size in pool.sizes],
        lambda arranged: control.sendall(encode_arranged(arranged)),
    )
    runner = BatchRunner(
        session,
        arena,
        outputs,
        control.sendall,
        lambda: arranger.thresholds,
        arranger.samples,
        IdleFeatures(arranger.turn, control.sendall),
        confined=confined,
    )
    threading.Thread(
        target=_watch_aborts,
        args=(aborts, runner.abort, runner.frames),
        name="aborts",
        daemon=True,
    ).start()
    with contextlib.suppress(ConnectionError):  # the server has ended
        control.sendall(encode_ready(pool.opened()))
        _serve(control, runner, pool.use, arranger.publish, arranger.turn)
    return 0


def _first_run(
    request: SpawnRequest, control: socket.socket, limit_s: float = FIRST_RUN_S
) -> AbstractContextManager[object] | None:
    """A context that ends this process if the block takes too long; None if a provider may first
    compile the model, which takes minutes."""
    if request.device != "cpu" or request.source.providers:
        return None

    def give_up() -> None:
        detail = f"its first run, of one row, took more than {limit_s:g} s"
        control.sendall(encode_text(FrameKind.BROKEN, 1, detail))
        os._exit(0)

    @contextlib.contextmanager
    def bounded() -> Iterator[None]:
        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    return bounded()


def _serve(
    control: socket.socket,
    runner: BatchRunner,
    use_cores: Callable[[int], None],
    publish: Callable[[ExitPolicy], None],
    turn: AbstractContextManager[object],
) -> None:
    """Run batches until STOP, or until the server's end closes. `turn` is held during a batch.

    The server itself moves this process between cores. CORES, which arrives in order with the
    batches, only gives the number of cores for the next batch.
    """
    reader = FrameReader()
    while data := control.recv(_RECEIVE):
        for kind, body in reader.feed(data):
            if kind is FrameKind.STOP:
                return
            if kind is FrameKind.BATCH:
                with turn:
                    control.sendall(runner.execute(body))
            if kind is FrameKind.CORES:
                with turn:
                    use_cores(decode_number(body))
            if kind is FrameKind.EXITS:
                publish(decode_exits(body))
            if kind is FrameKind.CROPS:
                runner.crops = decode_crops(body)
            if kind is FrameKind.REMEMBERED:
                runner.remembered = decode_remembered(body)


class BatchRunner:
    """Runs BATCH bodies and reports their results as frames.

    `abort` is called from another thread. ONNX Runtime checks the terminate flag of a run's options
    between nodes, so an abort takes effect within one node.
    """

    def __init__(
        self,
        session: ModelSession,
        arena: memoryview,
        outputs: OutputWriter,
        send: Callable[[bytes], object],
        thresholds: Callable[[], Mapping[int, float]] = dict,
        samples: Callable[[int], bool] = lambda batch: False,
        idle_features: IdleFeatures | None = None,
        *,
        confined: bool = False,
    ) -> None:
        """`send` takes frames that precede a batch's end. `thresholds` gives the ramps' thresholds
        by position. `samples` says whether to report features of a batch; `idle_features` reports
        them later, if there is time. `confined`: whether a
        failed allocation means that the memory limit is exceeded, and ends the worker."""
        self._send = send
        self._thresholds = thresholds
        self._samples = samples
        self._idle_features = idle_features
        self._staged: StagedBatch | None = None
        """The current or last batch."""
        self._confined = confined
        self._session = session
        self._arena = arena
        self._outputs = outputs
        self._new_options = session.opener.run_options
        self._lock = threading.Lock()
        self._running: int | None = None
        self._options: Any = None
        self._aborted: int | None = None
        """The batch of the last abort."""
        self.frames = FrameArenas()
        self.crops: dict[int, Crops] = {}
        """Crops for the next batch, by the place of the member."""
        self.remembered: tuple[int, dict[int, bytes]] = (0, {})
        """For the next batch: whether it refreshes remembered rows, and the content of these rows
        by the place of the member."""

    def execute(self, body: bytes) -> bytes:
        """Run one batch. Returns the frames that end it: FINISHED, perhaps after FAULTS or DAMAGED;
        FAILED; ABORTED; or BROKEN if the device failed."""
        cpu = time.process_time(), time.thread_time()
        order = decode_batch(body)
        batch = order.batch
        if self.crops:
            self._session.read_frames(self.frames)
            order, self.crops = with_crops(order, self.crops), {}
        options = self._new_options()
        with self._lock:
            if self._aborted == batch:  # the abort overtook its batch
                return encode_aborted(batch, None)
            self._running, self._options = batch, options
        self._staged, stages = None, self._session.stages
        refreshes, contents = self.remembered
        self.remembered = 0, {}
        try:
            if stages is None:
                return self._run(order, options, cpu)
            memory = RowMemory(contents, refreshes=bool(refreshes)) if stages.remembers else None
            return self._run_stages(stages, order, options, cpu, memory)
        except Exception as error:  # whatever a model may raise; the worker continues
            if self._aborted == batch and "terminate" in str(error).lower():
                return encode_aborted(batch, self._report())
            detail = self._session.detail(error)
            fault = self._session.fault(error)
            if isinstance(error, RowCountError):
                self._send(encode_text(FrameKind.ROWS, batch, detail))
            if fault is Fault.DEVICE:
                return encode_text(FrameKind.BROKEN, 0, detail)  # the server kills the worker
            if fault is Fault.MEMORY and self._confined:
                return encode_text(FrameKind.BROKEN, 2, detail)
            return encode_text(FrameKind.FAILED, batch, detail)
        finally:
            with self._lock:
                self._running = self._options = None

    def _run(self, order: BatchOrder, options: Any, cpu: tuple[float, float]) -> bytes:
        session = self._session
        result = session.run(order.members, self._arena, options, order.size)
        inputs = result.inputs
        if result.mismatch:
            self._send(encode_text(FrameKind.ROWS, order.batch, result.mismatch))
        begin = time.perf_counter()
        runs = self._outputs.write(result.arrays, result.rows, session.interface, inputs.lengths)
        output_s = time.perf_counter() - begin
        timing = _timing(inputs.input_s, result.infer_s, output_s, cpu)
        file_bytes = self._outputs.file_bytes
        message = FinishedMessage(order.batch, timing, file_bytes, len(order.members), runs)
        return _with_notes(encode_finished(message), order.batch, inputs)

    def _run_stages(
        self,
        model: StageChain,
        order: BatchOrder,
        options: Any,
        cpu: tuple[float, float],
        memory: RowMemory | None = None,
    ) -> bytes:
        session, outputs, batch = self._session, self._outputs, order.batch
        gathered = session.gather(order.members, self._arena, order.size)
        stages, idle = model.stages(session.threads), self._idle_features
        thresholds, sampled = self._thresholds(), self._samples(batch)
        later = sampled and idle is not None and idle.has_room()
        run = StagedBatch(
            *(model, gathered, thresholds, order.leaving, order.final),
            sampled=sampled and not later,
            memory=memory,
        )
        self._staged = run
        output_s, end = 0.0, 0
        for released in run.run(stages, options):
            begin = time.perf_counter()
            rows = [run.rows[place] for place in released.places]
            arrays = session.decode(released.arrays, gathered, released.rows)
            runs = outputs.write(arrays, rows, session.interface, at=end)
            end = outputs.end
            ramp, places = released.ramp, released.places
            message = ReleasedMessage(batch, ramp, outputs.file_bytes, places, runs)
            self._send(encode_released(message))
            output_s += time.perf_counter() - begin
        begin = time.perf_counter()
        unanswered = [place for place in range(len(run.rows)) if place not in run.released]
        runs = [[] for _ in session.interface.outputs]
        if run.finished:
            end_arrays, end_rows = run.end_outputs()
            arrays = session.decode(end_arrays, gathered, end_rows)
            session.check(arrays, len(end_rows), gathered.lengths)
            if unanswered:
                lengths = gathered.lengths
                if lengths is not None:
                    by_member = [lengths.by_member[place] for place in unanswered]
                    lengths = lengths._replace(by_member=by_member)
                rows = [run.rows[place] for place in unanswered]
                arrays = run.unanswered(arrays)
                runs = outputs.write(arrays, rows, session.interface, lengths, at=end)
        done = time.perf_counter()
        output_s += done - begin
        infer_s = done - gathered.begin - gathered.input_s - output_s
        timing = _timing(gathered.input_s, infer_s, output_s, cpu)
        frames = encode_finished(
            FinishedMessage(batch, timing, outputs.file_bytes, len(unanswered), runs, run.report())
        )
        if contents := run.to_remember():
            frames = encode_remembered(batch, contents) + frames
        frames = _with_notes(frames, batch, gathered)
        if (features := run.features()) is not None:
            frames += encode_features(features)
        if idle is not None and run.is_whole:
            idle.passed(infer_s)
            if later:
                idle.add(model, stages, gathered, memory)
        return frames

    def _report(self) -> ExitReport | None:
        return None if self._staged is None else self._staged.report()

    def abort(self, batch: int) -> None:
        """Stop this batch if it runs, or as soon as it begins."""
        with self._lock:
            self._aborted = batch
            if self._running == batch:
                self._options.terminate = True


def _timing(
    input_s: float, infer_s: float, output_s: float, cpu: tuple[float, float]
) -> BatchTiming:
    """The timing of a batch that began at these CPU times of the process and of the thread."""
    cpu_s, thread_s = time.process_time() - cpu[0], time.thread_time() - cpu[1]
    return BatchTiming(input_s, infer_s, output_s, cpu_s, thread_s)


def _with_notes(finished: bytes, batch: int, inputs: GatheredBatch) -> bytes:
    """FINISHED, with FAULTS and DAMAGED in front if the inputs have any."""
    if inputs.damaged:
        finished = encode_damaged(batch, inputs.damaged) + finished
    return encode_faults(batch, inputs.faults) + finished if inputs.faults else finished


def _watch_aborts(aside: socket.socket, abort: Callable[[int], None], frames: FrameArenas) -> None:
    """Handle aborts and frame arenas, which arrive on a socket of their own."""
    reader = FrameReader()
    descriptors: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            data, received, _, _ = socket.recv_fds(aside, _RECEIVE, 8, socket.MSG_CMSG_CLOEXEC)
            if not data:
                return
            descriptors += received
            for kind, body in reader.feed(data):
                if kind is FrameKind.ABORT:
                    abort(decode_number(body))
                elif kind is FrameKind.ATTACH:
                    number, glue = decode_attach(body)
                    frames.attach(number, map_read_only(descriptors[0]), glue)
                    os.close(descriptors.pop(0))
                elif kind is FrameKind.DETACH:
                    frames.detach(decode_number(body))


def _become_worker(parent: int) -> None:
    """Set this process's signals, niceness and time slice, and when it is killed if memory is
    short."""
    die_with_parent(parent)
    ignore_terminal_signals()
    os.nice(NICENESS)
    if (number := _SCHED_SETATTR.get(os.uname().machine)) is not None:
        # With this slice a woken worker runs sooner beside a busy program of another session or
        # container, and has the same share of time (decision 0012). No effect before Linux 6.12.
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, os.nice(0), 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJ))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. Exit if it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ignore_terminal_signals() -> None:
    """Ignore SIGINT and SIGTERM, which often reach a whole group: the server decides to drain."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
