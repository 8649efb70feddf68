"""`ModelSession`: an open model, which runs members of a batch.

Workers and the in-process executor use it. It is independent of sockets and processes. A model may
be open in several sessions with different numbers of threads, of which one is in use at a time.
They share the buffers in which batches are gathered (`gathering.py`). `model_opening.py` opens the
model, `warm_up.py` warms it up, and `model_runner.py` runs arrays.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray

from slacktide.domain.tensors import ModelInterface
from slacktide.executors.crops import FrameArenas
from slacktide.executors.functions import expanded_rows
from slacktide.executors.gathering import BatchGatherer, GatheredBatch
from slacktide.executors.hand_over.tensor_io import (
    MemberLengths,
    RowCountError,
)
from slacktide.executors.model_opening import open_model
from slacktide.executors.model_runner import ModelRunner
from slacktide.executors.onnx_runtime import Fault
from slacktide.executors.ports import (
    ModelSource,
    OpenedModel,
    Payload,
    RowShapes,
)
from slacktide.executors.session_opener import SessionOpener
from slacktide.executors.staged import StageChain
from slacktide.executors.warm_up import WarmUp


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of the model."""

    inputs: GatheredBatch
    arrays: list[NDArray[Any]]
    """An array for each output."""
    rows: Sequence[int]
    """Number of rows of each member's outputs."""
    infer_s: float
    """Seconds in ONNX Runtime."""
    mismatch: str = ""
    """How the number of a single member's output rows is wrong; empty if it is right."""


