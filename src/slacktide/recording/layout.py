"""Converts dataclasses to JSON arrays, and back, by their type annotations.

An instance becomes the array of its fields in order: without names, since the header of a recording
states the layout once. Enums are written as their label. Floats are exact: JSON has the shortest
digits that read back as the same number. JSON has no infinity, so infinity is written as null; a
null in place of a number is read as infinity. (There is no NaN: values from clients are checked to
be finite.)

Codecs are made once for each type. Most fields are plain values, which one `attrgetter` collects in
C: writing an event costs a microsecond or two (bench/recording_cost.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin, get_type_hints

from slacktide.domain import Reason, Request


class RecordingError(Exception):
    """A recording that cannot be written or read; the text says what, where and why."""


class LayoutError(RecordingError):
    """A value that its field cannot hold, named as `Submitted.request.rows`."""


Encode = Callable[[Any], Any]
Decode = Callable[[Any, str], Any]
"""(plain value, its name) -> value; raises LayoutError with the name."""

_PLAIN = (int, float, str, bool, NoneType)


def names_of(type_: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass or a NamedTuple, in the order of the array."""
    if is_dataclass(type_):
        return tuple(field.name for field in fields(type_))
    return tuple(type_._fields)


def layout_of(types: Sequence[type[Any]]) -> dict[str, list[str]]:
    """Field names by type name, for `types` and all types in their fields."""
    fields_by_type: dict[str, list[str]] = {}

    def visit(hint: Any) -> None:
        if _is_record(hint):
            if hint.__name__ not in fields_by_type:
                fields_by_type[hint.__name__] = list(names_of(hint))
                for field_hint in get_type_hints(hint).values():
                    visit(field_hint)
        else:
            for part in get_args(hint):
                visit(part)

    for root in types:
        visit(root)
    return fields_by_type


@cache
def encoder(hint: Hashable) -> Encode | None:
    """Return a function that makes values of type `hint` plain; None if they already are."""
    if hint in _PLAIN:
        return None
    if isinstance(hint, type) and issubclass(hint, Reason):
        return attrgetter("label")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    if _is_record(hint):
        return record_encoder(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        (inner,) = [encoder(part) for part in parts if part is not NoneType]
        return None if inner is None else (lambda field: None if field is None else inner(field))
    if origin is tuple:
        encode = encoder(parts[0])
        return None if encode is None else (lambda values: [encode(member) for member in values])
    raise TypeError(f"no layout for {hint!r}")


def record_encoder(
    type_: type[Any], changed: Mapping[str, Encode] | None = None, left_out: Sequence[str] = ()
) -> Encode:
    """Return a function that encodes instances of a dataclass. `changed`: special encoders for some
    fields; `left_out`: fields to skip."""
    hints = get_type_hints(type_)
    names = [name for name in names_of(type_) if name not in left_out]
    encoders = [(changed or {}).get(name) or encoder(hints[name]) for name in names]
    if not names:
        return lambda value: ()
    if len(names) == 1:
        (get, (only,)) = (attrgetter(*names), encoders)
        return lambda value: (get(value) if only is None else only(get(value)),)
    every = attrgetter(*names)
    to_change = [(i, change) for i, change in enumerate(encoders) if change is not None]
    if not to_change:
        return every

    def encode(value: Any) -> list[Any]:
        plain = list(every(value))
        for i, change in to_change:
            plain[i] = change(plain[i])
        return plain

    return encode


def _is_record(hint: object) -> TypeGuard[type[Any]]:
    """Whether it is a dataclass or a NamedTuple."""
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, tuple))


class Decoders:
    """Decoders for plain values written with the fields `stated`, by type name. Other types have
    the fields of this version. Fields are matched by name; missing ones get their defaults."""

    def __init__(self, stated: Mapping[str, Sequence[str]]) -> None:
        self._stated = stated
        self._decoders: dict[Hashable, Decode] = {}

    def of(self, hint: Hashable) -> Decode:
        """The decoder for the type `hint`. Raises LayoutError for fields that no longer exist."""
        decode = self._decoders.get(hint)
        if decode is None:
            decode = self._decoders[hint] = self._make(hint)
        return decode

    def _make(self, hint: Hashable) -> Decode:
        if hint in _PLAIN:
            return _SCALARS[hint]
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _enum(hint)
        if _is_record(hint):
            return self._record(hint)
        origin, parts = get_origin(hint), get_args(hint)
        if origin in (UnionType, Union):
            (inner,) = [self.of(part) for part in parts if part is not NoneType]
            return lambda value, name: None if value is None else inner(value, name)
        if origin is tuple:
            return _tuple(self.of(parts[0]))
        raise TypeError(f"no layout for {hint!r}")

    def _record(self, type_: type[Any]) -> Decode:
        hints = get_type_hints(type_)
        names = tuple(self._stated.get(type_.__name__, names_of(type_)))
        unknown = [name for name in names if name not in hints]
        required = [name for name in names_of(type_) if name not in _defaults(type_)]
        unknown += [name for name in required if name not in names]
        if unknown:
            raise LayoutError(f"{type_.__name__}: fields differ: {', '.join(unknown)}")
        decoders = [(name, self.of(hints[name])) for name in names]
        in_order = names == names_of(type_)

        def decode(value: Any, name: str) -> Any:
            if not isinstance(value, list) or len(value) != len(decoders):
                raise LayoutError(f"{name}: expected {len(decoders)} values ({', '.join(names)})")
            parts = [
                read(element, f"{name}.{field}")
                for (field, read), element in zip(decoders, value, strict=True)
            ]
            try:
                whole = type_(*parts) if in_order else type_(**dict(zip(names, parts, strict=True)))
                if type_ is Request:
                    whole.check()
                return whole
            except ValueError as error:
                raise LayoutError(f"{name}: {error}") from None

        return decode


decoder = Decoders({}).of
"""Returns decoders of plain values that this version wrote."""


def _defaults(type_: type[Any]) -> set[str]:
    """The fields with a default."""
    if is_dataclass(type_):
        return {
            field.name
            for field in fields(type_)
            if field.default is not MISSING or field.default_factory is not MISSING
        }
    return set(type_._field_defaults)


def _enum(type_: type[Enum]) -> Decode:
    label = attrgetter("label" if issubclass(type_, Reason) else "value")
    members = {label(member): member for member in type_}

    def decode(value: Any, name: str) -> Enum:
        if isinstance(value, str) and value in members:
            return members[value]
        raise LayoutError(f"{name}: expected one of {', '.join(members)}, got {value!r}")

    return decode


def _tuple(inner: Decode) -> Decode:
    def decode(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise LayoutError(f"{name}: expected a list, got {value!r}")
        return tuple([inner(element, name) for element in value])

    return decode


def _just(type_: type[Any], expected: str) -> Decode:
    def decode(value: Any, name: str) -> Any:
        if type(value) is not type_:
            raise LayoutError(f"{name}: expected {expected}, got {value!r}")
        return value

    return decode


def _float(value: Any, name: str) -> float:
    if type(value) is float:
        return value
    if value is None:
        return math.inf
    if type(value) is not int:
        raise LayoutError(f"{name}: expected a number, got {value!r}")
    return float(value)


_SCALARS: Mapping[Any, Decode] = {
    int: _just(int, "a whole number"),
    float: _float,
    str: _just(str, "text"),
    bool: _just(bool, "true or false"),
    NoneType: _just(NoneType, "null"),
}
