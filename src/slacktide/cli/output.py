"""Output common to all verbs: errors on stderr, progress for people, JSON for machines.

If stdout is not a terminal, lines are not wrapped, so that tables in a file keep their columns.
Rich is imported only to print, so that completing a command line stays fast.
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
"""Seconds between lines of progress if stderr is not a terminal; shorter work prints none."""
_NO_TERMINAL = 10_000
"""Line width in a file or pipe, wider than any table."""


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a panel of the help. `names`: its flags, if not named after its parameter."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def console() -> Console:
    """A console for tables and text on stdout, as wide as the terminal or `COLUMNS`."""
    from rich.console import Console

    wraps = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if wraps else _NO_TERMINAL)


def fail(message: str, code: int = BAD_USAGE) -> NoReturn:
    """Print an error on stderr and end the program."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def seconds_of(flag: str, text: str) -> float:
    """Parse the duration of a flag. Ends the program if it is invalid."""
    from slacktide.domain.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        fail(f"{flag}: {error}")


def share_of(text: str) -> float:
    """Parse a share such as `0.95` or `95%`, 0 to 1."""
    from slacktide.domain.units import parse_percent

    hint = ""
    with suppress(ValueError):
        share = parse_percent(text) if "%" in text else float(text)
        if 0.0 <= share <= 1.0:
            return share
        hint = f"; did you mean {text}%?" if 1.0 < share <= 100.0 else ""
    raise typer.BadParameter(f"expected a share such as 95%, got {text!r}{hint}")


def require_goodput(reached: float, least: float | None, of: str = "") -> None:
    """End the program if the goodput is below `--min-goodput`."""
    from slacktide.domain.units import percent

    if least is not None and reached < least:
        short = f"is below --min-goodput {percent(least)}"
        fail(f"goodput {percent(reached)}{of} {short}", FELL_SHORT)


def plots_missing(page: str) -> str | None:
    """Why `page` cannot be drawn, with the remedy; None if it can."""
    if find_spec("matplotlib") is not None:
        return None
    return f"{page} needs matplotlib; install it with: pip install 'slacktide[report]'"


def can_write(files: Mapping[str, Path | None], *, page: str = "--html") -> None:
    """End the program, before any work is done, if one of the files (by flag) cannot be written."""
    for flag, path in files.items():
        if path is not None and not path.parent.is_dir():
            fail(f"{flag}: no such folder: {path.parent}")
    if files.get(page) is not None and (missing := plots_missing(page)):
        fail(missing)


def write_page(flag: str, path: Path | None, page: Callable[[], str]) -> None:
    """Write the page to the flag's file, if any."""
    if path is not None:
        try:
            path.write_text(page(), encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(f"{flag}: {error}", FELL_SHORT)


def print_json(document: object) -> None:
    """Print a JSON document on stdout. Values that JSON does not support become text."""
    import orjson

    from slacktide.domain.suggestions import escaped

    def default(value: object) -> str:
        return escaped(str(value))

    written = orjson.dumps(document, default=default, option=orjson.OPT_INDENT_2)
    sys.stdout.write(written.decode() + "\n")


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Yield a function (share done, text) that moves a progress bar on stderr. If that is not a
    terminal, it prints a line from time to time, with the estimated remaining time."""
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
        self._printed_at = monotonic()
        self._share = 1.0
        self._began = self._printed_at, 0.0
        """Start of the current work, and the share that was done by then."""

    def move(self, share: float, text: str) -> None:
        now = monotonic()
        if share < self._share:  # the first call, or another part of the work
            self._began = now, share
        self._share = share
        if now < self._printed_at + PROGRESS_EVERY_S:
            return
        self._printed_at = now
        begin, first_share = self._began
        if first_share < share < 1.0:
            remaining = (now - begin) * (1.0 - share) / (share - first_share)
            text += f", about {_about(remaining)} left"
        typer.echo(text, err=True)


def _about(seconds: float) -> str:
    """Format a duration roughly: `40 s`, `14 min`, `3.5 h`."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
