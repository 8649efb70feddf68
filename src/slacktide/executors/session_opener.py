"""`SessionOpener`: opens a model, or a stage cut out of it, in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slacktide.executors.functions import FunctionSession
from slacktide.executors.onnx_runtime import (
    Fault,
    ModelError,
    Provider,
    check_taken,
    client_detail,
    fault_of,
    load_onnxruntime,
)
from slacktide.executors.openvino_session import CancelOptions, OpenVinoSession
from slacktide.executors.ports import ModelSource


@dataclass(frozen=True, slots=True)
class SessionOpener:
    """Opens sessions of one model, all with the same settings."""

    source: ModelSource
    providers: tuple[Provider, ...]
    free: bool
    """Whether clients choose axes of the inputs other than the number of rows."""
    shared_arena: bool
    image_sizes: Sequence[tuple[int, int]]
    """Heights and widths that the model's file names."""
    content: bytes | None = None
    """Content to open instead of the file."""
    path: Path | None = None
    """Path of the file, next to its external data."""

    def open(self, threads: int) -> Any:
        """An InferenceSession, or its counterpart for a function. Raises ModelError, or ONNX
        Runtime's own error if memory is short or a device fails: another try may succeed."""
        source, path = self.source, str(self.path)
        if source.function is not None:
            return FunctionSession(source.function, max(threads, *source.threads, 1))
        if self.uses_openvino:
            return OpenVinoSession(self.content or Path(path), threads, source.precision)
        # With a fallback, a model whose device fails would continue on the CPU.
        chosen = {"providers": list(self.providers), "enable_fallback": 0}
        try:
            session = load_onnxruntime().InferenceSession(
                self.content or path, self._options(threads), **chosen
            )
        except Exception as error:  # ONNX Runtime's errors have no other common base
            if fault_of(error) is not Fault.MODEL:
                raise
            private = (Path(path), source.path, source.path.resolve(), source.root)
            detail = client_detail(error, *private)
            raise ModelError(f"the model cannot be opened: {detail}") from None
        check_taken(self.providers, session)
        return session

    def open_stage(self, model: bytes, threads: int, *, optimised: bool) -> Any:
        """A session of a part of the model. `optimised`: the part comes from `optimise`, and is not
        optimised again. Raises the backend's own errors."""
        if self.uses_openvino:
            return OpenVinoSession(model, threads, self.source.precision)
        options = self._options(threads)
        if optimised:
            level = load_onnxruntime().GraphOptimizationLevel
            options.graph_optimization_level = level.ORT_DISABLE_ALL
        return load_onnxruntime().InferenceSession(
            model, options, providers=list(self.providers), enable_fallback=0
        )

    @property
    def uses_openvino(self) -> bool:
        return self.source.backend == "openvino"

    @property
    def on_accelerator(self) -> bool:
        return len(self.providers) > 1

    @property
    def optimises(self) -> bool:
        """Whether `optimise` is possible. Accelerators and OpenVINO do not expose the optimised
        model."""
        return not self.on_accelerator and not self.uses_openvino

    @property
    def run_options(self) -> Callable[[], Any]:
        """Makes an object to pass to `run`, whose `terminate` stops the run when it is set."""
        return CancelOptions if self.uses_openvino else load_onnxruntime().RunOptions

    def optimise(self, model: bytes) -> bytes:
        """The model as ONNX Runtime runs it here: operators fused, weights in blocked layouts.
        Raises ONNX Runtime's own errors."""
        fd = os.memfd_create("slacktide-optimised", os.MFD_CLOEXEC)
        with open(fd, "rb") as file:
            options = self._options(1)
            options.optimized_model_filepath = f"/proc/self/fd/{fd}"
            load_onnxruntime().InferenceSession(model, options, providers=list(self.providers))
            return file.read()

    def _options(self, threads: int) -> Any:
        onnxruntime = load_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads)
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.shared_arena:
            options.add_session_config_entry("session.use_env_allocators", "1")
        options.log_severity_level = 4
        # ONNX Runtime keeps a memory pattern for every combination of input shapes for ever.
        # Patterns could fill the memory if clients choose axes other than the number of rows.
        options.enable_mem_pattern = not self.free
        return options
