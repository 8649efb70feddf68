"""`ModelSession`: a model opened in ONNX Runtime, warmed up, fed with members of a batch.

Shared by the worker process and the in-process executor. Knows no socket and no process. It may be
open several times, with other numbers of threads; all share the buffers that batches are gathered
in, and one is used at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import Padding
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, image_input
from slacktide.executors.crops import CropGatherer, FrameArenas
from slacktide.executors.hand_over.tensor_io import (
    InputGatherer,
    LengthReader,
    MemberLengths,
    PaddedGatherer,
    RowCountError,
    TensorError,
)
from slacktide.executors.images import ImageGatherer
from slacktide.executors.jpeg_decoder import DAMAGED, decodes_jpeg, load_decoder
from slacktide.executors.onnx_file import OnnxFile, session_interface
from slacktide.executors.onnx_runtime import (
    CPU,
    Fault,
    ModelError,
    ProviderMissingError,
    check_number,
    choose_providers,
    client_detail,
    fault_of,
    from_value,
    load_onnxruntime,
    to_value,
)
from slacktide.executors.pictures import load_opencv
from slacktide.executors.ports import (
    NO_FAULTS,
    CropPayload,
    MemberFault,
    ModelSource,
    OpenedModel,
    Payload,
    RowShapes,
)
from slacktide.executors.rounding import TOLERANCE, tolerance_of
from slacktide.executors.row_candidates import candidate_rows
from slacktide.executors.session_opener import SessionOpener
from slacktide.executors.staged import StageChain
from slacktide.executors.synthetic_inputs import (
    MOST_ROW_BYTES,
    SyntheticRows,
    closed_shapes,
    row_bytes,
)

_SEED = 20250  # of the warm-up's inputs: any will do, as long as it is the same every time


class GatheredBatch(NamedTuple):
    """The inputs of a batch."""

    feeds: dict[str, NDArray[Any]]
    rows: list[int]
    """Of each member."""
    lengths: MemberLengths | None
    """Of each member, where they differ: the outputs are to be cut."""
    faults: Mapping[int, MemberFault]
    """Members that have no rows, by their place, and why; their outputs mean nothing."""
    began: float
    """When gathering began, by `time.perf_counter`."""
    input_s: float
    damaged: int = 0
    """Pictures that were decoded although they may be damaged."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run: an array for each output, and where the time went (seconds)."""

    arrays: list[NDArray[Any]]
    rows: list[int]
    """Of each member."""
    lengths: MemberLengths | None
    """Of each member, where they differ: the outputs are to be cut."""
    input_s: float
    infer_s: float
    faults: Mapping[int, MemberFault]
    """Members that have no rows, by their place, and why; their outputs mean nothing."""
    mismatch: str = ""
    """Which output has another number of rows than the only member, if any."""
    damaged: int = 0
    """Pictures that were decoded although they may be damaged."""


