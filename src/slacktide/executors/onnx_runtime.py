"""Loads ONNX Runtime, chooses its execution providers, and interprets its errors.

The choice and the interpretation are pure functions, so that they can be tested without an
accelerator. Clients see an error as one short line, without paths, host names or traces.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Sequence
from enum import Enum
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, TensorSpec

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

Provider = tuple[str, dict[str, str]]
"""Name and options, as `InferenceSession` takes them."""


class ModelError(Exception):
    """The model can never be served. `str()` may be shown to clients."""


class FunctionError(Exception):
    """A function that the operator supplied raised an exception, or returned a wrong result."""


class ProviderMissingError(ModelError):
    """The installed ONNX Runtime lacks a requested provider."""


def load_onnxruntime() -> ModuleType:
    """Import onnxruntime with its telemetry off.

    Official builds (since about 1.25, see its Privacy.md) send telemetry and keep a thread for it.
    A server must not do so unasked, and a process that forks must not have the thread.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def choose_providers(
    requested: Sequence[str], device: str, available: Sequence[str]
) -> tuple[Provider, ...]:
    """Execution providers, best first, CPU last.

    `requested` are the model's providers (ONNX Runtime's names, or `cuda`, `tensorrt`, `cpu`). All
    of these must be available. If none is requested, the lane's `device` decides: CUDA for
    `cuda:1`, the CPU for `cpu`. TensorRT is only used on request, because it takes minutes to build
    engines. Raises ProviderMissingError.
    """
    kind, _, number = device.partition(":")
    if requested:
        names = [_full_name(name, available) for name in requested]
    else:
        names = [CUDA] if kind == "cuda" else []
    for name in names:
        if name != CPU and name not in available:
            raise ProviderMissingError(
                f"{name} is requested, but this onnxruntime has only {', '.join(available)}"
            )
    ordered = [name for name in dict.fromkeys(names) if name != CPU]
    options = {"device_id": number or "0"}
    accelerated: list[Provider] = [
        (name, dict(options) if name in (CUDA, TENSORRT) else {}) for name in ordered
    ]
    return (*accelerated, (CPU, {}))


def check_number(device: str, *, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> None:
    """Raise ProviderMissingError if the driver's folder `gpus` does not list this GPU.

    Does nothing without such a folder: opening a session then shows whether the GPU exists.
    """
    number = device.partition(":")[2]
    if number.isdecimal() and gpus.is_dir():
        count = len(os.listdir(gpus))
        if int(number) >= count:
            raise ProviderMissingError(f"device {device} is requested, but there are {count} GPUs")


def check_taken(chosen: Sequence[Provider], session: Any) -> None:
    """Raise ProviderMissingError if the session lacks a chosen provider: ONNX Runtime falls back
    silently if it cannot load a provider's libraries."""
    active = session.get_providers()
    for name, _ in chosen:
        if name not in active:
            raise ProviderMissingError(
                f"{name} is requested, but its libraries could not be loaded"
            )


def _full_name(name: str, available: Sequence[str]) -> str:
    folded = name.lower().removesuffix("executionprovider")
    for provider in (CPU, CUDA, TENSORRT, *available):
        if provider.lower().removesuffix("executionprovider") == folded:
            return provider
    return name


log = logging.getLogger("slacktide.models")

_LIMIT = 512
_BEGINNING = 160
"""Characters kept at the beginning of a text that is cut."""
_MOST_READ = 8192
_MOST_LOGGED = 64
_logged: set[str] = set()
"""Details whose full text has been logged. Each is logged once, since clients can cause any number
of errors."""
_PATH = re.compile(r"(?<!Name:')(?<![\w.:/])/(?:[\w.+@~-]+/)+[\w.+@~-]*")
"""An absolute path of at least two parts. Node names of Torch look like paths
(`Name:'/layer1/Conv'`) but stay."""
_MEMORY = re.compile(
    r"bad_alloc|failed to allocate memory|out ?of ?memory|alloc(ation)?_failed", re.I
)
_CALL = re.compile(r"\b[A-Z][A-Z_]+ failure -?\d+: [^;\n]*[^;\s]")
"""A failed call to CUDA or its libraries, up to `; GPU=0 ; hostname=…`
(onnxruntime/core/providers/cuda/cuda_call.cc)."""
_TELLTALE = re.compile(r"\s*;\s*(?:GPU|hostname|file|line|expr)=.*")
_PLACE = re.compile(r"(?:/\S*/)?[\w+-]+\.(?:cc|cpp|cuh?|h|hpp|inc):\d+\s+")
"""A place in source code, such as `/onnxruntime_src/core/graph/model.cc:256`, before a function."""
_SIGNATURE = re.compile(r"[\w:<>,&*~\s\[\]]*?::(?:operator\W+|~?[\w<>]+\s*)\(")
"""The beginning of a C++ signature, up to its first parenthesis."""
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:::~?\w+)*(?:\(\))?(?:\s+|$)")
_QUALIFIERS = re.compile(r"(?:\s*(?:const\b|noexcept\b|\[with [^\]]*\]|::<lambda\([^)]*\)>))*\s*")
_TRACE = re.compile(r"\s*(?:Stack ?trace|Traceback|#?\d+\b|at |in |File |0x|\*\*)", re.I)
"""The beginning of a line of a trace."""
_DEAD = re.compile(
    r"CUDA failure (?:4|46|77|100|201|214|220|226|700|702|709|71[04-9]|721|802|911|999):"
    r"|_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR)\b"
)
"""Errors after which only another process can use the device: cudaError_t values for which NVIDIA
says so, lost devices, and errors about the state of cuBLAS or cuDNN, not about an argument."""