class ModelSession:
    """One open model. Make it with `ModelSession.open`; runs one batch at a time."""

    def __init__(self, runner: ModelRunner, threads: int) -> None:
        self._runner = runner
        self._sessions = {threads: runner.session}
        self._threads = threads
        self.stages: StageChain | None = None
        """The model cut into stages, through which batches then run. The whole model is closed in
        that case, because both would take twice the memory."""
        self._outputs = [spec.name for spec in runner.interface.outputs]
        self._gatherer = BatchGatherer(runner)

    @classmethod
    def open(
        cls, source: ModelSource, *, threads: int, device: str = "cpu", shared_arena: bool = False
    ) -> ModelSession:
        """Open a model with this many threads, which never spin.

        Threads inherit the affinity of the calling thread. With `shared_arena` all sessions of the
        process compute in one arena (see `session_pool`). Raises ModelError if no attempt can ever
        succeed: a bad file, an unknown type, no batch axis where one is configured.
        """
        return cls(open_model(source, threads, device, shared_arena), threads)

    @property
    def opener(self) -> SessionOpener:
        return self._runner.opener

    @property
    def interface(self) -> ModelInterface:
        """Inputs, outputs and batch limit as clients see them. Final after `warm_up`."""
        return self._runner.interface

    @property
    def row_shapes(self) -> RowShapes:
        """Shapes of a row that has run, or of the last attempt if none has."""
        return self._runner.row_shapes

    @property
    def runner(self) -> ModelRunner:
        """Runs arrays through the model's file, without members."""
        return self._runner

    @property
    def cold(self) -> str:
        """Why no synthetic row runs; empty if one does."""
        return self._runner.cold

    @property
    def note(self) -> str:
        """A warning for the log."""
        return self._runner.note

    def add(self, threads: int) -> None:
        """Open, warm up and use a further session with this many threads.

        If this raises (any error of `open` or `warm_up`), the earlier session stays in use.
        """
        runner = self._runner
        before, interface = runner.session, runner.interface
        try:
            runner.session = self.opener.open(threads)
            self.warm_up()
            if runner.interface != interface:
                raise MemoryError  # fewer rows fit than in the other sessions
        except BaseException:
            runner.session, runner.interface = before, interface
            raise
        self._sessions[threads] = runner.session
        self._threads = threads

    def use(self, threads: int) -> None:
        """Run batches in the session with this many threads. Raises KeyError if there is none."""
        if self.stages is None:
            self._runner.session = self._sessions[threads]
        self._threads = threads

    @property
    def threads(self) -> int:
        """Threads of the session in use."""
        return self._threads

    @property
    def whole(self) -> Any:
        """The session in use; None if the model is cut into stages."""
        return self._runner.session

    def place(self, stages: StageChain | None, whole: Mapping[int, Any]) -> None:
        """Run later batches through `stages`, or else in the sessions `whole`, by number of
        threads. Closes the stages or sessions that batches used until now."""
        self.stages = stages
        self._sessions = dict(whole)
        self._runner.session = self._sessions.get(self._threads)

    def warm_up(self, first_run: AbstractContextManager[object] | None = None) -> None:
        """Run every batch size 1, 2, 4, … up to the largest, with synthetic inputs, as far as the
        source's `warm_up_s` allows. The context `first_run` surrounds the first run of a single
        row.

        This also proves the batch axis. If a batch of several rows fails, a configured max_batch is
        wrong (ModelError); without one, the model counts as having no batch axis. If memory runs
        out, the last size that fitted becomes the largest. If not even one row fits in memory, or
        if the device fails, that error is raised. Free axes that are not configured get the first
        sizes of `candidate_rows` that run. A model that refuses every synthetic row is left `cold`,
        but its own samples must run (ModelError). If axes are padded, the declared lengths run as
        well, and the padded outputs are checked.
        """
        with ExitStack() as first:
            if first_run is not None:
                first.enter_context(first_run)
            WarmUp(self._runner).run(first)
        self._gatherer.warmed_up()

    def read_frames(self, frames: FrameArenas) -> None:
        """Accept members that are crops of these frames."""
        self._gatherer.read_frames(frames)

    def gather(self, members: Sequence[Payload], arena: memoryview, size: int = 0) -> GatheredBatch:
        """The inputs of `members` as one batch, valid until the next call. Arguments as in `run`.

        Raises TensorError if the members cannot form a batch of this model.
        """
        return self._gatherer.gather(members, arena, size)

    def run(
        self, members: Sequence[Payload], arena: memoryview, run_options: Any = None, size: int = 0
    ) -> RunResult:
        """Run `members`, whose tensors lie in `arena`, as one batch. Images are resized to a square
        of side `size` (0: to the size that the model fixes, or not at all).

        Raises TensorError if the members cannot form a batch of this model, RowCountError if
        outputs lack one row per input row (a single member still gets the model's answer), and
        whatever ONNX Runtime raises.
        """
        batch = self.gather(members, arena, size)
        begin = time.perf_counter()
        arrays = self._runner.infer(batch.feeds, run_options, batch.placements)
        done = time.perf_counter()
        mismatch, rows = "", batch.rows
        if self._runner.expands:
            arrays[-1], rows = expanded_rows(arrays[-1], rows)
        try:
            self.check(arrays, sum(rows), batch.lengths)
        except RowCountError as error:
            if len(members) > 1:
                raise
            mismatch = str(error)
        return RunResult(batch, arrays, rows, done - begin, mismatch)

    def decode(
        self, arrays: Sequence[NDArray[Any] | None], batch: GatheredBatch, rows: Sequence[int]
    ) -> list[Any]:
        """The answers to these rows of a batch that runs through `stages`. `arrays`: their rows of
        each output of the file; None for an output that an exit does not make."""
        placements = [batch.placements[row] for row in rows] if batch.placements else ()
        present = cast(list[NDArray[Any]], list(arrays))  # the decoder reads no other
        return self._runner.decode(present, batch.feeds, placements, len(rows))

    def check(
        self, arrays: Sequence[NDArray[Any]], rows: int, lengths: MemberLengths | None
    ) -> None:
        """Raise TensorError unless outputs have this many rows and the padded length."""
        self._runner.check_rows(arrays, rows)
        if lengths is not None:
            lengths.check(arrays, self._outputs)

    def opened(self) -> OpenedModel:
        """The model as a worker reports it, without the sessions of a pool."""
        runner = self._runner
        checks = (runner.row_shapes, runner.cold, runner.tolerance)
        detected_outputs = {} if runner.padding is None else runner.padding.detected_outputs
        return OpenedModel(
            runner.interface, (), runner.note, *checks, runner.labels, detected_outputs
        )

    def synthetic(self, rows: int) -> dict[str, NDArray[Any]]:
        """Synthetic inputs of the model's file with this many rows. Raises MemoryError if they
        would exceed a gibibyte."""
        return self._runner.synthetic(rows)

    def detail(self, error: BaseException) -> str:
        """The text of an error of `run` that clients may see."""
        return self._runner.detail(error)

    def fault(self, error: BaseException) -> Fault:
        """The cause of an error of a run."""
        return self._runner.fault(error)
