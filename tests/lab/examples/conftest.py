"""Sessions of the example models, opened once for all tests of this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnxruntime
import pytest

from slacktide.lab.examples import example


@cache
def _session(name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        example(name).onnx(), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture(scope="session")
def open_session() -> Callable[[str], Any]:
    """Opens an example model, by name, in ONNX Runtime on one thread."""
    return _session