class Fault(Enum):
    """The cause of an error."""

    MODEL = "the model's or its input's: the next batch may succeed"
    MEMORY = "lack of memory: a smaller batch may succeed"
    DEVICE = "the accelerator's: no batch will succeed in this process"


def fault_of(error: BaseException | str) -> Fault:
    """The cause of an error, judged by its text: ONNX Runtime has no error codes."""
    text = str(error)
    if isinstance(error, FunctionError):  # its text may quote a client's input
        return Fault.MODEL
    if isinstance(error, MemoryError) or _MEMORY.search(text):
        return Fault.MEMORY
    return Fault.DEVICE if _DEAD.search(text) else Fault.MODEL


def client_detail(error: BaseException | str, *private: Path) -> str:
    """The text of `error` for clients: one line of at most 512 characters, without paths, places in
    source code and C++ signatures. For a failed call to a device: the node, and the result of the
    call. Longer texts are cut in the middle, because the reason is at the end. The whole text is
    logged once.

    `private`: paths to remove everywhere, even with unusual characters.
    """
    if fault_of(error) is Fault.MEMORY:
        return "out of memory"
    whole = str(error).strip()
    if len(whole) > _MOST_READ:
        whole = f"{whole[: _MOST_READ // 2]}…{whole[-_MOST_READ // 2 :]}"
    detail = _shortened(whole, private) or (
        type(error).__name__ if isinstance(error, BaseException) else "unknown error"
    )
    is_cut = len(whole) > _LIMIT or _PLACE.search(whole) is not None
    if is_cut and detail not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(detail)
        log.warning("ONNX Runtime, in full: %s", " ".join(whole.split()))
    return detail


def _shortened(text: str, private: Sequence[Path]) -> str:
    calls = _CALL.findall(text)
    first, *other_lines = text.splitlines() or [""]
    text = " ".join((first, *(line.strip() for line in takewhile(_is_message_line, other_lines))))
    if calls:
        text = "".join(first.rpartition("Status Message: ")[:2]) + calls[-1]
    text = _without_signatures(_TELLTALE.sub("", text))
    for path in sorted({str(path) for path in private}, key=len, reverse=True):
        if path not in ("/", ".", ""):
            text = text.replace(path, "…")
    text = _PATH.sub("…", text).strip()
    if len(text) <= _LIMIT:
        return text
    return f"{text[:_BEGINNING]}…{text[len(text) - (_LIMIT - _BEGINNING - 1) :]}"


def _is_message_line(line: str) -> bool:
    return bool(line.strip()) and _TRACE.match(line) is None


def _without_signatures(text: str) -> str:
    """`text` without places in source code and the functions named after them."""
    parts, at = [], 0
    for place in _PLACE.finditer(text):
        if place.start() < at:
            continue
        parts.append(text[at : place.start()])
        at = place.end()
        while (signature := _SIGNATURE.match(text, at)) is not None:
            at = _QUALIFIERS.match(text, _closing(text, signature.end())).end()  # type: ignore[union-attr]
        if at == place.end() and (function := _FUNCTION.match(text, at)) is not None:
            at = function.end()
    return "".join((*parts, text[at:]))


def _closing(text: str, at: int) -> int:
    """The index after the parenthesis that closes the parenthesis just before `at`; the end of the
    text if it is never closed."""
    depth = 1
    while depth and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


_BF16_IN_ONNX = 16  # onnx.TensorProto.BFLOAT16


def to_value(array: NDArray[Any], spec: TensorSpec) -> Any:
    """Convert to an `OrtValue`, which supports bfloat16, unlike NumPy."""
    value = load_onnxruntime().OrtValue
    if spec.datatype is Datatype.BF16:
        return value.ortvalue_from_numpy_with_onnx_type(array, _BF16_IN_ONNX)
    return value.ortvalue_from_numpy(array)


def from_value(value: Any, spec: TensorSpec) -> NDArray[Any]:
    """Convert an `OrtValue` to an array."""
    if spec.datatype is not Datatype.BF16:
        array: NDArray[Any] = value.numpy()
        return array
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, np.uint16).reshape(value.shape())
