"""`backend` and `precision` of a model or of a variant, and what they rule out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slacktide.models.repository.settings import ModelSettings

Backend = Literal["onnxruntime", "openvino", "auto"]
Precision = Literal["int8", "bf16", "fp32"]
PRECISIONS: tuple[Precision, ...] = ("int8", "bf16", "fp32")
"""From the least precise to the file's own."""


def by_precision(precisions: tuple[Precision, ...]) -> tuple[Precision, ...]:
    """Return `precisions` if they are in the order of `PRECISIONS`. Raises ValueError."""
    expected = tuple([name for name in PRECISIONS if name in precisions])
    if precisions != expected:
        raise ValueError(f"expected each once, least precise first: {', '.join(expected)}")
    return precisions


def check_backends(settings: ModelSettings) -> None:
    """Raise ValueError, which names the key, if a stated backend cannot run a stated precision, or
    if the model does not run in a worker on the CPU."""
    for key, backend, precision in _stated(settings):
        if precision == "bf16" and backend == "onnxruntime":
            raise ValueError(f"{key}precision: bf16 needs 'backend: openvino' or 'auto'")
        if backend == "onnxruntime" and precision == "fp32":
            continue
        name = "backend" if backend != "onnxruntime" else "precision"
        if not settings.on_cpu or settings.providers:
            raise ValueError(f"{key}{name}: expected the default on a GPU or with 'providers'")
        if settings.executor == "in_process":
            raise ValueError(f"executor: expected 'worker' with '{key}{name}'")
    variants = settings.variants
    if variants is not None and variants.precisions and settings.precision != "fp32":
        raise ValueError("precision: not allowed with 'variants.precisions'")


def _stated(settings: ModelSettings) -> Iterator[tuple[str, Backend, Precision]]:
    """Yield (beginning of the key, backend, precision) of the model and of its variants."""
    yield "", settings.backend, settings.precision
    if settings.variants is None:
        return
    for name, file in settings.variants.files.items():
        backend = file.backend or settings.backend
        yield f"variants.files.{name}.", backend, file.precision or settings.precision
    for precision in settings.variants.precisions:
        yield "variants.precisions: ", settings.backend, precision
