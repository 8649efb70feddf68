"""`read_only`: slotted data classes for what is made once for each request.

The type checker lets no code assign to a field, as if they were frozen; at run time nothing guards
them, so that making one costs a fifth (docs/decisions/0042-compiled-wheels.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def read_only(cls: type[T]) -> type[T]:
        """A slotted data class, equal and hashed by its fields, which are not assigned to."""

else:
    read_only = dataclass(slots=True, unsafe_hash=True)
