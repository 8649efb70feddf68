"""`read_only`: slotted data classes for objects that are made once for each request.

The type checker forbids assignments to their fields, as if they were frozen. There is no check at
run time, which makes construction five times as fast (docs/decisions/0042-compiled-wheels.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def read_only(cls: type[T]) -> type[T]:
        """Make a slotted data class, compared and hashed by its fields, which never change."""

else:
    read_only = dataclass(slots=True, unsafe_hash=True)
