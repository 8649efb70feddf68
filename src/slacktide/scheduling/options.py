"""Options that are chosen by name: of a policy here, of a planner in `scaling`.

Options are the fields of a frozen dataclass; their types are checked here and their ranges in its
`__post_init__`, so that configuration, command line and tests get the same sentence for the same
mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Entry = TypeVar("Entry")


def entry_named(
    kind: str, name: str, entries: Mapping[str, Entry], error: type[ValueError]
) -> Entry:
    """The entry called `name`. Raises `error`, with the nearest name, if there is none."""
    try:
        return entries[name]
    except KeyError:
        raise error(f"unknown {kind} {name!r}; {_nearest(name, entries)}") from None


def checked_options(
    what: str, options: type[Any], values: Mapping[str, object], error: type[ValueError]
) -> Any:
    """The `options` object of `what` (such as `scheduler 'slack'`), defaults filled in.

    Raises `error` if an option is unknown (with the nearest one that exists) or a value is of the
    wrong type or out of range.
    """
    types = get_type_hints(options)
    found: dict[str, object] = {}
    for key, value in values.items():
        if key not in types:
            raise error(f"{what} has no option {key!r}; {_nearest(key, types)}")
        found[key] = _typed(f"option {key!r} of {what}", value, types[key], error)
    try:
        return options(**found)
    except ValueError as problem:
        raise error(f"{what}: {problem}") from problem


def _nearest(name: str, known: Iterable[str]) -> str:
    """What to type instead of `name`."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {close[0]!r}? (there are: {listed})" if close else f"there are: {listed}"


def _typed(what: str, value: object, hint: Any, error: type[ValueError]) -> object:
    """`value` as the annotation `hint` asks for. Raises `error` if it cannot be that."""
    if isinstance(hint, UnionType):
        if value is None:
            return None
        (hint,) = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            raise error(f"{what} must be one of {', '.join(choices)}; got {value!r}")
        return value
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise error(f"{what} must be a list, got {value!r}")
        return tuple(_typed(what, item, get_args(hint)[0], error) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise error(f"{what} must be of type {hint.__name__}, got {value!r}")
    return value
