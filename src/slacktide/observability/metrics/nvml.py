"""GPUs by NVIDIA's management library, where there is one; a few calls through ctypes.

No dependency: the library comes with the driver. Absent, or without a GPU: no GPUs, no metrics.
Names and layouts are those of nvml.h, which keeps them stable.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


class Gpu(NamedTuple):
    """One GPU; None where the device does not say."""

    uuid: str
    utilization: float | None
    """Share of time that a kernel ran, 0 to 1."""
    memory_total: int | None
    memory_used: int | None
    power_w: float | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """The library, opened once. Make it with `open_nvml`."""

    def __init__(self, library: Any) -> None:
        """`library` has been initialised."""
        self._library = library

    def gpus(self) -> tuple[Gpu, ...]:
        """What each GPU says now, about a millisecond for each."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        found = [self._gpu(index) for index in range(count.value)]
        return tuple(gpu for gpu in found if gpu is not None)

    def _gpu(self, index: int) -> Gpu | None:
        library = self._library
        device = ctypes.c_void_p()
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None
        if library.nvmlDeviceGetUUID(device, uuid, _UUID_BYTES):
            return None
        memory, utilization, milliwatts = _Memory(), _Utilization(), ctypes.c_uint()
        remembers = not library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        works = not library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization))
        weighs = not library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
        return Gpu(
            uuid.value.decode("ascii", "replace"),
            utilization.gpu / 100 if works else None,
            memory.total if remembers else None,
            memory.used if remembers else None,
            milliwatts.value / 1000 if weighs else None,
        )


def open_nvml() -> Nvml | None:
    """The library; None where there is no driver or it does not start."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2():
            return None
    except (OSError, AttributeError):
        return None
    return Nvml(library)
