"""`Registry`: what can be chosen by name, each with options of its own: schedulers, planners.

A class states its options as an attribute, `Options`, and is called with them. What is built in is
there from the start. What is not may be `offer`ed: it is looked up when it is first named, by a
function that is passed in, since this package imports nothing by name (`slacktide.models.plugins`
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
    """One entry: its options class, and how it is made from options and what else it is given."""

    name: str
    options: type[Options]
    make: Callable[..., T]
    built_in: bool = True


class Registry(dict[str, Registered[T]]):
    """Entries by name; `kind` is what they are, such as `scheduler`."""

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
        """`options`: what the options of every entry must be. `group`: the extension point that
        others register theirs under; empty: the plural of `kind`. `aliases`: other names that files
        and command lines may use. `absent`: names that another distribution of ours offers, each
        with the command that installs it."""
        self._options = options
        super().__init__({name: self._entry(name, factory) for name, factory in entries.items()})
        self.kind = kind
        self.group = group or f"{kind}s"
        self.importer: Callable[[str], Any] | None = None
        """Loads what `module:Class` names, where any may be named; None: none may."""
        self._aliases = dict(aliases or {})
        self._absent = dict(absent or {})
        self._offers: dict[str, Callable[[], Any]] = {}

    def offer(self, name: str, load: Callable[[], Any]) -> None:
        """Have `name` mean the class that `load` returns, unless something built in is called so.
        `load` is called when the name is first used; what it raises makes the name invalid."""
        if name not in self:
            self._offers[name] = load

    def names(self) -> list[str]:
        """Every valid name, whether or not it has been loaded."""
        return sorted({*self, *self._offers})

    def is_known(self, name: str) -> bool:
        """Whether it is a valid name, or would be if another distribution of ours were there."""
        return self._aliases.get(name, name) in {*self, *self._offers, *self._absent}

    def find(self, name: str) -> Registered[T]:
        """The entry called `name`. Raises OptionError if there is none, or it cannot be loaded."""
        name = self._aliases.get(name, name)
        if ":" in name and self.importer is not None:
            self.offer(name, partial(self.importer, name))
        if name in self._offers:
            self[name] = self._loaded(name, self._offers[name])
            del self._offers[name]
        registered = self.get(name)
        if registered is None and name in self._absent:
            message = (
                f"{self.kind} {name!r} is not installed; install it with: {self._absent[name]}"
            )
            raise OptionError(("name", message))
        if registered is None:
            hint = suggestion(name, self.names())
            raise OptionError(("name", f"expected a {self.kind}, got {name!r}; {hint}"))
        return registered

    def read(self, name: str, values: Mapping[str, object], *, bare: bool = True) -> Options:
        """The options of `name`, defaults filled in. Raises OptionError as `read_options` does."""
        options = self.find(name).options
        return read_options(options, values, subject=f"{self.kind} {name!r}", bare=bare)

    def make(self, name: str, options: Options) -> T:
        """An entry, made of its options alone. Raises OptionError for what one of others raises."""
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
        except (Exception, SystemExit) as error:  # it is foreign code that ran
            message = f"{self.kind} {name!r} cannot be used: {type(error).__name__}: {error}"
            raise OptionError(("name", message)) from error

    def _entry(self, name: str, made_of: Any, *, built_in: bool = True) -> Registered[T]:
        options = getattr(made_of, "Options", None)
        if not (isinstance(options, type) and issubclass(options, self._options)):
            expected = f"a class of {self._options.__name__}"
            raise TypeError(f"expected a class with {expected} as its attribute 'Options'")
        if options is not Options and not is_dataclass(options):
            raise TypeError(f"expected a dataclass as 'Options', got the class {options.__name__}")
        return Registered(name, options, made_of, built_in)
