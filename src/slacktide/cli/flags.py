"""Turns the options of a class (`domain/options.py`) into flags of a verb."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from slacktide.cli.output import fail, option
from slacktide.domain.options import (
    Option,
    OptionError,
    Options,
    default_of,
    options_of,
    read_options,
)
from slacktide.domain.units import BYTES

Verb = TypeVar("Verb", bound=Callable[..., None])
OptionsT = TypeVar("OptionsT", bound=Options)

Glue = Annotated[
    list[str] | None,
    typer.Option(
        "--glue",
        metavar="NAME=TARGET",
        help="NAME=MODULE:FUNCTION (or class) that settings may name, as with slacktide serve; "
        "may be given several times.",
    ),
]
"""The option for verbs that read a repository without serving it."""

_METAVARS = {int: "N", float: "N", Path: "FILE"}


def with_flags(kind: type[Options], *, env: str = "", after: str = "") -> Callable[[Verb], Verb]:
    """Replace a verb's `**flags` by a flag for each option of `kind` that has a panel.

    `env`: prefix of the flags' environment variables; empty: the verb's prefix. `after`: the
    parameter that the flags follow; empty: the last one.
    """

    def decorate(verb: Verb) -> Verb:
        hints = get_type_hints(verb, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(verb).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        at = (
            [parameter.name for parameter in parameters].index(after) + 1
            if after
            else len(parameters)
        )
        parameters[at:at] = _parameters(kind, env)
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return verb

    return decorate


def _parameters(kind: type[Options], env: str) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for name, declared in options_of(kind).items():
        if not declared.panel:
            continue
        flag, type_ = flag_of(name, declared), _type(hints[name], declared)
        default = default_of(kind, name)
        if declared.unit is not None and default is not None:
            default = declared.unit.format(default)
        elif isinstance(default, tuple | dict):
            default = None
        switch = [f"--{flag}/--no-{flag}" if default else f"--{flag}"] if type_ is bool else []
        flag_option = option(
            declared.panel,
            declared.text,
            *switch,
            metavar=declared.metavar
            or (declared.unit.metavar if declared.unit else _METAVARS.get(type_)),
            envvar=f"{env}{flag.replace('-', '_').upper()}" if env else None,
            show_default=default not in (None, ""),
        )
        hint = type_ if default is not None else type_ | None
        yield inspect.Parameter(
            flag.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[hint, flag_option],
        )


def _type(hint: Any, declared: Option) -> Any:
    """The type for typer. Values with units and lists remain text until they are parsed."""
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if declared.repeated:
        return list[str]
    return hint if declared.unit is None and hint in (bool, int, float, Path) else str


def flag_of(name: str, declared: Option) -> str:
    """The flag of an option, without dashes."""
    return declared.flag or name.removesuffix("_s").replace("_", "-")


def offer_glue(pairs: Sequence[str] | None) -> None:
    """Register the functions that `--glue` names. Ends the program if one cannot be found."""
    from slacktide.models import plugins

    try:
        for name, target in _value(pairs or (), Mapping).items():
            plugins.offer_glue(name, str(target))
    except OptionError as error:
        fail("\nerror: ".join(f"--glue: {message}" for _, message in error.problems))
    except ValueError as error:
        fail(f"--glue: {error}")


def from_flags(kind: type[OptionsT], flags: Mapping[str, Any]) -> OptionsT:
    """Read options from flags. Ends the program, naming the flag, if one is invalid."""
    declared_options, hints = options_of(kind), get_type_hints(kind)
    values = {}
    for name, declared in declared_options.items():
        value = flags.get(flag_of(name, declared).replace("-", "_"))
        if value is None:
            continue
        if declared.unit is BYTES and str(value).isascii() and str(value).isdecimal():
            value = int(value)  # text, because sizes may have units
        try:
            values[name] = _value(value, get_origin(hints[name]))
        except ValueError as error:
            fail(_naming_flag(name, str(error), declared_options))
    try:
        return read_options(kind, values)
    except OptionError as error:
        fail(
            "\nerror: ".join(_naming_flag(*problem, declared_options) for problem in error.problems)
        )


def _value(value: Any, origin: Any) -> Any:
    """Convert a comma-separated list to a list, KEY=VALUE pairs to a mapping. Raises ValueError."""
    if origin is tuple and isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if origin is not Mapping:
        return value
    import yaml  # parses numbers, true and false

    mapping = {}
    for pair in value:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"expected KEY=VALUE, got {pair!r}")
        try:
            mapping[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            expected = "a number, true, false or text"
            raise ValueError(f"{key}: expected {expected}, got {text!r}") from None
    return mapping


def _naming_flag(name: str, message: str, options: Mapping[str, Option]) -> str:
    return f"--{flag_of(name, options[name])}: {message}" if name in options else message
