"""`Pooler`: makes one vector of each row's token vectors, without the padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import PoolingSource

EMBEDDING = "embedding"
"""The output for clients."""
_USUAL = ("last_hidden_state", "token_embeddings", "sentence_embedding")
_FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64)


def make_pooler(
    source: PoolingSource | None, model: ModelInterface
) -> tuple[Pooler | None, ModelInterface]:
    """The pooler of a model (None if nothing is pooled), and the interface of its answers."""
    pooler = None if source is None else Pooler(source, model)
    return pooler, model if pooler is None else replace(model, outputs=pooler.outputs)


class Pooler:
    """The pooling and normalisation of one model, which replace its outputs."""

    def __init__(self, source: PoolingSource, model: ModelInterface) -> None:
        """`model`: as its file declares it. Raises ModelError, naming the key, if no output, or
        more than one, can be pooled."""
        self._source = source
        key, rank = ("pooling", 3) if source.kind else ("normalize", 2)
        fitting = [
            spec for spec in model.outputs if spec.datatype in _FLOATS and len(spec.shape) == rank
        ]
        usual = [spec for name in _USUAL for spec in fitting if spec.name == name]
        if not fitting or (len(fitting) > 1 and not usual):
            axes = "[rows, length, features]" if rank == 3 else "[rows, features]"
            listed = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in model.outputs)
            cure = "; choose one by 'expose'" if fitting else ""
            raise ModelError(f"{key}: expected an output of floats {axes}, got {listed}{cure}")
        self.output = (usual or fitting)[0]
        """The model's output that is pooled."""
        names = [spec.name for spec in model.inputs]
        self._mask = source.mask if source.mask in names else ""
        shape = (self.output.shape[0], self.output.shape[-1])
        self.outputs = (TensorSpec(EMBEDDING, Datatype.FP32, shape),)

    def pool(
        self, arrays: Sequence[NDArray[Any]], feeds: Mapping[str, NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Vectors [rows, features]. `arrays`: the output; `feeds`: the model's inputs."""
        (values,) = arrays
        if self._source.kind:
            values = self._pooled(values, feeds)
        values = np.asarray(values, np.float32)
        if self._source.normalize:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        return [values]

    def _pooled(self, values: NDArray[Any], feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        rows, length, _ = values.shape
        mask = np.ones((rows, length), bool)
        if self._mask:
            mask = feeds[self._mask] != 0
            if mask.shape != (rows, length):
                expected = f"expected a length of {mask.shape[1]} as of {self._mask!r}"
                raise ModelError(f"pooling: {expected}, got {length} of {self.output.name!r}")
        if self._source.kind == "mean":
            weights = mask.astype(np.float32)
            weights /= np.maximum(weights.sum(1, keepdims=True), 1.0)
            values = values.astype(np.float32, copy=False)
            with np.errstate(invalid="ignore"):
                pooled = np.matmul(weights[:, None], values)[:, 0]
            if not np.isfinite(pooled).all():  # 0 × NaN is NaN: padding may hold any number
                values = np.where(mask[..., None], values, np.float32(0))
                pooled = np.matmul(weights[:, None], values)[:, 0]
            return np.asarray(pooled)
        first = mask.argmax(1)
        if self._source.kind == "last":
            first = length - 1 - mask[:, ::-1].argmax(1)
        return np.asarray(values[np.arange(rows), first])
