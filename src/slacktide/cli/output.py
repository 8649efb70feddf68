"""What every verb prints alike: errors on stderr, progress for people, JSON for machines.

Where stdout is no terminal its lines are as long as they are: tables in a file keep their columns.

What prints is imported when something is printed: a command line is completed without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

FELL_SHORT = 1
BAD_USAGE = 2

PROGRESS_EVERY_S = 30.0
"""Between two lines of progress where stderr is no terminal; what is done sooner has none."""
_NO_TERMINAL = 10_000
"""Characters of a line in a file or a pipe: more than any table has."""


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a panel of the help; `names` where it is not called like its parameter."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def console() -> Console:
    """For tables and text on stdout; as wide as the terminal, or as `COLUMNS` says."""
    from rich.console import Console

    whole = not (sys.stdout.isatty() or "COLUMNS" in os.environ)
    return Console(highlight=False, width=_NO_TERMINAL if whole else None)


def fail(message: str, code: int = BAD_USAGE) -> NoReturn:
    """Say what is wrong on stderr, and end."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def seconds_of(flag: str, text: str) -> float:
    """The duration that a flag states. Ends the program if it is none."""
    from slacktide.domain.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        fail(f"{flag}: {error}")


def share_of(text: str) -> float:
    """The share that `0.95` or `95%` says, 0 to 1; reads `--min-goodput`."""
    from slacktide.domain.units import parse_percent

    hint = ""
    with suppress(ValueError):
        share = parse_percent(text) if "%" in text else float(text)
        if 0.0 <= share <= 1.0:
            return share
        hint = f"; did you mean {text}%?" if 1.0 < share <= 100.0 else ""
    raise typer.BadParameter(f"expected a share such as 95%, got {text!r}{hint}")


def require_goodput(reached: float, least: float | None, of: str = "") -> None:
    """Fail if less than the share that `--min-goodput` states was answered on time."""
    from slacktide.domain.units import percent

    if least is not None and reached < least:
        short = f"falls short of the {percent(least)} of --min-goodput"
        fail(f"goodput {percent(reached)}{of} {short}", FELL_SHORT)


def plots_missing(page: str) -> str | None:
    """Why `page` could not be drawn, with the remedy; None if it could."""
    if find_spec("matplotlib") is not None:
        return None
    return f"{page} needs matplotlib; install it with: pip install 'slacktide[report]'"


def can_write(files: Mapping[str, Path | None], *, page: str = "--html") -> None:
    """Fail before any work is done if a file, by its flag, could not be written after it."""
    for flag, path in files.items():
        if path is not None and not path.parent.is_dir():
            fail(f"{flag}: no such folder: {path.parent}")
    if files.get(page) is not None and (missing := plots_missing(page)):
        fail(missing)


def write_page(flag: str, path: Path | None, page: Callable[[], str]) -> None:
    """Write what `page` makes, if the flag names a file."""
    if path is not None:
        try:
            path.write_text(page(), encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(f"{flag}: {error}", FELL_SHORT)


def print_json(document: object) -> None:
    """One JSON document on stdout; what JSON does not know, such as a path, as its text."""
    import orjson

    from slacktide.domain.suggestions import escaped

    def default(value: object) -> str:
        return escaped(str(value))

    written = orjson.dumps(document, default=default, option=orjson.OPT_INDENT_2)
    sys.stdout.write(written.decode() + "\n")


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Callable[[float, str], None]]:
    """A function (share done, text) that moves a bar on stderr; where that is no terminal, it
    writes a line now and then, with the time that may be left."""
    if not sys.stderr.isatty():
        lines = _ProgressLines()
        yield lines.move if shown else lambda share, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )
    with bar:
        task = bar.add_task("", total=1.0)

        def move(share: float, text: str) -> None:
            bar.update(task, completed=share, description=text)

        yield move


class _ProgressLines:
    def __init__(self) -> None:
        self._told = monotonic()
        self._share = 1.0
        self._began = self._told, 0.0
        """When the work of now began, and what was done of it then."""

    def move(self, share: float, text: str) -> None:
        now = monotonic()
        if share < self._share:  # the first time, or another part of the work
            self._began = now, share
        self._share = share
        if now < self._told + PROGRESS_EVERY_S:
            return
        self._told = now
        begin, before = self._began
        if before < share < 1.0:
            remaining = (now - begin) * (1.0 - share) / (share - before)
            text += f", about {_about(remaining)} left"
        typer.echo(text, err=True)


def _about(seconds: float) -> str:
    """`40 s`, `14 min`, `3.5 h`."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
