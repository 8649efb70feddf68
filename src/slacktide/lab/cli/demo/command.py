"""The flags of `slacktide demo`, and where its reports go."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from slacktide.cli.output import (
    FELL_SHORT,
    console,
    fail,
    plots_missing,
    progress,
    seconds_of,
)

if TYPE_CHECKING:
    from slacktide.executors.core_probe import CoreProbe

demo = typer.Typer(name="demo", add_completion=False, rich_markup_mode="rich")

Cores = Annotated[
    int, typer.Option(min=1, metavar="N", help="Cores of the server, its models included.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

CLIENTS_JSON, EXITS_JSON = "clients-report.json", "exits-report.json"
PIPELINE_JSON = "pipeline-report.json"
LAST_LOOK = "summing up"
_JSON = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


@demo.callback(invoke_without_command=True)
def policies(
    context: typer.Context,
    models: Annotated[
        str, typer.Option(metavar="NAME,…", help="Example models that share the server.")
    ] = "residual,text",
    seconds: Annotated[
        float, typer.Option(min=0.2, max=3600.0, help="Length of each of the nine runs.")
    ] = 4.0,
    cores: Cores = 1,
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
    json: Json = False,
) -> None:
    """Serve example models under bursty load with deadlines, once for each way of batching.

    Takes one to two minutes, prints goodput side by side, and writes demo-report.json and, if
    matplotlib is installed, demo-report.html into the current folder.

    Example: slacktide demo

    Example: slacktide demo --models dense --seconds 10

    `slacktide demo clients` (video clients on changing links), `slacktide demo exits` (a
    classifier that is left early) and `slacktide demo pipeline` (several models under one deadline)
    are others.
    """
    if context.invoked_subcommand is not None:
        return
    from slacktide.lab.cli.demo.run import Demo
    from slacktide.lab.cli.demo.show import HTML_NAME, show, write_json, write_page
    from slacktide.lab.load.server_process import split_cores
    from slacktide.lab.reports import ReportError

    if missing := plots_missing(HTML_NAME):
        typer.echo(f"a table only: {missing}", err=True)
    names = list(dict.fromkeys(name.strip() for name in models.split(",")))
    split = split_cores(cores)
    with _running(json, split, directory) as (folder, move, probe):
        result = Demo(folder, names, split, seconds, seed, move).run()
        move(1.0, LAST_LOOK)
    result = replace(result, cpu_share=probe.share)
    try:
        written = [write_json(result, Path.cwd())]
        if not missing:
            written.append(write_page(result, Path.cwd()))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    except ReportError as error:
        fail(str(error), FELL_SHORT)
    _tell(written, json, lambda: show(result, console()))


@demo.command("clients")
def clients(
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of cameras.")] = 4,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Length of the live run.")
    ] = 40.0,
    rate: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Frames per second of each camera.")
    ] = 10.0,
    slo: Annotated[
        str, typer.Option(metavar="TIME", help="From capture to answer: 10ms to 10s.")
    ] = "150ms",
    change: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From one rate of a link to the next; default: 6s, or 20s in long runs.",
        ),
    ] = None,
    cores: Cores = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of links and scenes.")] = 1,
    repository: Annotated[
        Path | None,
        typer.Option(
            "--repository",
            metavar="DIR",
            help="Serve a model of this repository instead of the example detector.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="A family with variants.sizes.")] = "street",
    json: Json = False,
) -> None:
    """Stream frames of cameras over links that change, live, and simulate the same.

    Takes about a minute, prints the sizes that were sent, misses and accuracy, beside those of
    each variant alone on the same links, and writes clients-report.json into the current folder.
    Needs the extra `client`.

    Example: slacktide demo clients --clients 8 --seconds 60
    """
    from slacktide.client.images import require_extra
    from slacktide.client.messages import ClientError
    from slacktide.lab.examples import make_repository
    from slacktide.lab.load.server_process import split_cores

    try:
        require_extra()
    except ClientError as error:
        fail(str(error))
    from slacktide.lab.cli.demo.clients import run_clients
    from slacktide.lab.cli.demo.clients_report import show_clients
    from slacktide.lab.cli.demo.clients_run import ClientsRun

    path = Path.cwd() / CLIENTS_JSON
    changes = seconds_of("--change", change or ("20s" if seconds >= 300.0 else "6s"))
    deadline = seconds_of("--slo", slo)
    if not 0.01 <= deadline <= 10.0:
        fail(f"--slo: expected 10ms to 10s, got {slo}")
    if changes < 0.5:
        fail(f"--change: expected at least 500ms, got {change}")
    split = split_cores(cores)
    with _running(json, split) as (folder, move, probe):
        if repository is None:
            make_repository(folder / "models", models=[model])
        run = ClientsRun(
            repository or folder / "models", model, split,
            clients, seconds, rate, deadline, changes, seed,
        )  # fmt: skip
        try:
            report = run_clients(run, folder / "server.log", move)
        except ValueError as error:
            fail(str(error))
        _save(report, path, move, probe)
    _tell([path], json, lambda: show_clients(report, console()))


@demo.command("exits")
def exits(
    model: Annotated[str, typer.Option(help="An example classifier that has streams.")] = "chained",
    streams: Annotated[
        str, typer.Option(metavar="NAME,…", help="Streams that are played one after the other.")
    ] = "day,night",
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600.0, help="Length of each of them.")
    ] = 24.0,
    rate: Annotated[float, typer.Option(min=0.1, max=1000.0, help="Rows per second.")] = 30.0,
    loss: Annotated[str, typer.Option(help="Share of answers that may differ.")] = "1%",
    learn: Annotated[int, typer.Option(min=64, help="Rows to learn from.")] = 1500,
    cores: Cores = 1,
    json: Json = False,
) -> None:
    """Let easy frames leave a classifier early, while day turns to night.

    Takes two minutes: learns where the network can be left, then plays the same frames to the
    model as it is and with early exits, a few seconds in turn. Prints latency, how often answers
    differ, and where rows left, and writes exits-report.json into the current folder.

    Example: slacktide demo exits --model residual --loss 0.5%
    """
    from slacktide.domain.units import parse_percent
    from slacktide.lab.cli.demo.exits import ExitsRun, run_exits
    from slacktide.lab.cli.demo.exits_report import show_exits
    from slacktide.lab.load.server_process import split_cores

    path = Path.cwd() / EXITS_JSON
    try:
        parse_percent(loss)
    except ValueError as error:
        fail(f"--loss: {error}")
    names = tuple(name.strip() for name in streams.split(","))
    run = ExitsRun(model, names, split_cores(cores), seconds, rate, learn, loss)
    with _running(json, run.cores) as (folder, move, probe):
        report = run_exits(run, folder, move)
        _save(report, path, move, probe)
    _tell([path], json, lambda: show_exits(report, console()))


@demo.command("pipeline")
def pipeline(
    name: Annotated[
        str, typer.Option("--pipeline", help="An example pipeline: traffic or surveillance.")
    ] = "traffic",
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600.0, help="Length of each load.")
    ] = 10.0,
    loads: Annotated[
        str, typer.Option(metavar="LOAD,…", help="Loads, as parts of the measured capacity.")
    ] = "0.5,1,1.5",
    cores: Cores = 2,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Serve the models as they come: no early exits, cores that move or placement.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Find vehicles, name their brands and read their plates: one model, one deadline.

    Takes a minute: serves a detector with two models behind it as one pipeline, finds out how many
    frames a second it can answer, and sends less, as many and more. Prints what was found, slack by
    stage, what was left out under load, and how often variants, early exits, cores and placement
    acted, and writes pipeline-report.json into the current folder.

    Example: slacktide demo pipeline --loads 1,2
    """
    from slacktide.lab.cli.demo.pipeline import PipelineRun, run_pipeline
    from slacktide.lab.cli.demo.pipeline_report import show_pipeline
    from slacktide.lab.load.server_process import split_cores

    path = Path.cwd() / PIPELINE_JSON
    try:
        parts = tuple(float(part) for part in loads.split(","))
    except ValueError:
        parts = ()
    if not parts or not all(0.0 < part <= 20.0 for part in parts):
        fail(f"--loads: expected numbers above 0, 20 at most, with commas between, got {loads!r}")
    run = PipelineRun(name, split_cores(cores), seconds, parts, plain=plain)
    with _running(json, run.cores) as (folder, move, probe):
        report = run_pipeline(run, folder, move)
        _save(report, path, move, probe)
    _tell([path], json, lambda: show_pipeline(report, console()))


