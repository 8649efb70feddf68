"""`ModelSession`: a model opened in ONNX Runtime, warmed up, and run with members of a batch.

Workers and the in-process executor use it. It is independent of sockets and processes. A model may
be open in several sessions with different numbers of threads, of which one is in use at a time.
They share the buffers in which batches are gathered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import Padding
from slacktide.domain.preprocessing import PicturePlacement, Preprocessing, as_pictures
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, image_input
from slacktide.executors.crops import CropGatherer, FrameArenas
from slacktide.executors.decoders.boxes import BoxDecoder, index_of_boxes
from slacktide.executors.decoders.decoder import Decoder, make_decoder
from slacktide.executors.decoders.heads import extent_of
from slacktide.executors.decoders.labels import find_labels
from slacktide.executors.hand_over.tensor_io import (
    InputGatherer,
    LengthReader,
    MemberLengths,
    PaddedGatherer,
    RowCountError,
    TensorError,
)
from slacktide.executors.image_placing import ImageConverter
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
from slacktide.executors.padded_outputs import (
    Shapes,
    find_padded_outputs,
    largest_change,
    padded_feeds,
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

_SEED = 20250  # seed of the warm-up's inputs; any constant will do


class GatheredBatch(NamedTuple):
    """The inputs of a batch."""

    feeds: dict[str, NDArray[Any]]
    rows: list[int]
    """Number of rows of each member."""
    lengths: MemberLengths | None
    """Lengths to which padded outputs are cut, by member; None if nothing was padded."""
    faults: Mapping[int, MemberFault]
    """Why members have no rows, by their place in the batch. Ignore their outputs."""
    begin: float
    """Time at which gathering began, by `time.perf_counter`."""
    input_s: float
    """Seconds that gathering took."""
    damaged: int = 0
    """Number of decoded pictures that may be damaged."""
    placements: Sequence[PicturePlacement] = ()
    """Where the client's picture lies in each row; empty if preprocessing is not declared."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of the model."""

    inputs: GatheredBatch
    arrays: list[NDArray[Any]]
    """An array for each output."""
    infer_s: float
    """Seconds in ONNX Runtime."""
    mismatch: str = ""
    """How the number of a single member's output rows is wrong; empty if it is right."""


