"""`TextDecoder`: text from the steps of a recogniser that was trained with CTC (`as: ctc`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource


class TextDecoder:
    """Outputs `text`, BYTES [rows], and `scores` [rows], the mean score of the text's characters (0
    for an empty text). Equal neighbours among the steps count once, and blanks are left out."""

    def __init__(
        self, source: DecodeSource, index: int, spec: TensorSpec, characters: Sequence[str]
    ) -> None:
        """`characters`: the alphabet, without the blank. Raises ModelError if they do not fit the
        output."""
        self.reads = (index,)
        self._source, self._index, self._name = source, index, spec.name
        self._characters = characters
        self._by_class: tuple[str, ...] = ()
        """The character of each class; empty for the blank. Set when the classes are known."""
        if not characters:
            expected = "expected a file with a character in each line, since the model has none"
            raise ModelError(f"labels: {expected} in its metadata")
        if len(spec.shape) != 3:
            raise self._unfit(spec.shape)
        if spec.shape[2] >= 0:
            self._read(spec.shape[2])
        self.outputs: tuple[TensorSpec, ...] = (
            TensorSpec("text", Datatype.BYTES, spec.shape[:1]),
            TensorSpec("scores", Datatype.FP32, spec.shape[:1]),
        )

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        values = arrays[self._index]
        if values.ndim != 3:
            raise self._unfit(values.shape)
        if len(self._by_class) != values.shape[2]:
            self._read(values.shape[2])
        blank = 0 if self._source.blank == "first" else values.shape[2] - 1
        classes = values.argmax(2)
        is_letter = classes != blank
        is_letter[:, 1:] &= classes[:, 1:] != classes[:, :-1]
        best = np.take_along_axis(values, classes[:, :, None], 2)[:, :, 0].astype(np.float32)
        counts = is_letter.sum(1)
        scores = np.asarray((best * is_letter).sum(1) / np.maximum(counts, 1), np.float32)
        texts = np.empty(len(values), object)
        for row, (steps, chosen) in enumerate(zip(classes, is_letter, strict=True)):
            texts[row] = "".join([self._by_class[place] for place in steps[chosen].tolist()])
        return [texts, scores]

    def _read(self, classes: int) -> None:
        """Find the character of each class. A space may follow the characters of the file."""
        missing = classes - 1 - len(self._characters)
        if missing not in (0, 1):
            expected = f"{classes - 1} characters, or one less if a space is the last"
            got = f"got {len(self._characters)}"
            raise ModelError(f"labels: expected {expected}, for {self._name!r}, {got}")
        characters = (*self._characters, *[" "] * missing)
        first = self._source.blank == "first"
        self._by_class = ("", *characters) if first else (*characters, "")

    def _unfit(self, shape: Sequence[int]) -> ModelError:
        expected = "expected the steps of a recogniser, [rows, steps, classes]"
        return ModelError(f"decode.as: {expected}, got {list(shape)} of {self._name!r}")