@contextlib.contextmanager
def _running(
    json: bool, cores: Sequence[Sequence[int]], directory: Path | None = None
) -> Iterator[tuple[Path, Any, CoreProbe]]:
    """A folder (by default a temporary one), a progress bar, and a probe of the server's and the
    client's cores for a demo, whose errors end the program. Whenever the bar moves, the probe
    looks: nothing is measured then."""
    from slacktide.client.messages import ClientError
    from slacktide.executors.core_probe import CoreProbe
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.lab.examples import ExamplesError
    from slacktide.lab.load.server_process import ProcessError
    from slacktide.lab.load.spec import LoadError
    from slacktide.lab.netem import LinkError
    from slacktide.models.repository.errors import RepositoryError

    try:
        with contextlib.ExitStack() as stack:
            if directory is None:
                made = tempfile.TemporaryDirectory(prefix="slacktide-demo-")
                directory = Path(stack.enter_context(made))
            directory.mkdir(parents=True, exist_ok=True)
            show = stack.enter_context(progress(shown=not json))
            server, client = cores
            probe = CoreProbe(*([core] for core in server), *([client] if client != server else ()))

            def move(share: float, text: str) -> None:
                show(share, text)
                probe.look()

            yield directory, move, probe
    except OSError as error:
        fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except ExamplesError as error:
        fail(str(error))
    except (
        ProcessError, LoadError, LinkError, ClientError, MeasuringError, RepositoryError
    ) as error:  # fmt: skip
        fail(str(error), FELL_SHORT)


def _save(report: dict[str, Any], path: Path, move: Any, probe: CoreProbe) -> None:
    """Look at the cores a last time, and write what came of a demo."""
    move(1.0, LAST_LOOK)
    report["cpu_share"] = probe.share
    path.write_bytes(orjson.dumps(report, option=_JSON))


def _tell(written: list[Path], json: bool, show: Callable[[], None]) -> None:
    if json:
        sys.stdout.write(written[0].read_text())
    else:
        show()
        typer.echo("written: " + ", ".join(path.name for path in written))
