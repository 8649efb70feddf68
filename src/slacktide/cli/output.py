"""What every verb prints alike: errors on stderr, progress for people, JSON for machines.

What prints is imported when something is printed: a command line is completed without.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

FELL_SHORT = 1
BAD_USAGE = 2


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a panel of the help; `names` where it is not called like its parameter."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def console() -> Console:
    """For tables and text on stdout."""
    from rich.console import Console

    return Console(highlight=False)


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


def require_goodput(reached: float, wanted: float | None, of: str = "") -> None:
    """Fail if less than the share that `--min-goodput` states was answered on time."""
    from slacktide.reports.table import percent

    if wanted is not None and reached < wanted:
        short = f"falls short of the {percent(wanted)} of --min-goodput"
        fail(f"goodput {percent(reached)}{of} {short}", FELL_SHORT)


def plots_missing(what: str) -> str | None:
    """Why `what` (a page) could not be drawn, with the remedy; None if it could."""
    if find_spec("matplotlib") is not None:
        return None
    return f"{what} needs matplotlib; install it with: pip install 'slacktide[report]'"


def can_write(files: Mapping[str, Path | None], *, page: str = "--html") -> None:
    """Fail before any work is done if a file, by its flag, could not be written after it."""
    for flag, path in files.items():
        if path is not None and not path.parent.is_dir():
            fail(f"{flag}: no such folder: {path.parent}")
    if files.get(page) is not None and (missing := plots_missing(page)):
        fail(missing)


def write_page(flag: str, path: Path | None, page: Callable[[], str]) -> None:
    """Write what `page` makes, if the flag names a file."""
    from slacktide.reports import ReportError

    if path is not None:
        try:
            path.write_text(page(), encoding="utf-8")
        except (OSError, ReportError) as error:
            fail(f"{flag}: {error}", FELL_SHORT)


def print_json(document: object) -> None:
    """One JSON document on stdout; what JSON does not know, such as a path, as its text."""
    import orjson

    sys.stdout.write(
        orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2).decode() + "\n"
    )


@contextmanager
def progress_bar(*, shown: bool = True) -> Iterator[Callable[[float, str], None]]:
    """A function (share done, text) that moves a bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=1.0)

        def move(share: float, text: str) -> None:
            bar.update(task, completed=share, description=text)

        yield move
