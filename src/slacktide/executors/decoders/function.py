"""`FunctionDecoder`: a decoder that the server's owner wrote."""

from __future__ import annotations

from collections.abc import Sequence

from slacktide._extensions import load_named
from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements, index_of
from slacktide.executors.functions import FunctionError, checked_outputs
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource


class FunctionDecoder:
    """Calls `function(arrays, placements, extent)` with the arguments of `Decoder.decode`. It
    returns the declared arrays: one, or a sequence of them."""

    def __init__(self, source: DecodeSource, outputs: Sequence[TensorSpec]) -> None:
        """`from` names the outputs to pass; without it all are passed. Raises ModelError if the
        function cannot be imported."""
        assert source.function is not None
        named = [index_of(name, outputs) for name in source.outputs]
        self.reads: Sequence[int] = named or range(len(outputs))
        self.outputs = ModelInterface.from_dict(source.function.interface).outputs
        try:
            self._function = load_named(source.function.target)
        except BaseException as error:  # foreign code, which may call sys.exit
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(f"decode.as: the function cannot be used: {reason}") from None

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`. Raises FunctionError if the function raises or returns something else."""
        chosen = [arrays[index] for index in self.reads]
        try:
            returned = self._function(chosen, placements, extent)
        except MemoryError:
            raise
        except BaseException as error:  # foreign code, which may call sys.exit
            raise FunctionError(f"the decoder raised {type(error).__name__}: {error}") from None
        return checked_outputs(returned, self.outputs, "decoder")
