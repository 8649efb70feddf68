"""`OpenVinoSession`: a model opened in OpenVINO instead of ONNX Runtime.

OpenVINO takes the number of threads from the cores that a process may use when it is loaded, and
sets the cores of its threads again in every run. A worker's cores are the server's to choose, and
change while the model is open. So OpenVINO is loaded while the process may use all cores, and a
worker then refuses to change cores itself (kept_cores.py).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slacktide.executors.onnx_runtime import ModelError

_TYPES: Final = {
    "f16": "float16",
    "f32": "float",
    "f64": "double",
    "boolean": "bool",
    **{
        f"{kind}{bits}": f"{name}{bits}"
        for kind, name in (("i", "int"), ("u", "uint"))
        for bits in (8, 16, 32, 64)
    },
}
"""ONNX's names of element types by OpenVINO's."""
PRECISIONS: Final[Mapping[str, str]] = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}
"""OpenVINO's precision hint by `precision`. An int8 file says itself which layers are quantised."""


class CancelOptions:
    """Implements the part of ONNX Runtime's RunOptions that workers use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: Any = None
        self._is_cancelled = False

    @property
    def terminate(self) -> bool:
        """Whether the run was told to stop. May be set from any thread."""
        return self._is_cancelled

    @terminate.setter
    def terminate(self, stop: bool) -> None:
        with self._lock:
            self._is_cancelled = stop
            if stop and self._request is not None:
                self._request.cancel()

    def started(self, request: Any) -> None:
        """Take a request that has started; None: it has ended."""
        with self._lock:
            self._request = request
            if self._is_cancelled and request is not None:
                request.cancel()


class OpenVinoSession:
    """Implements the part of ONNX Runtime's InferenceSession that a `ModelSession` uses."""

    def __init__(self, model: bytes | Path, threads: int, precision: str) -> None:
        """`precision`: a key of `PRECISIONS`. Raises ModelError if OpenVINO cannot run the model
        here, and MemoryError."""
        core = load_openvino()
        if precision == "bf16" and "BF16" not in core.get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        ):
            raise ModelError("precision: this processor has no bfloat16")
        settings = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
            "INFERENCE_NUM_THREADS": max(1, threads),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
        try:
            opened = core.read_model(model if isinstance(model, bytes) else str(model))
            self._compiled = core.compile_model(opened, "CPU", settings)
            self._request = self._compiled.create_infer_request()
        except Exception as error:  # OpenVINO's errors have no other common base
            raise _plain(error, "OpenVINO cannot open the model: ", ModelError) from None
        self._inputs = [_argument(port) for port in self._compiled.inputs]
        self._outputs = [_argument(port) for port in self._compiled.outputs]
        self._numbers = {output.name: at for at, output in enumerate(self._outputs)}

    def get_inputs(self) -> Sequence[SimpleNamespace]:
        """Names, axes and types of the inputs."""
        return self._inputs

    def get_outputs(self) -> Sequence[SimpleNamespace]:
        """Names, axes and types of the outputs."""
        return self._outputs

    def run(
        self,
        outputs: Sequence[str],
        feeds: Mapping[str, NDArray[Any]],
        options: CancelOptions | None = None,
    ) -> list[NDArray[Any]]:
        """Run the model. Raises RuntimeError, whose text has `terminated` if `options` stopped
        the run, and MemoryError."""
        request, options = self._request, options or CancelOptions()
        arrays = {
            at: np.ascontiguousarray(feeds[argument.name])
            for at, argument in enumerate(self._inputs)
            if argument.name in feeds
        }
        try:
            # The request computes in a thread of OpenVINO, so `cancel` reaches it.
            request.start_async(arrays, share_inputs=True)
            options.started(request)
            request.wait()
            return [
                np.array(request.get_output_tensor(self._numbers[name]).data) for name in outputs
            ]
        except Exception as error:  # as above
            if options.terminate:
                raise RuntimeError("terminated") from None
            raise _plain(error, "", RuntimeError) from None
        finally:
            options.started(None)


def _argument(port: Any) -> SimpleNamespace:
    """An input or output, as ONNX Runtime describes them. Raises ModelError."""
    name = port.node.friendly_name.removesuffix("/sink_port_0")
    if name not in port.names:
        name = port.any_name
    kind = port.element_type.get_type_name()
    if kind not in _TYPES:
        raise ModelError(f"{name!r} has the type {kind}, which backend: openvino does not serve")
    axes = [axis.get_length() if axis.is_static else None for axis in port.partial_shape]
    return SimpleNamespace(name=name, shape=axes, type=f"tensor({_TYPES[kind]})")


def _plain(error: Exception, before: str, kind: type[Exception]) -> Exception:
    """An error with the last lines of OpenVINO's text, which begins with places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Exception from ")]
    text = " ".join(reasons) or type(error).__name__
    if "bad_alloc" in text:
        return MemoryError(text)
    return kind(f"{before}{text}")


@cache
def load_openvino() -> Any:
    """Import OpenVINO, once in a process. Returns its `Core`. Raises ModelError if it is not
    installed."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        try:
            # The converter, which we do not need, reports every import to its makers.
            sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
            import openvino
            from openvino import opset8
        except ImportError:
            raise ModelError(
                "backend: openvino is not installed; pip install 'slacktide[openvino]'"
            ) from None
        core = openvino.Core()
        # The first run starts the threads, as many as there are cores then.
        scalar = opset8.parameter([1], np.float32)
        first = core.compile_model(openvino.Model([opset8.relu(scalar)], [scalar]), "CPU")
        first.create_infer_request().infer([np.zeros(1, np.float32)])
        return core
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
