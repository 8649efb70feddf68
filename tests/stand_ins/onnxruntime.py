"""ONNX Runtime with two GPUs that are not there: sessions compute on the CPU and fail as CUDA does.

Put this folder on PYTHONPATH, and workers take it for onnxruntime; tests in one process use
`Runtime`. Only what Slacktide uses of a GPU is here. What a session does follows from its model's
path and from the first number of its inputs:

- a folder `huge`: not one row fits in memory; a folder `tight`: eight rows do; `full`: it cannot
  even be opened
- a number of `TEXTS`: the run raises that text; `STICKY` ones end the device for this process
- otherwise the outputs are those of the CPU plus 1000 × (number of the GPU)

The texts are those that users of onnxruntime-gpu have reported, with another host's name.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

GPUS = 2
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
HOST = "gpu-node-17"
_CALL = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:121 std::conditional_t<THRW, "
    "void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, "
    "ERRTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; bool THRW = true; "
    "std::conditional_t<THRW, void, onnxruntime::common::Status> = void] "
)
_NODE = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
    "MatMul node. Name:'/layer1/MatMul' Status Message: "
)


def failure(message: str, expression: str) -> str:
    """Of a call to CUDA, as onnxruntime/core/providers/cuda/cuda_call.cc says it."""
    file = "/onnxruntime_src/onnxruntime/core/providers/cuda/gpu_data_transfer.cc"
    return f"{message} ; GPU=0 ; hostname={HOST} ; file={file} ; line=73 ; expr={expression}; "


COPY = "cudaMemcpyAsync(dst_data, src_data, bytes, cudaMemcpyDeviceToHost, stream)"
ARENA = (
    _NODE + "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::"
    "BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, onnxruntime::"
    "WaitNotificationFn) Failed to allocate memory for requested buffer of size 2830172160"
)
INVALID = _NODE + _CALL + failure("CUDA failure 9: invalid configuration argument", COPY)
ILLEGAL = failure("CUDA failure 700: an illegal memory access was encountered", COPY)
LAUNCH = (
    "[ONNXRuntimeError] : 1 : FAIL : "
    + _CALL
    + failure("CUDA failure 719: unspecified launch failure", COPY)
)
UNAVAILABLE = _CALL + failure(
    "CUDA failure 46: all CUDA-capable devices are busy or unavailable",
    "cudaSetDevice(info_.device_id)",
)
MEMORY = (
    "[ONNXRuntimeError] : 1 : FAIL : "
    + _CALL
    + failure("CUDA failure 2: out of memory", "cudaStreamCreateWithFlags(&stream, 1)")
)
CUBLAS_MEMORY = _NODE + failure(
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "cublasCreate(&cublas_handle_)"
)
CUDNN_INTERNAL = _NODE + failure(
    "CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR", "cudnnCreate(&cudnn_handle_)"
)
CUDNN_PARAMETER = _NODE + failure(
    "CUDNN failure 3: CUDNN_STATUS_BAD_PARAM", "cudnnSetTensorNdDescriptor(tensor_)"
)
ENQUEUE = (
    "[ONNXRuntimeError] : 11 : EP_FAIL : Non-zero status code returned while running "
    "TRTKernel_graph node. Name:'TensorrtExecutionProvider_TRTKernel_0' Status Message: "
    "TensorRT EP execution context enqueue failed."
)
NO_SUCH = _CALL + failure(
    "CUDA failure 101: invalid device ordinal", "cudaSetDevice(info_.device_id)"
)

TEXTS = {2: MEMORY, 9: INVALID, 11: ENQUEUE, 700: ILLEGAL, 719: LAUNCH}
STICKY = (11, 700, 719)


class Runtime:
    """The real `onnxruntime` module, but for what is here."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._failed: dict[int, str] = {}
        self.error = real.capi.onnxruntime_pybind11_state.RuntimeException
        self.opened: list[tuple[list[Any], dict[str, Any]]] = []
        """Providers and further arguments of each session."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_available_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider", CUDA, CPU]

    def InferenceSession(  # noqa: N802  (its name)
        self, path: str, options: Any, *, providers: list[Any], **others: Any
    ) -> Any:
        self.opened.append((providers, others))
        session = self._real.InferenceSession(path, options, providers=[CPU])
        names = [name for name, _ in providers]
        if names == [CPU]:
            return session
        device = int(providers[0][1]["device_id"])
        if device >= GPUS:
            raise RuntimeError(NO_SUCH)
        if device in self._failed or "full" in Path(path).parts:
            raise RuntimeError(UNAVAILABLE if device in self._failed else CUBLAS_MEMORY)
        return Session(self, session, names, device, Path(path).parts)

    def failure(self, device: int) -> str | None:
        """What each call to the GPU says; None while it works."""
        return self._failed.get(device)

    def fail(self, device: int, text: str = CUDNN_INTERNAL) -> None:
        self._failed[device] = text


class Session:
    """An InferenceSession on a GPU."""

    def __init__(
        self, runtime: Runtime, real: Any, names: list[str], device: int, folders: tuple[str, ...]
    ) -> None:
        self._runtime, self._real, self._names, self._device = runtime, real, names, device
        self._room = 0 if "huge" in folders else 8 if "tight" in folders else 1 << 20

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_providers(self) -> list[str]:
        return self._names

    def run(self, outputs: Any, feeds: dict[str, Any], options: Any = None) -> list[Any]:
        error = self._runtime.error
        if (text := self._runtime.failure(self._device)) is not None:
            raise error(text)
        first = next(iter(feeds.values()))
        if len(first) > self._room:
            raise error(ARENA)
        for code, text in TEXTS.items():
            if (first == code).any():
                if code in STICKY:
                    self._runtime.fail(self._device, text if code == 11 else CUDNN_INTERNAL)
                raise error(text)
        return [array + 1000 * self._device for array in self._real.run(outputs, feeds, options)]


if __name__ == "onnxruntime":  # a worker imports it: give it the real one, with GPUs
    here = str(Path(__file__).parent)
    sys.path = [folder for folder in sys.path if folder != here]
    del sys.modules["onnxruntime"]
    sys.modules["onnxruntime"] = Runtime(importlib.import_module("onnxruntime"))  # type: ignore[assignment]
