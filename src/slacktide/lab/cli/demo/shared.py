"""Parts that all demos share: a folder, a server on cores of its own, progress, a look at whether
these cores are free, and a report that is written and printed.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from slacktide.cli import FELL_SHORT, console, fail, plots_missing, progress
from slacktide.client import ClientError
from slacktide.executors import CoreProbe, MeasuringError, busy_warning
from slacktide.lab.examples import ExamplesError
from slacktide.lab.load.server_process import (
    Listening,
    ProcessError,
    serving,
    slacktide,
    split_cores,
)
from slacktide.lab.load.spec import LoadError
from slacktide.lab.netem import LinkError
from slacktide.lab.reports import TextTable, rich_table
from slacktide.models.repository import RepositoryError

Document: TypeAlias = dict[str, Any]
"""JSON values: shares are 0 to 1, times in seconds. `headline` is the sentence that sums it up."""
Part: TypeAlias = "TextTable | RenderableType"
"""A table or a paragraph of what is printed."""

_FELL_SHORT = ProcessError, LoadError, LinkError, ClientError, MeasuringError, RepositoryError
_JSON = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class DemoContext:
    """Folder and cores of a demo, and who hears of its progress."""

    folder: Path
    """Holds the models that are made, and the server's log."""
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    """The server's, and the client's."""
    move: Callable[[float, str], None] = lambda share, text: None
    """Shows the share that is done and what follows, and looks whether other programs hold the
    cores. Call it while nothing of ours runs."""
    show: Callable[[float, str], None] = lambda share, text: None
    """Only shows it: a server that learns from what it has answered holds the cores itself."""

    @property
    def models(self) -> Path:
        return self.folder / "models"

    def serve(self, *flags: str) -> contextlib.AbstractContextManager[Listening]:
        """`slacktide serve` with the models made here, on the server's cores. Raises
        ProcessError."""
        return serving(self.models, self.cores[0], self.folder / "server.log", flags)

    def run(self, *arguments: str) -> str:
        """Output of a command of `slacktide` on the server's cores. Raises ProcessError."""
        return slacktide(arguments, self.cores[0], self.folder / "server.log")


def perform(
    play: Callable[[DemoContext], Document],
    view: Callable[[Document], Iterable[Part]],
    file: str,
    cores: int,
    *,
    json: bool,
    page: Callable[[Document], str] | None = None,
) -> None:
    """Play a demo with `cores` cores for the server, write its report to `file`, and print it, as
    JSON or by `view`. With matplotlib, `page` is written beside the file. Errors end the program.
    """
    written = [Path.cwd() / file]
    if page is not None:
        written.append(written[0].with_suffix(".html"))
        if missing := plots_missing(written[1].name):
            typer.echo(f"a table only: {missing}", err=True)
            del written[1]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="slacktide-demo-") as folder,
            progress(shown=not json) as show,
        ):
            server, client = split = split_cores(cores)
            probe = CoreProbe(*([core] for core in server), *([client] if client != server else ()))

            def move(share: float, text: str) -> None:
                show(share, text)
                probe.look()

            report = play(DemoContext(Path(folder), split, move, show))
            move(1.0, "summing up")
    except OSError as error:
        fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except ExamplesError as error:
        fail(str(error))
    except _FELL_SHORT as error:
        fail(str(error), FELL_SHORT)
    report |= {"cores": split, "cpu_share": probe.share}
    report["headline"] = busy_warning(probe.share) or report["headline"]
    document = orjson.dumps(report, option=_JSON)
    try:
        written[0].write_bytes(document)
        if page is not None and written[1:]:
            written[1].write_text(page(report), encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    if json:
        sys.stdout.write(document.decode())
    else:
        print_report(report, view, console())
        typer.echo("written: " + ", ".join(path.name for path in written))


def print_report(
    report: Document, view: Callable[[Document], Iterable[Part]], out: Console
) -> None:
    """Print the headline and the parts below it. What is in square brackets in a paragraph is text,
    not markup."""
    out.print(Text(f"\n{report['headline']}\n", style="bold"))
    for part in view(report):
        if isinstance(part, TextTable):
            part = rich_table(part)
        out.print(Text(part) if isinstance(part, str) else part)


def share(flags: Sequence[bool]) -> float:
    """Share of the flags that are set; 0 of none."""
    return sum(flags) / max(1, len(flags))


def levels(seconds: Sequence[float], **percents: int) -> dict[str, float]:
    """Percentiles by name; empty if there are no values."""
    if not seconds:
        return {}
    return {name: float(np.percentile(seconds, part)) for name, part in percents.items()}


def milliseconds(levels: Mapping[str, float], name: str, digits: int = 0) -> str:
    """One of the `levels`, for a table."""
    return f"{1e3 * levels[name]:.{digits}f}" if levels else "–"
