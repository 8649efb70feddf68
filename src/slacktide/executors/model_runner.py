"""`ModelRunner`: a model opened in ONNX Runtime, which runs arrays.

It includes the steps around the model's file: images are converted before the file runs, and a
decoder turns its outputs into answers. Members, shared memory and numbers of threads belong to
`ModelSession`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.preprocessing import PicturePlacement, Preprocessing, as_pictures
from slacktide.domain.tensors import Datatype, ModelInterface, image_input
from slacktide.executors.decoders.decoder import Decoder
from slacktide.executors.decoders.heads import extent_of
from slacktide.executors.functions import InputFunction
from slacktide.executors.hand_over.tensor_io import RowCountError, TensorError
from slacktide.executors.image_placing import ImageConverter
from slacktide.executors.onnx_runtime import (
    Fault,
    ModelError,
    client_detail,
    fault_of,
    from_value,
    to_value,
)
from slacktide.executors.pooling import Pooler
from slacktide.executors.ports import RowShapes
from slacktide.executors.rounding import TOLERANCE
from slacktide.executors.session_opener import SessionOpener
from slacktide.executors.synthetic_inputs import MOST_ROW_BYTES, SyntheticRows, row_bytes

_SEED = 20250  # seed of synthetic inputs; any constant will do


class ModelRunner:
    """One open model. Make it with `open_model`."""

    def __init__(
        self,
        opener: SessionOpener,
        session: Any,
        interface: ModelInterface,
        preprocessing: Preprocessing | None = None,
        decoder: Decoder | None = None,
        before: InputFunction | None = None,
        pooler: Pooler | None = None,
    ) -> None:
        """`interface`: inputs and outputs of the file. `preprocessing`: how pictures become one of
        these inputs. `pooler`: makes one output of the file's outputs. `decoder`: makes the answers
        to clients from the outputs. `before`: makes the file's inputs."""
        self.opener, self.source = opener, opener.source
        function = opener.source.function
        self.expands = opener.source.expands
        """Whether the model is a function that returns any number of rows."""
        self.frame = "" if function is None else function.frame
        """Input of a function that takes whole frames; empty: none."""
        self.session = session
        """The InferenceSession in use; None while the model is cut into stages."""
        if pooler is not None:
            interface = replace(interface, outputs=(pooler.output,))
        self._file_inputs, self._file_outputs = interface.inputs, interface.outputs
        self._file_names = [spec.name for spec in interface.outputs]
        self.converter: ImageConverter | None = None
        """Converts pictures for the file's image input; None if no image input is declared."""
        self._decoder, self._pooler = decoder, pooler
        self.before = before
        """Makes the file's inputs; None if clients send them."""
        if before is not None:
            interface = replace(interface, inputs=before.inputs)
        if preprocessing is not None:
            spec = next(s for s in interface.inputs if s.name == preprocessing.input)
            self.converter = ImageConverter(preprocessing, spec)
            interface = as_pictures(interface, preprocessing)
        if (answers := decoder or pooler) is not None:
            interface = replace(interface, outputs=answers.outputs)
        self.interface = interface
        """Inputs, outputs and batch limit of the model as clients see it: a declared image input
        takes uint8 pictures. Final once the model is warm."""
        self.declared_outputs = interface.outputs
        """Outputs as the file declares them; some files fix the first axis at 1."""
        padding = None if self.source.padding is None else self.source.padding.fitting(interface)
        self.padding = padding
        """The padding that fits the model. Warm-up adds the outputs that must be cut back."""
        index = image_input(interface)
        padded = () if padding is None else padding.inputs
        if index is not None and interface.inputs[index].name in padded:
            index = None
        self.image_index = index
        """Index of the input that takes pictures; None if there is none."""
        if index is not None:
            self._warm_up_at_the_largest(index)
        # NumPy has no bfloat16; for other types ONNX Runtime's values are slower than arrays.
        self.by_value = any(
            spec.datatype is Datatype.BF16 for spec in (*interface.inputs, *self._file_outputs)
        )
        """Whether some input or output has a type that NumPy lacks."""
        self.row_shapes: RowShapes = {}
        """Shapes of a row that has run, or of the last attempt if none has."""
        self.warm = False
        """Whether a synthetic row has run."""
        self.cold = ""
        """Why no synthetic row runs; empty if one does."""
        self.note = ""
        """A warning for the log."""
        self.tolerance = TOLERANCE
        self.labels: tuple[str, ...] = ()
        """Names of the model's classes."""
        self._rows: SyntheticRows | None = None

    def _warm_up_at_the_largest(self, index: int) -> None:
        """Let warm-up rows have the largest size of this image input: full batches of it show how
        much fits in memory."""
        source, spec = self.source, self.interface.inputs[index]
        typical = None if self.converter is None else self.converter.preprocessing.typical
        if (source.image_sizes or typical) and spec.shape[1] < 0:
            largest = max(source.image_sizes, default=0)
            extent = (largest, largest) if largest else typical or ()
            shapes = {**source.warmup_shapes, spec.name: (*extent, 3)}
            self.source = replace(source, warmup_shapes=shapes)

    def infer(
        self,
        feeds: Mapping[str, NDArray[Any]],
        run_options: Any = None,
        placements: Sequence[PicturePlacement] = (),
    ) -> list[NDArray[Any]]:
        """Run the model and its decoder. `placements`: where the client's picture lies in each row;
        empty if it fills the row. Raises whatever ONNX Runtime raises."""
        names = self._file_names
        arrays: list[NDArray[Any]]
        if self.by_value:
            values = {spec.name: to_value(feeds[spec.name], spec) for spec in self._file_inputs}
            results = self.session.run_with_ort_values(names, values, run_options)
            arrays = [
                from_value(value, spec)
                for value, spec in zip(results, self._file_outputs, strict=True)
            ]
        else:
            arrays = self.session.run(names, feeds, run_options)
        if self._pooler is not None:
            arrays = self._pooler.pool(arrays, feeds)
        return self.decode(arrays, feeds, placements)

    def decode(
        self,
        arrays: list[NDArray[Any]],
        feeds: Mapping[str, NDArray[Any]],
        placements: Sequence[PicturePlacement] = (),
        rows: int | None = None,
    ) -> list[NDArray[Any]]:
        """Turn outputs of the file into the answers to clients. Outputs that the decoder does not
        read may be None.

        `feeds`: inputs of the batch. `rows`: number of rows in `arrays`, by default all of them.
        Raises RowCountError, and the decoder's errors.
        """
        decoder = self._decoder
        if decoder is None or any(arrays[index] is None for index in decoder.reads):
            return arrays
        batches = self.interface.batches
        if not batches:
            rows = (*arrays[decoder.reads[0]].shape, 1)[0]
        elif rows is None:
            rows = len(next(iter(feeds.values())))
        for array, spec in zip(arrays, self._file_outputs, strict=True):
            if batches and array is not None and array.shape[:1] != (rows,):
                raise RowCountError(
                    f"output {spec.name!r} does not have one row per input row; expected {rows}"
                )
        extent = extent_of(array.shape for array in feeds.values())
        whole = PicturePlacement(0, 0, extent[1] or 1, extent[0] or 1)
        places = np.array(placements or [whole] * rows, np.float64)
        return list(decoder.decode(arrays, places, extent))

    @property
    def file_interface(self) -> ModelInterface:
        """The interface with the outputs of the file, as they are before the decoder."""
        return replace(self.interface, outputs=self._file_outputs)

    def undecodable(self, exits: Container[str]) -> Sequence[str]:
        """Outputs of the file that `decode` reads but `exits` do not make."""
        if self.source.decode is None or self._decoder is None:
            return ()
        names = [self._file_names[index] for index in self._decoder.reads]
        return [name for name in names if name not in exits]

    def check_rows(self, arrays: Sequence[NDArray[Any]], rows: int) -> None:
        """Raise TensorError unless each output has this many rows."""
        if not self.interface.batches or self.expands:
            return
        for array, spec in zip(arrays, self.interface.outputs, strict=True):
            if array.shape[:1] != (rows,):
                if (function := self.source.function or self.source.after) is not None:
                    # A function's outputs are declared, so this is an error in the function.
                    counts = f"{len(array)} rows as {spec.name!r}, expected {rows}"
                    raise TensorError(f"the function {function.name!r} returned {counts}")
                expected = f"does not have one row per input row; expected {rows}"
                raise RowCountError(f"output {spec.name!r} {expected}")

    def converted(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Convert the inputs of `interface` to those of the file."""
        if self.before is not None:
            return self.before.convert(feeds)
        converter = self.converter
        if converter is None:
            return feeds
        name = converter.preprocessing.input
        return {**feeds, name: converter.convert(feeds[name])}

    def without_batches(self) -> None:
        """Treat the model as if it had no batch axis."""
        self.interface = replace(self.interface, max_batch=0, outputs=self.declared_outputs)
        self._rows = None
        self.row_shapes = {name: (1, *row) for name, row in self.row_shapes.items()}

    def synthetic_rows(self) -> SyntheticRows:
        """The source of rows. Raises ModelError if their configuration is impossible."""
        if self._rows is None:
            try:
                self._rows = SyntheticRows(self.interface, self.source)
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
        arrays = self.synthetic_rows().arrays(shapes, rows, np.random.default_rng(_SEED))
        if not self.interface.batches:
            arrays = {name: array.reshape(shapes[name]) for name, array in arrays.items()}
        return self.converted(arrays)

    def detail(self, error: BaseException) -> str:
        """The text of an error of a run that clients may see."""
        return client_detail(error, self.source.path, self.source.root)

    def fault(self, error: BaseException) -> Fault:
        """The cause of an error of a run. If the text does not say, a synthetic row shows whether
        an accelerator still works."""
        fault = fault_of(error)
        if fault is Fault.MODEL and self.warm and self.session and self.opener.on_accelerator:
            try:
                self.infer(self.synthetic(1))
            except Exception as again:
                return Fault.MODEL if fault_of(again) is Fault.MEMORY else Fault.DEVICE
        return fault
