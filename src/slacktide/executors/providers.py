"""ONNX Runtime itself: loading it, and choosing its execution providers.

The choice is a pure function, so that it is tested where there is no accelerator.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

Provider = tuple[str, dict[str, str]]
"""Name and options, as `InferenceSession` takes them."""


class ModelError(Exception):
    """This model cannot be served, and trying again cannot help. `str()` is fit for a client."""


class ProviderMissingError(ModelError):
    """A provider is wanted that this installation of ONNX Runtime does not have."""


def load_onnxruntime() -> ModuleType:
    """Import onnxruntime, with its telemetry off.

    Its official builds report home and keep a thread for that (since 1.25 or so, its Privacy.md).
    A server must not do so unasked, and a process that forks must not have the thread.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def choose_providers(
    wanted: Sequence[str], device: str, available: Sequence[str]
) -> tuple[Provider, ...]:
    """Execution providers, best first, CPU last.

    `wanted` are the model's own (names of ONNX Runtime, or short: `cuda`, `tensorrt`, `cpu`); each
    must be available. If it names none, the lane's `device` decides: `cuda:1` takes CUDA, `cpu` the
    CPU. TensorRT is never taken unasked, since it spends minutes building engines. Raises
    ProviderMissingError.
    """
    kind, _, number = device.partition(":")
    if wanted:
        names = [_full_name(name, available) for name in wanted]
    else:
        names = [CUDA] if kind == "cuda" else []
    for name in names:
        if name != CPU and name not in available:
            raise ProviderMissingError(
                f"{name} is wanted, but this onnxruntime only has {', '.join(available)}"
            )
    ordered = [name for name in dict.fromkeys(names) if name != CPU]
    options = {"device_id": number or "0"}
    accelerated: list[Provider] = [
        (name, dict(options) if name in (CUDA, TENSORRT) else {}) for name in ordered
    ]
    return (*accelerated, (CPU, {}))


def check_number(device: str, *, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> None:
    """Raise ProviderMissingError for a GPU beyond those that the driver lists in the folder `gpus`.

    Silent where there is no such folder: then only opening a session tells.
    """
    number = device.partition(":")[2]
    if number.isdecimal() and gpus.is_dir():
        count = len(os.listdir(gpus))
        if int(number) >= count:
            raise ProviderMissingError(f"device {device} is wanted, but there are {count} GPUs")


def check_taken(chosen: Sequence[Provider], session: Any) -> None:
    """Raise ProviderMissingError if the session quietly fell back: ONNX Runtime does so when a
    provider's libraries cannot be loaded."""
    taken = session.get_providers()
    for name, _ in chosen:
        if name not in taken:
            raise ProviderMissingError(f"{name} is wanted, but its libraries could not be loaded")


def _full_name(name: str, available: Sequence[str]) -> str:
    folded = name.lower().removesuffix("executionprovider")
    for known in (CPU, CUDA, TENSORRT, *available):
        if known.lower().removesuffix("executionprovider") == folded:
            return known
    return name
