"""The flags of `slacktide demo`, and where its reports go."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli import fail, plots_missing, seconds_of

demo = typer.Typer(name="demo", add_completion=False, rich_markup_mode="rich")

Cores = Annotated[
    int, typer.Option(min=1, metavar="N", help="Cores of the server, its models included.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

REPORT_JSON, CLIENTS_JSON = "demo-report.json", "clients-report.json"
EXITS_JSON, PIPELINE_JSON = "exits-report.json", "pipeline-report.json"


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
    from slacktide.lab.cli.demo.policies import page, play_policies, show_policies
    from slacktide.lab.cli.demo.shared import perform

    if missing := plots_missing(Path(REPORT_JSON).with_suffix(".html").name):
        typer.echo(f"a table only: {missing}", err=True)
    perform(
        partial(play_policies, _words(models), seconds, seed),
        show_policies,
        REPORT_JSON,
        cores,
        json=json,
        folder=directory,
        page=None if missing else page,
    )


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
    from slacktide.client import ClientError
    from slacktide.client.images import require_extra

    try:
        require_extra()
    except ClientError as error:
        fail(str(error))
    from slacktide.lab.cli.demo.clients import ClientsRun, play_clients, show_clients
    from slacktide.lab.cli.demo.shared import perform

    change_s = seconds_of("--change", change or ("20s" if seconds >= 300.0 else "6s"))
    slo_s = seconds_of("--slo", slo)
    if not 0.01 <= slo_s <= 10.0:
        fail(f"--slo: expected 10ms to 10s, got {slo}")
    if change_s < 0.5:
        fail(f"--change: expected at least 500ms, got {change}")
    run = ClientsRun(model, repository, clients, seconds, rate, slo_s, change_s, seed)
    perform(partial(play_clients, run), show_clients, CLIENTS_JSON, cores, json=json)


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
    from slacktide.domain import parse_percent
    from slacktide.lab.cli.demo.exits import ExitsRun, play_exits, show_exits
    from slacktide.lab.cli.demo.shared import perform

    try:
        parse_percent(loss)
    except ValueError as error:
        fail(f"--loss: {error}")
    run = ExitsRun(model, _words(streams), seconds, rate, learn, loss)
    perform(partial(play_exits, run), show_exits, EXITS_JSON, cores, json=json)


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
    from slacktide.lab.cli.demo.pipeline import PipelineRun, play_pipeline
    from slacktide.lab.cli.demo.pipeline_report import show_pipeline
    from slacktide.lab.cli.demo.shared import perform

    try:
        parts = tuple(map(float, loads.split(",")))
    except ValueError:
        parts = ()
    if not parts or not all(0.0 < part <= 20.0 for part in parts):
        fail(f"--loads: expected numbers above 0, 20 at most, with commas between, got {loads!r}")
    run = PipelineRun(name, seconds, parts, plain=plain)
    perform(partial(play_pipeline, run), show_pipeline, PIPELINE_JSON, cores, json=json)


def _words(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word.strip() for word in text.split(","))