class ModelSession:
    """One open model. Make it with `ModelSession.open`; runs one batch at a time."""

    def __init__(
        self, opener: SessionOpener, threads: int, interface: ModelInterface, session: Any
    ) -> None:
        self.opener = opener
        self._sessions = {threads: session}
        self._session = session
        self._threads = threads
        self.stages: StageChain | None = None
        """The model cut into stages, which batches run through in its place. Then it is not open as
        a whole: two would be twice the memory."""
        source = opener.source
        self._outputs = [spec.name for spec in interface.outputs]
        padding = None if source.padding is None else source.padding.fitting(interface)
        self._padding = padding
        self._gatherers: list[InputGatherer | PaddedGatherer | ImageGatherer]
        self._gatherers = [_gatherer(spec, padding) for spec in interface.inputs]
        self._images: ImageGatherer | None = None
        index = image_input(interface)
        if index is not None and isinstance(self._gatherers[index], InputGatherer):
            spec = interface.inputs[index]
            if (
                source.image_sizes and spec.shape[1] < 0
            ):  # full batches of the largest show what memory holds
                largest = max(source.image_sizes)
                shapes = {**source.warmup_shapes, spec.name: (largest, largest, 3)}
                source = replace(source, warmup_shapes=shapes)
            stated = closed_shapes(source).get(spec.name)
            self._gatherers[index] = self._images = ImageGatherer(spec, stated)
        self._source = source
        self._lengths = None if padding is None else LengthReader(padding, interface)
        self._crops: CropGatherer | None = None
        # NumPy has no bfloat16, and ONNX Runtime's own values are slower for all the rest.
        self._by_value = any(
            spec.datatype is Datatype.BF16 for spec in (*interface.inputs, *interface.outputs)
        )
        self.interface = interface
        """What the model takes and gives; settled once `warm_up` has run."""
        self.row_shapes: RowShapes = {}
        """Shapes of a row that has run, by input; of the last that was tried where none does."""
        self.cold = ""
        """Why no row of synthetic inputs runs; empty if one does."""
        self.tolerance = TOLERANCE
        self._rows: SyntheticRows | None = None
        self._warm = False  # whether a row of synthetic inputs has run

    @classmethod
    def open(
        cls, source: ModelSource, *, threads: int, device: str = "cpu", shared_arena: bool = False
    ) -> ModelSession:
        """Open a model with this many threads, which never spin.

        Threads inherit the affinity of the calling thread. With `shared_arena` all sessions take
        memory for what they compute from one arena of the process (see `session_pool`). Raises
        ModelError if no attempt can ever succeed (a bad file, an unknown type, no batch axis where
        one is stated).
        """
        if source.function is not None:
            opener = SessionOpener(source, ((CPU, {}),), False, shared_arena, ())
            function = opener.open(threads)
            return cls(opener, threads, function.interface, function)
        available = load_onnxruntime().get_available_providers()
        try:
            check_number(device)
            providers = choose_providers(source.providers, device, available)
        except ProviderMissingError as error:
            if not source.device_origin:
                raise
            cure = "state the CPU there, or install what is missing"
            raise ProviderMissingError(f"{error} ({source.device_origin}); {cure}") from None
        file = OnnxFile(source.path, source.root, source.outputs, source.own_exits)
        declared = file.shapes
        free = any(shape is None or -1 in shape[1:] for shape in declared.values())
        sizes = file.image_sizes()
        opener = SessionOpener(
            source, providers, free, shared_arena, sizes, file.content, file.opened
        )
        session = opener.open(threads)
        interface = session_interface(session, declared, source.max_batch)
        opened = cls(opener, threads, interface, session)
        opened.tolerance = tolerance_of(file.model, accelerated=len(providers) > 1)
        return opened

    def add(self, threads: int) -> None:
        """Open the model once more, with so many threads, and warm it up; it is in use then.

        Raises as `open` and `warm_up`; then the session used before is in use again.
        """
        before, interface = self._session, self.interface
        try:
            self._session = self.opener.open(threads)
            self.warm_up()
            if self.interface != interface:
                raise MemoryError  # fewer rows fit than in the others
        except BaseException:
            self._session, self.interface = before, interface
            raise
        self._sessions[threads] = self._session
        self._threads = threads

    def use(self, threads: int) -> None:
        """Have batches run in the session opened with so many threads; KeyError if none was."""
        if self.stages is None:
            self._session = self._sessions[threads]
        self._threads = threads

    @property
    def threads(self) -> int:
        """Of the session that is in use."""
        return self._threads

    @property
    def whole(self) -> Any:
        """The session in use; None where the model is cut into stages."""
        return self._session

    def place(self, stages: StageChain | None, whole: Mapping[int, Any]) -> None:
        """Have the batches that follow run through `stages`, or in `whole`: sessions by number of
        threads, as they were opened before. What they ran in until now is closed."""
        self.stages = stages
        self._sessions = dict(whole)
        self._session = self._sessions.get(self._threads)

    def warm_up(self, first_run: AbstractContextManager[object] | None = None) -> None:
        """Run every batch size 1, 2, 4, … up to the greatest, with synthetic inputs; a row by
        itself, the first time, within `first_run`.

        Also proves the batch axis. If a larger batch than one row fails, a stated max_batch was
        false (ModelError), and one that was read off the model is taken back: no batch axis. Where
        memory falls short, the last size that fitted is the greatest. What is raised where not even
        one row fits, or where the device fails, is raised again. Where nothing states free axes,
        `candidate_rows` are tried. Inputs are made up, so a model that refuses even one row of them
        is left `cold`; but samples of its own must run (ModelError). Where axes are padded, the
        declared lengths are run as well, and the padded outputs are proved.
        """
        with ExitStack() as first:
            if first_run is not None:
                first.enter_context(first_run)
            self._warm_up(first)

    def _warm_up(self, first: ExitStack) -> None:
        """See `warm_up`; `first` is closed once a row has run."""
        if not self.row_shapes:
            self._find_row()
        limit = self.interface.max_batch
        sizes = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
        for rows in [*sizes, limit]:
            try:
                arrays = self._infer(self._synthetic(max(1, rows), self.row_shapes), None)
                first.close()
                self._check_rows(arrays, rows)
                self._warm = True
            except ModelError:
                raise
            except Exception as error:  # whatever a model may raise
                if self._fits_before(rows, error):
                    break
                false_axis = isinstance(error, TensorError)
                if not self.interface.batches or (rows == 1 and not false_axis):
                    self._leave_cold(error)
                    return
                if self._source.max_batch is not None:
                    detail = self.detail(error)
                    raise ModelError(
                        f"max_batch is {limit}, but a batch of {rows} fails: {detail}"
                    ) from None
                self.interface = replace(self.interface, max_batch=0)
                self._rows = None
                self.row_shapes = {name: (1, *row) for name, row in self.row_shapes.items()}
                if rows == 1:  # not one has run as it should
                    self.row_shapes = {}
                    self.warm_up()
                return
        if self._padding is not None:
            self._warm_up_lengths(self._padding)
        if self._images is not None:
            self._warm_up_images(self._images.name)

    def _warm_up_images(self, name: str) -> None:
        """Load what decodes, and run a row at each size that images are resized to. Raises
        ModelError."""
        load_opencv()
        if decodes_jpeg():
            load_decoder()
        for size in self._source.image_sizes:
            try:
                row = {**self.row_shapes, name: (size, size, 3)}
                self._check_rows(self._infer(self._synthetic(1, row), None), 1)
            except Exception as error:  # whatever a model may raise
                if self.fault(error) is not Fault.MODEL:
                    raise
                detail = self.detail(error)
                raise ModelError(f"a row of {size} × {size} pixels fails: {detail}") from None

    def _find_row(self) -> None:
        """Settle the shapes of a row: of the candidates, the first that runs."""
        rows = self._synthetic_rows()
        names: dict[str, list[str | None]] = {}
        for argument, spec in zip(self._session.get_inputs(), self.interface.inputs, strict=True):
            axes = [axis if isinstance(axis, str) else None for axis in argument.shape or ()]
            names[spec.name] = axes[1:] if self.interface.batches else axes or [None]
        sizes = self.opener.image_sizes
        self.row_shapes = rows.shapes()
        for shapes in candidate_rows(self.interface, rows.open_axes(), names, sizes):
            self.row_shapes = rows.shapes(shapes)
            try:
                self._infer(self._synthetic(1, self.row_shapes), None)
                return
            except Exception as error:  # whatever a model may raise
                if self.fault(error) is Fault.DEVICE:
                    raise

    def _leave_cold(self, error: Exception) -> None:
        self.cold = self.detail(error)
        if self._source.samples is not None or self._source.sample_rows:
            raise ModelError(f"samples: a row of them fails: {self.cold}")

    def _fits_before(self, rows: int, error: Exception) -> bool:
        """Whether `error` says that so many rows do not fit in memory; then the size below is the
        greatest. Raises it if one row does not fit, or the device failed."""
        fault = self.fault(error)
        if fault is Fault.DEVICE or (fault is Fault.MEMORY and rows <= 1):
            raise error
        if fault is Fault.MEMORY:
            most = 1 << ((rows - 1).bit_length() - 1)
            self.interface = replace(self.interface, max_batch=most)
        return fault is Fault.MEMORY

    def _warm_up_lengths(self, padding: Padding) -> None:
        """Run one row and a full batch of each declared length. Raises ModelError."""
        shapes = {}
        for length in padding.lengths:
            for rows in dict.fromkeys((self.interface.max_batch, 1)):
                try:
                    row = self._synthetic_rows().shapes(self.row_shapes, length)
                    arrays = self._infer(self._synthetic(rows, row), None)
                except Exception as error:  # whatever a model may raise
                    if self._fits_before(rows, error):
                        self._warm_up_lengths(padding)  # again, with fewer rows
                        return
                    detail = self.detail(error)
                    raise ModelError(
                        f"lengths names {length}, but {rows} rows of it fail: {detail}"
                    ) from None
            shapes[length] = [array.shape for array in arrays]
        if len(shapes) < 2:
            return
        (shorter, before), *_, (longer, after) = shapes.items()
        for name, less, more in zip(self._outputs, before, after, strict=True):
            axis = padding.outputs.get(name)
            if axis is not None:
                if (less[axis], more[axis]) != (shorter, longer):
                    raise ModelError(
                        f"outputs.{name}.pad: axis {axis} is {more[axis]} long for inputs of "
                        f"length {longer}: only an axis as long as the inputs can be padded"
                    )
            elif less != more and self._source.padding is not None:
                if name in self._source.padding.outputs:
                    continue  # declared, but wrongly: the check of the file says so
                raise ModelError(
                    f"output {name!r} grows with the padded inputs: state its axis as "
                    f"outputs.{name}.pad"
                )

    def read_frames(self, frames: FrameArenas) -> None:
        """Have batches from now on take members that are cut out of frames."""
        if self._crops is None:
            stated, plain = closed_shapes(self._source), self._gatherers
            self._crops = CropGatherer(frames, self.interface, plain, self._padding, stated)

    def gather(self, members: Sequence[Payload], arena: memoryview, size: int = 0) -> GatheredBatch:
        """The inputs of `members` as one batch; arguments as of `run`. Good until the next batch.

        Raises TensorError if the members are not a batch of this model.
        """
        begin, damaged = time.perf_counter(), DAMAGED.count
        rows = [member.rows for member in members]
        if len(members) > 1 and not self.interface.batches:
            raise TensorError("the model has no batch axis")
        crops = self._crops
        if crops is not None and CropPayload in map(type, members):
            array, members, wrong = crops.gather(members, arena, size)
            feeds = {self.interface.inputs[0].name: array}
            lengths = None if self._lengths is None else self._lengths.of(members)
            input_s, damaged = time.perf_counter() - begin, DAMAGED.count - damaged
            return GatheredBatch(feeds, rows, lengths, wrong, begin, input_s, damaged)
        images = self._images
        if images is not None:
            images.size = size
        feeds = {}
        for index, spec in enumerate(self.interface.inputs):
            tensors = [member.tensors[index] for member in members]
            array = self._gatherers[index].gather(tensors, arena)
            if self.interface.batches and array.shape[:1] != (sum(rows),):
                raise TensorError(f"input {spec.name!r} has not one row for each of the request's")
            feeds[spec.name] = array
        lengths = None if self._lengths is None else self._lengths.of(members)
        faults = NO_FAULTS if images is None else images.faults
        input_s, damaged = time.perf_counter() - begin, DAMAGED.count - damaged
        return GatheredBatch(feeds, rows, lengths, faults, begin, input_s, damaged)

    def run(
        self,
        members: Sequence[Payload],
        arena: memoryview,
        run_options: Any = None,
        size: int = 0,
    ) -> RunResult:
        """Run `members` as one batch; `arena` is the memory that their tensors lie in, `size` the
        side of the square that images are resized to (0: as the model fixes it, or as they are).

        Raises TensorError if the members are not a batch of this model; RowCountError if outputs
        do not have one row for each of theirs, but a single member has whatever the model gives;
        and whatever ONNX Runtime raises.
        """
        batch = self.gather(members, arena, size)
        begin = time.perf_counter()
        arrays = self._infer(batch.feeds, run_options)
        done = time.perf_counter()
        mismatch = ""
        try:
            self.check(arrays, sum(batch.rows), batch.lengths)
        except RowCountError as error:
            if len(members) > 1:
                raise
            mismatch = str(error)
        return RunResult(
            arrays,
            batch.rows,
            batch.lengths,
            batch.input_s,
            done - begin,
            batch.faults,
            mismatch,
            batch.damaged,
        )

    def check(
        self, arrays: Sequence[NDArray[Any]], rows: int, lengths: MemberLengths | None
    ) -> None:
        """Raises TensorError if outputs do not have so many rows, or are not as long as padded."""
        self._check_rows(arrays, rows)
        if lengths is not None:
            lengths.check(arrays, self._outputs)

    def opened(self) -> OpenedModel:
        """The model as its worker reports it, without the sessions of a pool."""
        checks = (self.row_shapes, self.cold, self.tolerance)
        return OpenedModel(self.interface, (), "", *checks)

    def detail(self, error: BaseException) -> str:
        """What a client may know of an error that `run` raised."""
        return client_detail(error, self._source.path, self._source.root)

    def fault(self, error: BaseException) -> Fault:
        """Whose fault an error of a run is. Where the text does not say, a row of synthetic inputs
        shows whether an accelerator still answers."""
        fault = fault_of(error)
        if fault is Fault.MODEL and self._warm and self._session and not self.opener.optimises:
            try:
                self._infer(self._synthetic(1, self.row_shapes), None)
            except Exception as again:
                return Fault.MODEL if fault_of(again) is Fault.MEMORY else Fault.DEVICE
        return fault

    def _infer(self, feeds: dict[str, NDArray[Any]], run_options: Any) -> list[NDArray[Any]]:
        if self._by_value:
            values = {spec.name: to_value(feeds[spec.name], spec) for spec in self.interface.inputs}
            results = self._session.run_with_ort_values(self._outputs, values, run_options)
            return [
                from_value(value, spec)
                for value, spec in zip(results, self.interface.outputs, strict=True)
            ]
        arrays: list[NDArray[Any]] = self._session.run(self._outputs, feeds, run_options)
        return arrays

    def _check_rows(self, arrays: Sequence[NDArray[Any]], rows: int) -> None:
        if not self.interface.batches:
            return
        for array, name in zip(arrays, self._outputs, strict=True):
            if array.shape[:1] != (rows,):
                # A function has stated what it gives: that is an error of its batch.
                kind = TensorError if self._source.function is not None else RowCountError
                raise kind(f"output {name!r} has not one row for each of the {rows} given")

    def _synthetic_rows(self) -> SyntheticRows:
        """Raises ModelError if what is stated of rows cannot be."""
        if self._rows is None:
            try:
                self._rows = SyntheticRows(self.interface, self._source)
            except ValueError as error:
                raise ModelError(str(error)) from None
        return self._rows

    def synthetic(self, rows: int) -> dict[str, NDArray[Any]]:
        """Inputs of so many rows that run, unless the model is `cold`. Raises MemoryError."""
        return self._synthetic(rows, self.row_shapes)

    def _synthetic(self, rows: int, shapes: RowShapes) -> dict[str, NDArray[Any]]:
        """Inputs of so many rows. Raises MemoryError where they would take above a gibibyte."""
        nbytes = sum(row_bytes(spec, shapes[spec.name]) for spec in self.interface.inputs)
        if rows > 1 and rows * nbytes > MOST_ROW_BYTES:
            raise MemoryError
        arrays = self._synthetic_rows().arrays(shapes, rows, np.random.default_rng(_SEED))
        if self.interface.batches:
            return arrays
        return {name: array.reshape(shapes[name]) for name, array in arrays.items()}


def _gatherer(spec: TensorSpec, padding: Padding | None) -> InputGatherer | PaddedGatherer:
    padded = None if padding is None else padding.inputs.get(spec.name)
    return InputGatherer(spec) if padded is None else PaddedGatherer(spec, padded)
