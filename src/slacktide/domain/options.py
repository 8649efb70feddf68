"""Options: settings declared as fields of a class.

    @dataclass(frozen=True, slots=True)
    class MyOptions(Options):
        window: float = option(10.0, "Length of the window for the rate.", unit=SECONDS, above=0)
        share: float = option(0.5, "Share that stays free.", least=0, most=1, aliases=("s",))

Each field provides the check of bounds that runs whenever an instance is made, the key in a file
and the KEY=VALUE on a command line (`read_options`), the flag of a verb (`cli/flags.py`), the
printed form (`written`), and the row in the manual (tests/docs). Rules between fields belong in the
method `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from slacktide.domain.suggestions import nearest, shown, suggestion
from slacktide.domain.units import Unit

OptionsT = TypeVar("OptionsT", bound="Options")

_KEY = "option"


class OptionError(ValueError):
    """Invalid options. `problems` are pairs (option, what was expected); the option is empty for a
    rule between several options."""

    def __init__(self, *problems: tuple[str, str], subject: str = "") -> None:
        text = "; ".join(f"{name}: {message}" if name else message for name, message in problems)
        super().__init__(f"{subject}: {text}" if subject else text)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Option:
    """Description of one option, in addition to its name, type and default."""

    text: str
    """One sentence about its effect, for the manual and the help."""
    unit: Unit | None = None
    least: int | float | None = None
    most: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None
    aliases: tuple[str, ...] = ()
    """Further names in files and on command lines: a paper's letter, a former name."""
    flag: str = ""
    """The option's flag; empty: the option's name with hyphens, without a final `_s`."""
    panel: str = ""
    """Section of the help that lists its flag; empty: it has no flag."""
    metavar: str = ""
    repeated: bool = False
    """Whether the flag may be given several times."""

    def bounds(self) -> str:
        """The bounds in words: `0 to 1`, `more than 0`; empty if there are none."""
        shown = self.unit.format if self.unit is not None else lambda value: f"{value:g}"
        if self.least is not None and self.most is not None:
            return f"{shown(self.least)} to {shown(self.most)}"
        words = [("at least", self.least), ("more than", self.above)]
        words += [("at most", self.most), ("less than", self.below)]
        return " and ".join(f"{word} {shown(bound)}" for word, bound in words if bound is not None)

    def holds(self, value: float) -> bool:
        """Whether `value` is a finite number within the bounds."""
        return (
            isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def option(default: Any, text: str, **attributes: Any) -> Any:
    """Declare a field of an options class; `attributes` are fields of `Option`."""
    metadata = {_KEY: Option(text, **attributes)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class Options:
    """Base of every options class. Raises OptionError for values out of bounds."""

    __slots__ = ()

    def __post_init__(self) -> None:
        problems = []
        for name, spec in options_of(type(self)).items():
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and not spec.holds(number):
                    expected = spec.bounds() or "a finite number"
                    shown = spec.unit.format(number) if spec.unit and isfinite(number) else number
                    problems.append((name, f"expected {expected}, got {shown}"))
        if problems:
            raise OptionError(*problems)
        self.check()

    def check(self) -> None:
        """Check rules between fields. Raises OptionError."""


def options_of(kind: type[Any]) -> Mapping[str, Option]:
    """The options of a class by name, in their order; `Options` itself has none."""
    if kind is Options:
        return {}
    return {attr.name: attr.metadata[_KEY] for attr in fields(kind) if _KEY in attr.metadata}


def default_of(kind: type[Any], name: str) -> Any:
    """The default of an option."""
    spec: Field[Any] = kind.__dataclass_fields__[name]
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def read_options(
    kind: type[OptionsT], values: Mapping[str, object], *, subject: str = "", bare: bool = True
) -> OptionsT:
    """Return the options of a document, with defaults for those it leaves out.

    `bare`: a quantity may also be a plain number (seconds, bytes), as in Python and in recordings;
    files that people write must name the unit. Raises OptionError with all problems; its text
    begins with `subject`.
    """
    spec, types = options_of(kind), get_type_hints(kind)
    names = {alias: name for name, spec in spec.items() for alias in (name, *spec.aliases)}
    options: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for key, value in values.items():
        name = names.get(key)
        if name is None:
            near = names if nearest(key, names) else spec
            problems.append((key, f"unknown key; {suggestion(key, near)}"))
        elif name in options:
            problems.append((key, f"stated twice: {name!r} is another name for it"))
        else:
            try:
                options[name] = _typed(value, types[name], spec[name].unit, bare)
            except ValueError as error:
                problems.append((key, str(error)))
    if not problems:
        try:
            return kind(**options)
        except OptionError as error:
            written = {names[key]: key for key in values}
            problems = [(written.get(name, name), message) for name, message in error.problems]
    raise OptionError(*problems, subject=subject)


def _typed(value: object, hint: Any, unit: Unit | None, bare: bool) -> Any:
    """Convert `value` to the annotation `hint`. Raises ValueError."""
    if isinstance(hint, UnionType):
        if value is None:
            return None
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ValueError(f"expected a list, got {shown(value)}")
        return tuple(_typed(item, get_args(hint)[0], unit, bare) for item in value)
    if unit is not None and not (bare and number):
        return unit.parse(value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            choices = " or ".join(map(repr, get_args(hint)))
            hinted = suggestion(str(value), map(str, get_args(hint)))
            raise ValueError(f"expected {choices}, got {shown(value)}; {hinted}")
        return value
    if hint is float and number:
        return float(value)  # type: ignore[arg-type]  # a number
    kind = get_origin(hint) or hint
    if not isinstance(value, kind) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"expected {_WORDS.get(hint, hint.__name__)}, got {shown(value)}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def plain(options: Options) -> dict[str, Any]:
    """Options by name as plain values: seconds, bytes, lists. `read_options` reads them back."""
    return {name: getattr(options, name) for name in options_of(type(options))}


def written(options: Options, names: Iterable[str]) -> dict[str, Any]:
    """The named options as a file states them, with units."""
    return {
        name: _with_unit(options_of(type(options))[name], getattr(options, name)) for name in names
    }


def _with_unit(spec: Option, value: Any) -> Any:
    if spec.unit is None or value is None:
        return list(value) if isinstance(value, tuple) else value
    return [*map(spec.unit.format, value)] if isinstance(value, tuple) else spec.unit.format(value)
