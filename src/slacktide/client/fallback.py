"""`OnnxFallback`: a small local model for frames that the server would not answer on time."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.client.images import resized
from slacktide.client.messages import ClientError


class OnnxFallback:
    """Runs an ONNX file whose only input is an image, uint8 [rows, height, width, 3], red first.
    Call it with a frame; it returns the outputs by name. Its constructor loads ONNX Runtime, and
    raises ClientError if that is missing or the file is not such a model."""

    def __init__(
        self, path: str | Path, *, size: int = 128, threads: int = 1, rgb: bool = False
    ) -> None:
        """`size`: side of the image in pixels if the model does not fix it. `rgb`: frames have red
        first, not blue first as in OpenCV."""
        if find_spec("onnxruntime") is None:
            remedy = "install it with: pip install onnxruntime"
            raise ClientError(f"a fallback from an ONNX file needs ONNX Runtime; {remedy}")
        runtime: Any = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise ClientError(f"fallback: {path}: {error}") from None
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 4 or inputs[0].type != "tensor(uint8)" or shape[3] != 3:
            raise ClientError(f"fallback: {path}: expected one input, uint8 [rows, h, w, 3]")
        self._name = inputs[0].name
        self._height, self._width = (
            side if isinstance(side, int) and side > 0 else size for side in shape[1:3]
        )
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._rgb = rgb

    def __call__(self, image: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        small = resized(image, self._width, self._height)
        ordered = small if self._rgb else small[:, :, ::-1]
        feed = {self._name: np.ascontiguousarray(ordered[None])}
        return dict(zip(self._outputs, self._session.run(None, feed), strict=True))
