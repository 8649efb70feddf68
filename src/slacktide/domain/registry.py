"""`Registry`: classes that users choose by name, each with options: schedulers, policies.

A class declares its options as the attribute `Options` and is called with them. Built-in classes
are registered from the start. Others are added with `offer`, together with a function that loads
the class on first use: this package itself imports nothing by name (`slacktide.models.plugins`
does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from slacktide.domain.options import OptionError, Options, read_options
from slacktide.domain.suggestions import suggestion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registered(Generic[T]):
    """An entry: its options class, and the factory that is called with options."""

    name: str
    options: type[Options]
    make: Callable[..., T]
    built_in: bool = True


class Registry(dict[str, Registered[T]]):
    """Entries by name; `kind` says what they are, such as `scheduler`."""

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Callable[..., T]],
        *,
        options: type[Options] = Options,
        group: str = "",
        aliases: Mapping[str, str] | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        """`options`: base class of the options of every entry. `group`: the entry points with which
        packages register entries; empty: the plural of `kind`. `aliases`: further names in files
        and on command lines. `absent`: names that another of our distributions offers, each with
        the command that installs it."""
        self._options = options
        super().__init__({name: self._entry(name, factory) for name, factory in entries.items()})
        self.kind = kind
        self.group = group or f"{kind}s"
        self.importer: Callable[[str], Any] | None = None
        """Loads the class that `module:Class` names; None: such names are not allowed."""
        self._aliases = dict(aliases or {})
        self._absent = dict(absent or {})
        self._offers: dict[str, Callable[[], Any]] = {}

    def offer(self, name: str, load: Callable[[], Any]) -> None:
        """Register the class that `load` returns as `name`, unless a built-in entry has that name.
        `load` is called on first use; if it raises, the name is invalid."""
        if name not in self:
            self._offers[name] = load

    def names(self) -> list[str]:
        """Every valid name, whether or not it has been loaded."""
        return sorted({*self, *self._offers})

    def is_known(self, name: str) -> bool:
        """Whether the name is valid, or would be if another of our distributions were installed."""
        return self._aliases.get(name, name) in {*self, *self._offers, *self._absent}

    def find(self, name: str) -> Registered[T]:
        """The entry with this name. Raises OptionError if there is none or it does not load."""
        name = self._aliases.get(name, name)
        if ":" in name and self.importer is not None:
            self.offer(name, partial(self.importer, name))
        if name in self._offers:
            self[name] = self._loaded(name, self._offers[name])
            del self._offers[name]
        registered = self.get(name)
        if registered is not None:
            return registered
        if name in self._absent:
            message = f"{self.kind} {name!r} is not installed; install it with: "
            raise OptionError(("name", message + self._absent[name]))
        hint = suggestion(name, self.names())
        article = "an" if self.kind[0] in "aeiou" else "a"
        raise OptionError(("name", f"expected {article} {self.kind}, got {name!r}; {hint}"))

    def read(self, name: str, values: Mapping[str, object], *, bare: bool = True) -> Options:
        """The options of `name` with defaults filled in. Raises OptionError."""
        options = self.find(name).options
        return read_options(options, values, subject=f"{self.kind} {name!r}", bare=bare)

    def make(self, name: str, options: Options) -> T:
        """Make an instance from its options alone. Raises OptionError if foreign code raises."""
        entry = self.find(name)
        try:
            return entry.make(options)
        except Exception as error:
            if entry.built_in or isinstance(error, OptionError):
                raise
            message = f"{self.kind} {name!r} cannot be made: {type(error).__name__}: {error}"
            raise OptionError(("", message)) from error

    def _loaded(self, name: str, load: Callable[[], Any]) -> Registered[T]:
        try:
            return self._entry(name, load(), built_in=False)
        except OptionError:
            raise
        except (Exception, SystemExit) as error:  # foreign code ran
            message = f"{self.kind} {name!r} cannot be used: {type(error).__name__}: {error}"
            raise OptionError(("name", message)) from error

    def _entry(self, name: str, factory: Any, *, built_in: bool = True) -> Registered[T]:
        try:
            options = factory.Options
        except AttributeError:
            options = None
        if not (isinstance(options, type) and issubclass(options, self._options)):
            expected = f"a subclass of {self._options.__name__}"
            raise TypeError(f"expected a class whose attribute 'Options' is {expected}")
        if options is not Options and not is_dataclass(options):
            raise TypeError(f"expected a dataclass as 'Options', got the class {options.__name__}")
        return Registered(name, options, factory, built_in)
