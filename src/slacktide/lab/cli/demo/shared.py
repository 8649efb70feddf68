"""Parts that all demos share: a folder, a server on separate cores, progress, a check that these
cores are free, and a report that is written and printed.
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
"""A report of JSON values: shares 0 to 1, times in seconds; `headline` sums it up in a sentence."""
Part: TypeAlias = "TextTable | RenderableType"
"""A table or a paragraph to print."""

_FELL_SHORT = ProcessError, LoadError, LinkError, ClientError, MeasuringError, RepositoryError
_JSON = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class DemoContext:
    """Folder and cores of a demo, and callbacks that show its progress."""

    folder: Path
    """Folder for the demo's models and the server's log."""
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    """(server's, client's) cores."""
    move: Callable[[float, str], None] = lambda share, text: None
    """Shows the share done and the next step, and checks whether other programs use the cores. Call
    it only while the demo runs nothing itself."""
    show: Callable[[float, str], None] = lambda share, text: None
    """Like `move`, without the check: for use while the demo's own server uses the cores."""

    @property
    def models(self) -> Path:
        return self.folder / "models"

    def serve(self, *flags: str) -> contextlib.AbstractContextManager[Listening]:
        """Run `slacktide serve` with the demo's models, on the server's cores. Raises
        ProcessError."""
        return serving(self.models, self.cores[0], self.folder / "server.log", flags)

    def run(self, *arguments: str) -> str:
        """Run a `slacktide` command on the server's cores; return output. Raises ProcessError."""
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
    """Run a demo with `cores` cores for the server, write its report to `file`, and print it as
    JSON or by `view`. With matplotlib, `page` is written beside it. Errors end the program.
    """
    written = [Path.cwd() / file]
    if page is not None:
        written.append(written[0].with_suffix(".html"))
        if missing := plots_missing(written[1].name):
            typer.echo(f"no HTML page: {missing}", err=True)
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
            move(1.0, "writing the report")
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
    """Print the headline and the parts below it. Square brackets in paragraphs are text, not
    markup."""
    out.print(Text(f"\n{report['headline']}\n", style="bold"))
    for part in view(report):
        if isinstance(part, TextTable):
            part = rich_table(part)
        out.print(Text(part) if isinstance(part, str) else part)


def share(flags: Sequence[bool]) -> float:
    """Return the share of flags that are set; 0 without flags."""
    return sum(flags) / max(1, len(flags))


def levels(seconds: Sequence[float], **percents: int) -> dict[str, float]:
    """Return percentiles by name; empty without values."""
    if not seconds:
        return {}
    return {name: float(np.percentile(seconds, part)) for name, part in percents.items()}


def milliseconds(levels: Mapping[str, float], name: str, digits: int = 0) -> str:
    """Format one of the `levels` in milliseconds, for a table."""
    return f"{1e3 * levels[name]:.{digits}f}" if levels else "–"
