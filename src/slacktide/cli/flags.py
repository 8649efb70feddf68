"""A verb's flags from the options of a class (`domain/options.py`): stated there, once."""

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
        help="NAME=MODULE:FUNCTION of a function that pipelines and models name, as of slacktide "
        "serve; may be given several times.",
    ),
]
"""Of the verbs that read a repository without serving it."""

_METAVARS = {int: "N", float: "N", Path: "FILE"}


def with_flags(kind: type[Options], *, env: str = "", after: str = "") -> Callable[[Verb], Verb]:
    """Give a verb a flag for each option of `kind` that has a panel, in place of its `**given`.

    `env` opens the names of their environment variables, if they are not to be those of the verb;
    `after` is the parameter behind which they stand.
    """

    def decorate(verb: Verb) -> Verb:
        hints = get_type_hints(verb, include_extras=True)
        own = [
            each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for each in inspect.signature(verb).parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        at = [each.name for each in own].index(after) + 1 if after else len(own)
        own[at:at] = _parameters(kind, env)
        verb.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # typer asks for it
        verb.__annotations__ = {each.name: each.annotation for each in own}
        return verb

    return decorate


def _parameters(kind: type[Options], env: str) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for name, each in options_of(kind).items():
        if not each.panel:
            continue
        flag, type_ = flag_of(name, each), _type(hints[name], each)
        default = default_of(kind, name)
        if each.unit is not None and default is not None:
            default = each.unit.format(default)
        elif isinstance(default, tuple | dict):
            default = None
        switch = [f"--{flag}/--no-{flag}" if default else f"--{flag}"] if type_ is bool else []
        made = option(
            each.panel,
            each.text,
            *switch,
            metavar=each.metavar or (each.unit.metavar if each.unit else _METAVARS.get(type_)),
            envvar=f"{env}{flag.replace('-', '_').upper()}" if env else None,
            show_default=default not in (None, ""),
        )
        hint = type_ if default is not None else type_ | None
        yield inspect.Parameter(
            flag.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[hint, made],
        )


def _type(hint: Any, each: Option) -> Any:
    """What typer makes of the text: values with units and lists stay text until they are read."""
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if each.repeated:
        return list[str]
    return hint if each.unit is None and hint in (bool, int, float, Path) else str


def flag_of(name: str, each: Option) -> str:
    """The flag of an option, without its dashes."""
    return each.flag or name.removesuffix("_s").replace("_", "-")


def offer_glue(given: Sequence[str] | None) -> None:
    """Have names of `Glue` mean these functions. Ends the program if there is no such."""
    from slacktide.models import plugins

    try:
        for name, target in _value(given or (), Mapping).items():
            plugins.offer_glue(name, str(target))
    except OptionError as error:
        fail("\nerror: ".join(f"--glue: {told}" for _, told in error.problems))
    except ValueError as error:
        fail(f"--glue: {error}")


def from_flags(kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """The options that the flags state. Ends the program, naming a flag, if they cannot be."""
    known, hints = options_of(kind), get_type_hints(kind)
    values = {}
    for name, each in known.items():
        value = given.get(flag_of(name, each).replace("-", "_"))
        if value is None:
            continue
        if each.unit is BYTES and str(value).isascii() and str(value).isdecimal():
            value = int(value)  # a text here, since sizes may have units
        try:
            values[name] = _value(value, get_origin(hints[name]))
        except ValueError as error:
            fail(_naming_flag(name, str(error), known))
    try:
        return read_options(kind, values)
    except OptionError as error:
        fail("\nerror: ".join(_naming_flag(*problem, known) for problem in error.problems))


def _value(given: Any, origin: Any) -> Any:
    """A list with commas as a list, KEY=VALUE pairs as a mapping. Raises ValueError."""
    if origin is tuple and isinstance(given, str):
        return [word.strip() for word in given.split(",") if word.strip()]
    if origin is not Mapping:
        return given
    import yaml  # a number, true, false or a word

    found = {}
    for pair in given:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"expected KEY=VALUE, got {pair!r}")
        try:
            found[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            what = "a number, true, false or text"
            raise ValueError(f"{key}: expected {what}, got {text!r}") from None
    return found


def _naming_flag(name: str, told: str, known: Mapping[str, Option]) -> str:
    return f"--{flag_of(name, known[name])}: {told}" if name in known else told
