"""A runtime that serves an ONNX file under MLServer, as its manual says to write one.

Runs in MLServer's own environment; `implementation` in model-settings.json names it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from raw_model import RawModel


class OnnxRuntime(MLModel):
    """One session, one thread; requests of several rows are one run."""

    async def load(self) -> bool:
        self._model = RawModel(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        row = tuple(NumpyCodec.decode_input(given) for given in payload.inputs)
        output = self._model.run_arrays(row)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("output", output)]
        )
