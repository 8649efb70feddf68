"""What comes of a reproduction, and where it goes: tables, JSON, CSV, a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.console import RenderableType

from slacktide.cli.output import FELL_SHORT, console, fail, print_json, require_plots


class Goal(Protocol):
    """A line of the summary."""

    @property
    def met(self) -> bool: ...


class Result(Protocol):
    """Everything that a run has to say."""

    @property
    def goals(self) -> Sequence[Goal]: ...

    def to_dict(self) -> dict[str, Any]: ...

    def to_json(self) -> bytes: ...

    def to_csv(self) -> str: ...


Some = TypeVar("Some", bound=Result)


class Wanted:
    """What was asked for. Checked before anything is measured."""

    def __init__(
        self, json: Path | None, csv: Path | None, html: Path | None, *, check: bool
    ) -> None:
        """`-` is stdout. Ends the program where a folder is not there, or both go to stdout."""
        self._json, self._csv, self._html = json, csv, html
        self._check = check
        if html is not None:
            require_plots("--html")
        for flag, path in (("--json", json), ("--csv", csv), ("--html", html)):
            if path is not None and not path.parent.is_dir():
                fail(f"{flag}: no such folder: {path.parent}")
        if json == csv == Path("-"):
            fail("--json - and --csv - cannot both go to stdout")

    def deliver(
        self,
        result: Some,
        *,
        render: Callable[[Some], RenderableType],
        page: Callable[[Some], str],
    ) -> None:
        """Write and print it. Ends the program where that fails, or on missed goals."""
        from slacktide.reports import ReportError

        try:
            self._write(result, page)
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
        except ReportError as error:
            fail(f"--html: {error}", FELL_SHORT)
        if Path("-") not in (self._json, self._csv):
            console().print(render(result))
        missed = sum(not goal.met for goal in result.goals)
        if self._check and missed:
            fail(f"{missed} of {len(result.goals)} goals missed", FELL_SHORT)

    def _write(self, result: Some, page: Callable[[Some], str]) -> None:
        if self._json == Path("-"):
            print_json(result.to_dict())
        elif self._json is not None:
            self._json.write_bytes(result.to_json())
        if self._csv == Path("-"):
            typer.echo(result.to_csv(), nl=False)
        elif self._csv is not None:
            self._csv.write_text(result.to_csv(), encoding="utf-8")
        if self._html is not None:
            self._html.write_text(page(result), encoding="utf-8")
