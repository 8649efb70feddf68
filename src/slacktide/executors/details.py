"""Whose fault an error is, and what a client may read of it: one line, bounded, without paths, host
names or traces."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

_LIMIT = 300
_PATH = re.compile(r"(?<!Name:')(?<![\w.:/])/(?:[\w.+@~-]+/)+[\w.+@~-]*")
"""An absolute path of two parts or more. Torch names nodes like paths (`Name:'/layer1/Conv'`);
they are the model's own words and stay."""
_MEMORY = re.compile(
    r"bad_alloc|failed to allocate memory|out ?of ?memory|alloc(ation)?_failed", re.I
)
_CALL = re.compile(r"\b[A-Z][A-Z_]+ failure -?\d+: [^;\n]*[^;\s]")
"""What ONNX Runtime says of a call to CUDA or its libraries, before `; GPU=0 ; hostname=…`
(onnxruntime/core/providers/cuda/cuda_call.cc)."""
_TELLTALE = re.compile(r"\s*;\s*(?:GPU|hostname|file|line|expr)=.*")
_DEAD = re.compile(
    r"CUDA failure (?:4|46|77|100|201|214|220|226|700|702|709|71[04-9]|721|802|911|999):"
    r"|_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR)\b"
)
"""Only another process may use the device again: of cudaError_t those of which NVIDIA says so, and
lost devices; of cuBLAS and cuDNN what tells of the library's own state, not of an argument."""


class Fault(Enum):
    """Whose fault an error is."""

    MODEL = "the model's or its input's: the next batch may do"
    MEMORY = "memory was short: fewer rows may do"
    DEVICE = "the accelerator's: nothing more will do in this process"


def fault_of(error: BaseException | str) -> Fault:
    """Judged by the text, which is all that ONNX Runtime gives."""
    text = str(error)
    if isinstance(error, MemoryError) or _MEMORY.search(text):
        return Fault.MEMORY
    return Fault.DEVICE if _DEAD.search(text) else Fault.MODEL


def client_detail(error: BaseException | str, *private: Path) -> str:
    """The first line of `error` without paths, at most 300 characters; of a failed call to a
    device, the node and what the call returned.

    `private` are paths to be taken out wherever they stand, also those with unusual characters.
    """
    if fault_of(error) is Fault.MEMORY:
        return "out of memory"
    text = str(error).strip()
    calls = _CALL.findall(text)
    text = text.splitlines()[0] if text else ""
    if calls:
        text = "".join(text.rpartition("Status Message: ")[:2]) + calls[-1]
    text = _TELLTALE.sub("", text)
    for path in sorted({str(path) for path in private}, key=len, reverse=True):
        if path not in ("/", ".", ""):
            text = text.replace(path, "…")
    text = _PATH.sub("…", text).strip()
    if not text:
        text = type(error).__name__ if isinstance(error, BaseException) else "unknown error"
    return text if len(text) <= _LIMIT else text[: _LIMIT - 1] + "…"
