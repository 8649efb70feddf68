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

from slacktide.cli import FELL_SHORT, console, fail, progress
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
from slacktide.lab.reports import ReportError, TextTable, rich_table
from slacktide.models.repository import RepositoryError

Document: TypeAlias = dict[str, Any]
"""JSON values: shares are 0 to 1, times in seconds."""
Part: TypeAlias = "TextTable | RenderableType"
"""A table or a paragraph of what is printed."""

LAST_LOOK = "summing up"
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

    def serve(
        self, *flags: str, models: Path | None = None
    ) -> contextlib.AbstractContextManager[Listening]:
        """`slacktide serve` on the server's cores, by default of the models made here. Raises
        ProcessError."""
        return serving(models or self.models, self.cores[0], self.folder / "server.log", flags)

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
    folder: Path | None = None,
    page: Callable[[Document], str] | None = None,
) -> None:
    """Play a demo, write its report to `file` and its page beside it, and print its view, or JSON.

    The server gets `cores` cores. Without a `folder` a temporary one is used. Errors end the
    program.
    """
    try:
        with contextlib.ExitStack() as stack:
            if folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="slacktide-demo-")
                folder = Path(stack.enter_context(temporary))
            folder.mkdir(parents=True, exist_ok=True)
            show = stack.enter_context(progress(shown=not json))
            server, client = split = split_cores(cores)
            probe = CoreProbe(*([core] for core in server), *([client] if client != server else ()))

            def move(share: float, text: str) -> None:
                show(share, text)
                probe.look()

            report = play(DemoContext(folder, split, move, show))
            move(1.0, LAST_LOOK)
    except OSError as error:
        fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except ExamplesError as error:
        fail(str(error))
    except _FELL_SHORT as error:
        fail(str(error), FELL_SHORT)
    report["cpu_share"] = probe.share
    if "headline" in report:
        report["headline"] = busy_warning(probe.share) or report["headline"]
    written = [Path.cwd() / file]
    try:
        written[0].write_bytes(orjson.dumps(report, option=_JSON))
        if page is not None:
            written.append(written[0].with_suffix(".html"))
            written[1].write_text(page(report), encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    except ReportError as error:
        fail(str(error), FELL_SHORT)
    if json:
        sys.stdout.write(written[0].read_text())
    else:
        show_parts(view(report), console())
        typer.echo("written: " + ", ".join(path.name for path in written))


def show_parts(parts: Iterable[Part], out: Console) -> None:
    """Print a view. What is in square brackets in its paragraphs is text, not markup."""
    for part in parts:
        if isinstance(part, TextTable):
            part = rich_table(part)
        out.print(Text(part) if isinstance(part, str) else part)


def headline(report: Mapping[str, Any], sentence: str) -> Text:
    """The sentence in bold, or a warning in its place if other programs held the cores."""
    return Text(busy_warning(report["cpu_share"]) or sentence, style="bold")


def share(flags: Sequence[bool]) -> float:
    """Share of the flags that are set; 0 of none."""
    return sum(flags) / max(1, len(flags))


def levels(seconds: Sequence[float], **percents: int) -> dict[str, float]:
    """Percentiles by name; empty if there are no values."""
    if not seconds:
        return {}
    return {name: float(np.percentile(seconds, part)) for name, part in percents.items()}


def milliseconds(levels: Mapping[str, float] | None, name: str, digits: int = 0) -> str:
    """One of the `levels`, for a table."""
    return f"{1e3 * levels[name]:.{digits}f}" if levels else "–"
