"""The flags of `slacktide demo`, and where its reports go."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from slacktide.cli.output import FELL_SHORT, console, fail, plots_missing, progress_bar


def demo(
    models: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Example models that share the server."),
    ] = "residual,text",
    seconds: Annotated[
        float, typer.Option(min=0.2, max=3600.0, help="Length of each of the nine runs.")
    ] = 4.0,
    cores: Annotated[
        int, typer.Option(min=1, metavar="N", help="Cores of the server, its models included.")
    ] = 1,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Seed of arrivals, deadlines and payloads.")
    ] = 1,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Make the models here, and keep them; default: a temporary folder.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Serve example models under bursty load with deadlines, once for each way of batching.

    Takes one to two minutes, prints goodput side by side, and writes demo-report.json and, if
    matplotlib is installed, demo-report.html into the current folder.

    Example: slacktide demo

    Example: slacktide demo --models dense --seconds 10
    """
    from slacktide.cli.demo.run import Demo
    from slacktide.cli.demo.server_process import ProcessError, split_cores
    from slacktide.cli.demo.show import HTML_NAME, show, write_json, write_page
    from slacktide.examples import ExamplesError
    from slacktide.load.spec import LoadError
    from slacktide.reports import ReportError

    if missing := plots_missing(HTML_NAME):
        typer.echo(f"a table only: {missing}", err=True)
    names = list(dict.fromkeys(name.strip() for name in models.split(",")))
    try:
        with (
            _interruptible(),
            _folder(directory) as folder,
            progress_bar(shown=not json) as move,
        ):
            result = Demo(
                folder, names, split_cores(cores), seconds=seconds, seed=seed, move=move
            ).run()
    except ExamplesError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except (ProcessError, LoadError) as error:
        fail(str(error), FELL_SHORT)
    try:
        written = [write_json(result, Path.cwd())]
        if not missing:
            written.append(write_page(result, Path.cwd()))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    except ReportError as error:
        fail(str(error), FELL_SHORT)
    if json:
        sys.stdout.write(written[0].read_text())
    else:
        show(result, console())
        typer.echo("written: " + ", ".join(path.name for path in written))


@contextlib.contextmanager
def _folder(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="slacktide-demo-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end the demo with KeyboardInterrupt: server stopped, folder removed.

    An interrupt can strike anywhere, in the middle of an import for instance, and come out as
    whatever that makes of it; here it becomes what it was.
    """
    struck = False

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        struck = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, strike) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        if struck:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
