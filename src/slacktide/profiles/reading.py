"""Checks of plain data from a file. Each raises ProfileError, naming the field.

Strict on purpose: a profile decides which requests are answered, so a file that is almost right is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar


class ProfileError(ValueError):
    """An invalid table, file or argument. The message names the field."""


T = TypeVar("T")
_LARGEST = math.nextafter(math.inf, 0.0)


def mapping(value: object, name: str, keys: Sequence[str]) -> Mapping[str, object]:
    """An object with exactly these keys."""
    if not isinstance(value, Mapping):
        raise ProfileError(f"{name}: expected an object")
    missing = [key for key in keys if key not in value]
    unknown = [str(key) for key in value if key not in keys]
    if missing:
        raise ProfileError(f"{name}: missing {', '.join(missing)}")
    if unknown:
        raise ProfileError(f"{name}: unknown {', '.join(unknown)}")
    return value


def schema(value: object, supported: int, name: str) -> None:
    if value != supported or isinstance(value, bool):
        raise ProfileError(f"{name}: this version reads {supported}, got {value!r}; profile again")


def text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ProfileError(f"{name}: expected a string")
    return value


def number(value: object, name: str) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):  # larger than any float
            return float(value)
    if isinstance(value, float) and abs(value) <= _LARGEST:
        return value
    raise ProfileError(f"{name}: expected a finite number, got {value!r}")


def fraction(value: object, name: str) -> float:
    """A number from 0 to 1."""
    if not 0.0 <= number(value, name) <= 1.0:
        raise ProfileError(f"{name}: expected a number from 0 to 1, got {value!r}")
    return number(value, name)


def whole_number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"{name}: expected a whole number, got {value!r}")
    return value


def items(value: object, name: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    """A list, each element read with `read`."""
    if not isinstance(value, list | tuple):
        raise ProfileError(f"{name}: expected a list")
    return tuple(read(item, f"{name}[{index}]") for index, item in enumerate(value))


def whole_numbers(value: object, name: str) -> tuple[int, ...]:
    return items(value, name, whole_number)


def rows(value: object, name: str, read: Callable[[object, str], T]) -> tuple[tuple[T, ...], ...]:
    """A list of lists."""
    return items(value, name, lambda row, where: items(row, where, read))


def entries(value: object, name: str, read: Callable[[object, str], T]) -> dict[str, T]:
    """An object with any keys, each value read with `read`."""
    if not isinstance(value, Mapping):
        raise ProfileError(f"{name}: expected an object")
    return {text(key, name): read(item, f"{name}.{key}") for key, item in value.items()}
