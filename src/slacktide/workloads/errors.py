"""The one error of this room."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload that cannot be: `field` names what is wrong, the text says what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def positive(field: str, value: float) -> None:
    """Raise WorkloadError unless 0 < value < ∞."""
    if not 0.0 < value < float("inf"):
        raise WorkloadError(field, f"must be positive and finite, got {value!r}")


def not_negative(field: str, value: float) -> None:
    """Raise WorkloadError unless 0 ≤ value < ∞."""
    if not 0.0 <= value < float("inf"):
        raise WorkloadError(field, f"must be finite and not negative, got {value!r}")
