from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slacktide.executors.onnx_runtime import (
    CPU,
    CUDA,
    TENSORRT,
    ProviderMissingError,
    check_number,
    check_taken,
    choose_providers,
)

OPENVINO = "OpenVINOExecutionProvider"
ALL = (TENSORRT, CUDA, CPU)


@pytest.mark.parametrize(
    ("wanted", "device", "available", "chosen"),
    [
        ((), "cpu", ALL, [CPU]),
        ((), "cuda", ALL, [CUDA, CPU]),
        (("cpu",), "cuda:0", ALL, [CPU]),
        (("tensorrt", "CUDA", CPU), "cuda:0", ALL, [TENSORRT, CUDA, CPU]),
        (("cuda", CUDA), "cuda:0", ALL, [CUDA, CPU]),
        (("openvino",), "cpu", (OPENVINO, CPU), [OPENVINO, CPU]),
    ],
)
def test_choice(
    wanted: tuple[str, ...], device: str, available: tuple[str, ...], chosen: list[str]
) -> None:
    assert [name for name, _ in choose_providers(wanted, device, available)] == chosen


def test_the_devices_number_goes_to_the_accelerators_only() -> None:
    assert choose_providers(("tensorrt", "cuda"), "cuda:1", ALL) == (
        (TENSORRT, {"device_id": "1"}),
        (CUDA, {"device_id": "1"}),
        (CPU, {}),
    )


@pytest.mark.parametrize(
    ("wanted", "device"), [(("cuda",), "cuda:0"), ((), "cuda:0"), (("X",), "cpu")]
)
def test_missing_providers_are_named(wanted: tuple[str, ...], device: str) -> None:
    with pytest.raises(
        ProviderMissingError, match=rf"{'X' if wanted == ('X',) else CUDA} is requested"
    ):
        choose_providers(wanted, device, (CPU,))


def test_a_quiet_fallback_is_found_out() -> None:
    class Session:
        def get_providers(self) -> list[str]:
            return [CPU]

    check_taken(((CPU, {}),), Session())
    with pytest.raises(ProviderMissingError, match="libraries could not be loaded"):
        check_taken(((CUDA, {}), (CPU, {})), Session())


def test_a_gpu_beyond_those_of_the_driver_is_refused(tmp_path: Path) -> None:
    gpus = tmp_path / "gpus"
    check_number("cuda:999", gpus=gpus)  # no driver: opening a session will tell
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (gpus / bus).mkdir(parents=True)
    for device in ("cpu", "cuda", "cuda:1"):
        check_number(device, gpus=gpus)
    with pytest.raises(ProviderMissingError, match="cuda:2 is requested, but there are 2 GPUs"):
        check_number("cuda:2", gpus=gpus)


def test_importing_the_room_loads_no_runtime_and_loading_it_starts_no_thread() -> None:
    program = (
        "import os, sys, slacktide.executors\n"
        "from slacktide.executors.onnx_runtime import load_onnxruntime\n"
        "assert 'onnxruntime' not in sys.modules and 'onnx' not in sys.modules\n"
        "load_onnxruntime()\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
