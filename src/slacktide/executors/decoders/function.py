"""Functions of the server's owner behind a model: `FunctionDecoder` and `OutputFunction`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements, index_of
from slacktide.executors.functions import called, checked_outputs, load_function
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource, FunctionSource

if TYPE_CHECKING:
    from slacktide.executors.decoders.decoder import Decoder


class FunctionDecoder:
    """Calls `function(arrays, placements, extent)` with the arguments of `Decoder.decode`. It
    returns the declared arrays: one, or a sequence of them."""

    def __init__(self, source: DecodeSource, outputs: Sequence[TensorSpec]) -> None:
        """`from` names the outputs to pass; without it all are passed. Raises the errors of
        `load_function`."""
        assert source.function is not None
        named = [index_of(name, outputs) for name in source.outputs]
        self.reads: Sequence[int] = named or range(len(outputs))
        self.outputs = source.function.tensors.outputs
        self._caller = f"decoder {source.name!r}"
        try:
            self._function = load_function(source.function.target, self._caller)
        except ModelError as error:
            raise ModelError(f"decode.as: {error}") from None

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`. Raises FunctionError if the function raises or returns something else."""
        chosen = [arrays[index] for index in self.reads]
        returned = called(self._function, (chosen, placements, extent), self._caller)
        return checked_outputs(returned, self.outputs, self._caller)


class OutputFunction:
    """A function behind a model: it makes the answers from the model's outputs, or from those of
    another decoder. Implements `Decoder`."""

    def __init__(
        self,
        source: FunctionSource,
        outputs: Sequence[TensorSpec],
        decoder: Decoder | None,
        cores: int = 1,
    ) -> None:
        """`outputs`: the model's outputs; `decoder`: runs before the function. Raises the errors of
        `load_function`."""
        self.reads: Sequence[int] = range(len(outputs)) if decoder is None else decoder.reads
        self.outputs = source.tensors.outputs
        self._decoder = decoder
        self._caller = f"function {source.name!r}"
        self._function = load_function(source.target, self._caller, cores)

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`. Raises FunctionError if the function raises or returns something else."""
        if self._decoder is not None:
            arrays = self._decoder.decode(arrays, placements, extent)
        returned = called(self._function, arrays, self._caller)
        return checked_outputs(returned, self.outputs, self._caller)
