"""`quantised_file`: a model with int8 weights and activations, made once from the owner's samples.

ONNX Runtime's static quantisation runs the samples through the model and notes the range of each
tensor. Layers get scales for each channel. The file lies in a hidden folder beside the model, named
after the backend and a hash of the model and of its samples.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from slacktide._files import open_file
from slacktide.executors.onnx_runtime import ModelError, client_detail, load_onnxruntime
from slacktide.executors.ports import ModelSource

if TYPE_CHECKING:
    from slacktide.executors.model_runner import ModelRunner

FOLDER: Final = ".quantised"
MOST_SAMPLES: Final = 256
"""Maximum rows that ranges are taken from."""
_PRODUCTS: Final = ("Conv", "MatMul", "Gemm")
_BETWEEN: Final = ("Add", "Relu", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Resize")
"""Quantised too for ONNX Runtime, which otherwise converts around each of them. OpenVINO fuses them
with products."""
_CHANNELS_SINCE: Final = 13
"""First opset whose DequantizeLinear has an axis."""
_RECIPE: Final = "3"
"""Changes when the same samples would give another file."""


def quantised_file(source: ModelSource) -> Path:
    """Return the path of the quantised model, which is made if it is missing. Raises ModelError if
    there are no samples, the model cannot be quantised, or its folder is not writable."""
    if source.samples is None and not source.sample_rows:
        raise ModelError("precision: int8 needs the model's own rows; state them as 'samples'")
    folder = source.root / FOLDER
    path = folder / f"{source.backend}-{_digest(source)}.onnx"
    if path.exists():
        return path
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as parts:
            quantised = Path(parts) / "int8.onnx"
            _quantise(source, Path(parts) / "prepared.onnx", quantised)
            os.replace(quantised, path)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ModelError(f"precision: the int8 file cannot be written: {why}") from None
    for older in folder.glob(f"{source.backend}-*.onnx"):
        if older != path and older.stat().st_mtime < path.stat().st_mtime:
            with suppress(OSError):
                older.unlink()
    return path


def _digest(source: ModelSource) -> str:
    digest = hashlib.sha256(_RECIPE.encode())
    files = [source.path, *source.sample_rows.values()]
    for path in (*files, *filter(None, (source.samples,))):
        with open_file(path) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    digest.update(repr(source.image).encode())
    return digest.hexdigest()[:16]


def _quantise(source: ModelSource, prepared: Path, quantised: Path) -> None:
    """Write the quantised model to `quantised`. Raises ModelError and OSError."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from slacktide.executors.model_opening import open_model
    from slacktide.executors.warm_up import WarmUp

    load_onnxruntime()
    plain = replace(source, backend="onnxruntime", precision="fp32", decode=None, after=None)
    runner = open_model(plain, max(1, len(os.sched_getaffinity(0))))
    WarmUp(runner).run(ExitStack())
    if runner.cold:
        raise ModelError(f"precision: no row of 'samples' runs: {runner.cold}")
    rows = _rows(runner, source)
    symmetric = source.backend == "openvino"  # other zero points are slow there, and vice versa

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(rows, None)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            has_channels = _raise_opset(source.path, prepared)
            quant_pre_process(str(prepared), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                str(prepared),
                str(quantised),
                Reader(),
                op_types_to_quantize=[*_PRODUCTS, *(() if symmetric else _BETWEEN)],
                per_channel=has_channels,
                activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                extra_options={
                    "ActivationSymmetric": symmetric,
                    # The adjustment fails on layers with a bias (ONNX Runtime 1.31).
                    "QDQDisableWeightAdjustForInt32Bias": True,
                },
            )
    except Exception as error:  # whatever an unusual graph may raise
        detail = client_detail(error, source.path, source.root, prepared)
        raise ModelError(f"precision: the model cannot be quantised: {detail}") from None


def _raise_opset(path: Path, raised: Path) -> bool:
    """Write the model with an opset that has scales for each channel. Returns whether that was
    possible; otherwise it is written as it is."""
    import onnx
    from onnx import version_converter

    model = onnx.load(path)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    is_new = opsets.get("", 0) >= _CHANNELS_SINCE
    if not is_new:
        with suppress(Exception):  # whatever an operator without a conversion may raise
            model, is_new = version_converter.convert_version(model, _CHANNELS_SINCE), True
    onnx.save(model, raised)
    return is_new


def _rows(runner: ModelRunner, source: ModelSource) -> Iterator[dict[str, Any]]:
    """Every second sample as inputs of the model's file, one row at a time. `find_agreement` takes
    the others."""
    samples = runner.synthetic_rows()
    shapes, generator = runner.row_shapes, np.random.default_rng(0)
    for first in range(0, samples.sample_count, 2)[:MOST_SAMPLES]:
        arrays = samples.arrays(shapes, 1, generator, first=first)
        if not runner.interface.batches:
            arrays = {name: array.reshape(shapes[name]) for name, array in arrays.items()}
        yield runner.converted(arrays)