class ModelSession:
    """One open model. Make it with `ModelSession.open`; runs one batch at a time."""

    def __init__(
        self,
        opener: SessionOpener,
        threads: int,
        interface: ModelInterface,
        session: Any,
        preprocessing: Preprocessing | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """`interface`: inputs and outputs of the file. `preprocessing`: how pictures become one of
        these inputs. `decoder`: turns these outputs into the ones that clients get."""
        self._converter: ImageConverter | None = None
        """Converts pictures for the file's image input; None if no image input is declared."""
        self._decoder = decoder
        self._file_inputs, self._file_outputs = interface.inputs, interface.outputs
        self._file_names = [spec.name for spec in interface.outputs]
        if preprocessing is not None:
            spec = next(s for s in interface.inputs if s.name == preprocessing.input)
            self._converter = ImageConverter(preprocessing, spec)
            interface = as_pictures(interface, preprocessing)
        if decoder is not None:
            interface = replace(interface, outputs=decoder.outputs)
        self.opener = opener
        self._sessions = {threads: session}
        self._session = session
        self._threads = threads
        self.stages: StageChain | None = None
        """The model cut into stages, through which batches then run. The whole model is closed in
        that case, because both would take twice the memory."""
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
            typical = 0 if preprocessing is None else preprocessing.short_side
            if (source.image_sizes or typical) and spec.shape[1] < 0:
                # Full batches of the largest size show how much fits in memory.
                largest = max(source.image_sizes, default=typical)
                shapes = {**source.warmup_shapes, spec.name: (largest, largest, 3)}
                source = replace(source, warmup_shapes=shapes)
            stated = closed_shapes(source).get(spec.name)
            self._gatherers[index] = self._images = ImageGatherer(spec, stated, preprocessing)
        self._source = source
        self._lengths = None if padding is None else LengthReader(padding, interface)
        self._crops: CropGatherer | None = None
        # NumPy has no bfloat16; for other types ONNX Runtime's values are slower than arrays.
        self._by_value = any(
            spec.datatype is Datatype.BF16 for spec in (*interface.inputs, *self._file_outputs)
        )
        self.interface = interface
        """Inputs, outputs and batch limit of the model as clients see it: a declared image input
        takes uint8 pictures. Final once `warm_up` has returned."""
        self._declared_outputs = interface.outputs
        """Outputs as the file declares them; some files fix the first axis at 1."""
        self.row_shapes: RowShapes = {}
        """Shapes of a row that has run, or of the last attempt if none has."""
        self.cold = ""
        """Why no synthetic row runs; empty if one does."""
        self.tolerance = TOLERANCE
        self.note = ""
        """A warning for the log."""
        self.labels: tuple[str, ...] = ()
        """Names of the model's classes."""
        self._rows: SyntheticRows | None = None
        self._warm = False  # whether a synthetic row has run
        self._warm_by = math.inf  # time after which only what must run is warmed up

    @classmethod
    def open(
        cls, source: ModelSource, *, threads: int, device: str = "cpu", shared_arena: bool = False
    ) -> ModelSession:
        """Open a model with this many threads, which never spin.

        Threads inherit the affinity of the calling thread. With `shared_arena` all sessions of the
        process compute in one arena (see `session_pool`). Raises ModelError if no attempt can ever
        succeed: a bad file, an unknown type, no batch axis where one is configured.
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
            cure = "choose the CPU there, or install what is missing"
            raise ProviderMissingError(f"{error} ({source.device_origin}); {cure}") from None
        file = OnnxFile(source.path, source.root, source.outputs, source.own_exits, source.expose)
        declared = file.shapes
        free = any(shape is None or -1 in shape[1:] for shape in declared.values())
        sizes = file.image_sizes()
        content, path = file.content, file.opened
        opener = SessionOpener(source, providers, free, shared_arena, sizes, content, path)
        session = opener.open(threads)
        image = source.image
        one_row = image is not None
        plain = session_interface(session, declared, 0, file.hidden)
        interface = session_interface(
            session, declared, source.max_batch, file.hidden, one_row=one_row
        )
        whole = (len(source.warmup_shapes.get(s.name, ())) == len(s.shape) for s in plain.inputs)
        if source.max_batch is None and plain.outputs != interface.outputs and any(whole):
            interface = plain  # the configured shapes include the first axis
        preprocessing = None
        if image is not None:
            preprocessing = file.preprocessing(image, interface, source.image_sizes)
        decodes, outputs = source.decode is not None, interface.outputs
        labels = find_labels(source.labels, file.metadata, outputs, decodes=decodes)
        decoder: Decoder | None = None
        if source.decode is not None:
            decoder = make_decoder(source.decode, interface, labels)
        elif preprocessing is not None and index_of_boxes(interface.outputs) >= 0:
            decoder = BoxDecoder(interface.outputs)
        opened = cls(opener, threads, interface, session, preprocessing, decoder)
        if decoder is None:
            opened._declared_outputs = plain.outputs
        opened.labels = labels
        opened.tolerance = tolerance_of(file.model, accelerated=len(providers) > 1)
        return opened

    def add(self, threads: int) -> None:
        """Open, warm up and use a further session with this many threads.

        If this raises (any error of `open` or `warm_up`), the earlier session stays in use.
        """
        before, interface = self._session, self.interface
        try:
            self._session = self.opener.open(threads)
            self.warm_up()
            if self.interface != interface:
                raise MemoryError  # fewer rows fit than in the other sessions
        except BaseException:
            self._session, self.interface = before, interface
            raise
        self._sessions[threads] = self._session
        self._threads = threads

    def use(self, threads: int) -> None:
        """Run batches in the session with this many threads. Raises KeyError if there is none."""
        if self.stages is None:
            self._session = self._sessions[threads]
        self._threads = threads

    @property
    def threads(self) -> int:
        """Threads of the session in use."""
        return self._threads

    @property
    def whole(self) -> Any:
        """The session in use; None if the model is cut into stages."""
        return self._session

    def place(self, stages: StageChain | None, whole: Mapping[int, Any]) -> None:
        """Run later batches through `stages`, or else in the sessions `whole`, by number of
        threads. Closes the stages or sessions that batches used until now."""
        self.stages = stages
        self._sessions = dict(whole)
        self._session = self._sessions.get(self._threads)

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
        self._warm_by = math.inf
        with ExitStack() as first:
            if first_run is not None:
                first.enter_context(first_run)
            self._warm_up(first)

    def _warm_up(self, first: ExitStack) -> None:
        """Warm up. `first` is closed once a row has run."""
        if not self.row_shapes:
            self._find_row()
        limit = self.interface.max_batch
        sizes = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
        seconds, most_rows = 0.0, 0
        for rows in [*sizes, limit]:
            if rows > 2 and not self._has_time(2.0 * seconds):
                break
            try:
                begin = time.perf_counter()
                arrays = self._infer(self.synthetic(max(1, rows)), None)
                seconds, most_rows = time.perf_counter() - begin, rows
                first.close()
                limit_s = self._source.warm_up_s
                if rows == 1 and limit_s is not None and self.opener.optimises:
                    self._warm_by = time.perf_counter() + limit_s
                self._check_rows(arrays, rows)
                self._warm = True
            except ModelError:
                raise
            except Exception as error:  # whatever a model may raise
                if self._lower_limit(rows, error):
                    break
                false_axis = isinstance(error, TensorError)
                if not self.interface.batches or (rows == 1 and not false_axis):
                    self._leave_cold(error)
                    return
                self._drop_batch_axis(rows, self.detail(error))
                return
        if self._padding is not None:
            self._warm_up_lengths(self._padding, most_rows)
        if self._images is not None:
            self._warm_up_images(self._images.name)

    def _drop_batch_axis(self, rows: int, detail: str) -> None:
        """Serve without a batch axis, since a batch of this many rows fails. Raises ModelError if
        one is configured or needed."""
        if self._source.max_batch is not None:
            limit = self.interface.max_batch
            raise ModelError(f"max_batch is {limit}, but a batch of {rows} fails: {detail}")
        claimed = self._declared_outputs != self.interface.outputs
        self.interface = replace(self.interface, max_batch=0, outputs=self._declared_outputs)
        if self._converter is not None:
            name = self._converter.preprocessing.input
            raise ModelError(
                f"inputs.{name}.image: expected rows that can share a batch, but {rows} "
                f"fail: {detail}; state max_batch: 1"
            )
        self._rows = None
        self.row_shapes = {name: (1, *row) for name, row in self.row_shapes.items()}
        if rows == 1 or claimed:  # not even one row has run as it should
            self.row_shapes = {}
            self.warm_up()

    def _has_time(self, seconds: float) -> bool:
        """Whether a run of this many seconds fits into the time for warming up."""
        return time.perf_counter() + seconds <= self._warm_by

    def _warm_up_images(self, name: str) -> None:
        """Load the image libraries, and run a row at each size that images are resized to. Raises
        ModelError."""
        load_opencv()
        if decodes_jpeg():
            load_decoder()
        for size in self._source.image_sizes:
            try:
                row = {**self.row_shapes, name: (size, size, 3)}
                self._check_rows(self._infer(self.synthetic(1, row), None), 1)
            except Exception as error:  # whatever a model may raise
                if self.fault(error) is not Fault.MODEL:
                    raise
                detail = self.detail(error)
                raise ModelError(f"a row of {size} × {size} pixels fails: {detail}") from None

    def _find_row(self) -> None:
        """Set the shapes of a row to the first candidate that runs."""
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
                self._infer(self.synthetic(1), None)
                return
            except Exception as error:  # whatever a model may raise
                if self.fault(error) is Fault.DEVICE:
                    raise

    def _leave_cold(self, error: Exception) -> None:
        self.cold = self.detail(error)
        if self._source.samples is not None or self._source.sample_rows:
            raise ModelError(f"samples: a row fails: {self.cold}")

    def _lower_limit(self, rows: int, error: Exception) -> bool:
        """Lower max_batch to the next smaller size if `error` means that this many rows do not fit
        in memory, and return whether it does. Raises the error if one row does not fit, or if the
        device failed."""
        fault = self.fault(error)
        if fault is Fault.DEVICE or (fault is Fault.MEMORY and rows <= 1):
            raise error
        if fault is Fault.MEMORY:
            most = 1 << ((rows - 1).bit_length() - 1)
            self.interface = replace(self.interface, max_batch=most)
        return fault is Fault.MEMORY

    def _warm_up_lengths(self, padding: Padding, most_rows: int) -> None:
        """Run one row and, if there is time, `most_rows` of each declared length. Finds out which
        outputs grow with the inputs. Raises ModelError."""
        runs: dict[int, Shapes] = {}
        for length in padding.lengths:
            begin = time.perf_counter()
            for rows in dict.fromkeys((1, most_rows)):
                if rows > 1 and not self._has_time(rows * (time.perf_counter() - begin)):
                    break
                try:
                    shapes = self._run_length(length, rows)
                except Exception as error:  # whatever a model may raise
                    if self._lower_limit(rows, error):
                        self._warm_up_lengths(padding, min(most_rows, self.interface.max_batch))
                        return
                    failing = "one row fails" if rows == 1 else f"{rows} rows fail"
                    detail = self.detail(error)
                    message = f"lengths names {length}, but {failing} at that length: {detail}"
                    raise ModelError(message) from None
                runs.setdefault(length, shapes)
        name, padded = next(iter(padding.inputs.items()))
        length = self.row_shapes[name][padded.axis - 1]
        for extra in (length, length // 2, 2 * length):
            if len(runs) < 2 and extra and (single := self._try_length(extra)) is not None:
                runs[extra] = single
        stated = {} if self._source.padding is None else self._source.padding.outputs
        outputs = find_padded_outputs(padding, stated, runs, self._try_length)
        padding = replace(padding, outputs=outputs)
        self._lengths = LengthReader(padding, self.interface)
        if len(runs) > 1 and not self._by_value:
            self._compare_padded(padding, min(runs), max(runs))

    def _compare_padded(self, padding: Padding, shorter: int, longer: int) -> None:
        """Note whether a row gets another answer when it is padded."""
        row = self._synthetic_rows().shapes(self.row_shapes, shorter)
        feeds = self.synthetic(1, row)
        alone, padded = (
            dict(zip(self._outputs, self._infer(inputs, None), strict=True))
            for inputs in (feeds, padded_feeds(padding, self.interface.inputs, feeds, longer))
        )
        change, name = largest_change(alone, padded, padding.outputs)
        if change > self.tolerance:
            self.note = (
                f"padding changes answers: output {name!r} of a row of length {shorter} changes by "
                f"{change:.1%} of its largest magnitude when padded to {longer}"
            )

    def _run_length(self, length: int, rows: int = 1) -> Shapes:
        """Run rows of this length. Returns the shapes of the outputs."""
        row = self._synthetic_rows().shapes(self.row_shapes, length)
        arrays = self._infer(self.synthetic(rows, row), None)
        return {name: array.shape for name, array in zip(self._outputs, arrays, strict=True)}

    def _try_length(self, length: int) -> Shapes | None:
        """Shapes of the outputs for one row of this length; None if the model refuses it."""
        try:
            return self._run_length(length)
        except Exception as error:  # whatever a model may raise
            if self.fault(error) is Fault.DEVICE:
                raise
            return None

    def read_frames(self, frames: FrameArenas) -> None:
        """Accept members that are crops of these frames."""
        if self._crops is None:
            stated, plain = closed_shapes(self._source), self._gatherers
            preprocessing = None if self._converter is None else self._converter.preprocessing
            self._crops = CropGatherer(
                frames, self.interface, plain, self._padding, stated, preprocessing
            )

    def gather(self, members: Sequence[Payload], arena: memoryview, size: int = 0) -> GatheredBatch:
        """The inputs of `members` as one batch, valid until the next call. Arguments as in `run`.

        Raises TensorError if the members cannot form a batch of this model.
        """
        begin, damaged = time.perf_counter(), DAMAGED.count
        rows = [member.rows for member in members]
        if len(members) > 1 and not self.interface.batches:
            raise TensorError("the model has no batch axis")
        crops = self._crops
        if crops is not None and CropPayload in map(type, members):
            faults: Mapping[int, MemberFault]
            array, members, faults = crops.gather(members, arena, size)
            feeds, placements = {self.interface.inputs[0].name: array}, crops.placements
        else:
            feeds, faults = self._gather_plain(members, arena, size, sum(rows))
            placements = [] if self._images is None else self._images.placements
        feeds = self._converted(feeds)
        lengths = None if self._lengths is None else self._lengths.of(members)
        input_s, damaged = time.perf_counter() - begin, DAMAGED.count - damaged
        return GatheredBatch(feeds, rows, lengths, faults, begin, input_s, damaged, placements)

    def _converted(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Convert the inputs of `interface` to those of the file."""
        converter = self._converter
        if converter is None:
            return feeds
        name = converter.preprocessing.input
        return {**feeds, name: converter.convert(feeds[name])}

    def _gather_plain(
        self, members: Sequence[Payload], arena: memoryview, size: int, rows: int
    ) -> tuple[dict[str, NDArray[Any]], Mapping[int, MemberFault]]:
        """Inputs and faults of members that are not cut out of frames."""
        images = self._images
        if images is not None:
            images.size = size
        feeds = {}
        for index, spec in enumerate(self.interface.inputs):
            tensors = [member.tensors[index] for member in members]
            array = self._gatherers[index].gather(tensors, arena)
            if self.interface.batches and array.shape[:1] != (rows,):
                raise TensorError(f"input {spec.name!r} does not have {rows} rows")
            feeds[spec.name] = array
        return feeds, NO_FAULTS if images is None else images.faults

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
        arrays = self._infer(batch.feeds, run_options, batch.placements)
        done = time.perf_counter()
        mismatch = ""
        try:
            self.check(arrays, sum(batch.rows), batch.lengths)
        except RowCountError as error:
            if len(members) > 1:
                raise
            mismatch = str(error)
        return RunResult(batch, arrays, done - begin, mismatch)

    def check(
        self, arrays: Sequence[NDArray[Any]], rows: int, lengths: MemberLengths | None
    ) -> None:
        """Raise TensorError unless outputs have this many rows and the padded length."""
        self._check_rows(arrays, rows)
        if lengths is not None:
            lengths.check(arrays, self._outputs)

    def opened(self) -> OpenedModel:
        """The model as a worker reports it, without the sessions of a pool."""
        checks = (self.row_shapes, self.cold, self.tolerance)
        return OpenedModel(self.interface, (), self.note, *checks, labels=self.labels)

    def detail(self, error: BaseException) -> str:
        """The text of an error of `run` that clients may see."""
        return client_detail(error, self._source.path, self._source.root)

    def fault(self, error: BaseException) -> Fault:
        """The cause of an error of a run. If the text does not tell, a synthetic row shows whether
        an accelerator still works."""
        fault = fault_of(error)
        if fault is Fault.MODEL and self._warm and self._session and not self.opener.optimises:
            try:
                self._infer(self.synthetic(1), None)
            except Exception as again:
                return Fault.MODEL if fault_of(again) is Fault.MEMORY else Fault.DEVICE
        return fault

    def _infer(
        self,
        feeds: dict[str, NDArray[Any]],
        run_options: Any,
        placements: Sequence[PicturePlacement] = (),
    ) -> list[NDArray[Any]]:
        """Run the model and its decoder. `placements`: as in GatheredBatch."""
        names = self._file_names
        arrays: list[NDArray[Any]]
        if self._by_value:
            values = {spec.name: to_value(feeds[spec.name], spec) for spec in self._file_inputs}
            results = self._session.run_with_ort_values(names, values, run_options)
            arrays = [
                from_value(value, spec)
                for value, spec in zip(results, self._file_outputs, strict=True)
            ]
        else:
            arrays = self._session.run(names, feeds, run_options)
        if self._decoder is None:
            return arrays
        batches = self.interface.batches
        rows = len(next(iter(feeds.values()))) if batches else (*arrays[0].shape, 1)[0]
        for array, spec in zip(arrays, self._file_outputs, strict=True):
            if batches and array.shape[:1] != (rows,):
                raise RowCountError(
                    f"output {spec.name!r} does not have one row per input row; expected {rows}"
                )
        extent = extent_of(array.shape for array in feeds.values())
        whole = PicturePlacement(0, 0, extent[1] or 1, extent[0] or 1)
        places = np.array(placements or [whole] * rows, np.float64)
        return list(self._decoder.decode(arrays, places, extent))

    def _check_rows(self, arrays: Sequence[NDArray[Any]], rows: int) -> None:
        if not self.interface.batches:
            return
        for array, name in zip(arrays, self._outputs, strict=True):
            if array.shape[:1] != (rows,):
                # A function's outputs are declared, so this is an error in the function.
                kind = TensorError if self._source.function is not None else RowCountError
                raise kind(f"output {name!r} does not have one row per input row; expected {rows}")

    def _synthetic_rows(self) -> SyntheticRows:
        """Make the source of rows. Raises ModelError if their configuration is impossible."""
        if self._rows is None:
            try:
                self._rows = SyntheticRows(self.interface, self._source)
            except ValueError as error:
                raise ModelError(str(error)) from None
        return self._rows

    def synthetic(self, rows: int, shapes: RowShapes | None = None) -> dict[str, NDArray[Any]]:
        """Synthetic inputs with this many rows of `shapes`, by default `row_shapes`. Raises
        MemoryError if they would exceed a gibibyte."""
        shapes = shapes or self.row_shapes
        nbytes = sum(row_bytes(spec, shapes[spec.name]) for spec in self.interface.inputs)
        if rows > 1 and rows * nbytes > MOST_ROW_BYTES:
            raise MemoryError
        arrays = self._synthetic_rows().arrays(shapes, rows, np.random.default_rng(_SEED))
        arrays = self._converted(arrays)
        if self.interface.batches:
            return arrays
        return {name: array.reshape(shapes[name]) for name, array in arrays.items()}


def _gatherer(spec: TensorSpec, padding: Padding | None) -> InputGatherer | PaddedGatherer:
    padded = None if padding is None else padding.inputs.get(spec.name)
    return InputGatherer(spec) if padded is None else PaddedGatherer(spec, padded)
