"""The flags of `slacktide demo`, and where its reports go."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slacktide.cli import fail, seconds_of

demo = typer.Typer(name="demo", add_completion=False, rich_markup_mode="rich")

Cores = Annotated[int, typer.Option(min=1, metavar="N", help="Cores of the server and its models.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


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
    json: Json = False,
) -> None:
    """Serve example models under bursty load with deadlines, once per batching policy.

    Takes one to two minutes, prints goodput side by side, and writes demo-report.json and, if
    matplotlib is installed, demo-report.html into the current folder.

    Example: slacktide demo --models dense --seconds 10

    Other demos: `slacktide demo clients` (video clients on changing links), `slacktide demo exits`
    (early exits of a classifier) and `slacktide demo pipeline` (several models under one deadline).
    """
    if context.invoked_subcommand is not None:
        return
    from slacktide.lab.cli.demo.policies import page, play_policies, show_policies
    from slacktide.lab.cli.demo.shared import perform

    names = tuple(dict.fromkeys(name.strip() for name in models.split(",")))
    play = partial(play_policies, names, seconds)
    perform(play, show_policies, "demo-report.json", cores, json=json, page=page)


@demo.command("clients")
def clients(
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of cameras.")] = 4,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Length of the run.")] = 40.0,
    rate: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Frames per second of each camera.")
    ] = 10.0,
    slo: Annotated[
        str, typer.Option(metavar="TIME", help="Time from capture to answer.")
    ] = "150ms",
    cores: Cores = 1,
    json: Json = False,
) -> None:
    """Stream frames of cameras over links that change.

    Takes about a minute, prints how frame sizes followed the links, misses and accuracy, and writes
    clients-report.json into the current folder. Needs the extra `client`.

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

    slo_s = seconds_of("--slo", slo)
    if not 0.01 <= slo_s <= 10.0:
        fail(f"--slo: expected 10ms to 10s, got {slo}")
    play = partial(play_clients, ClientsRun(clients, seconds, rate, slo_s))
    perform(play, show_clients, "clients-report.json", cores, json=json)


@demo.command("exits")
def exits(
    model: Annotated[str, typer.Option(help="Example classifier that has streams.")] = "chained",
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600.0, help="Length of the day, and also of the night.")
    ] = 24.0,
    rate: Annotated[float, typer.Option(min=0.1, max=1000.0, help="Rows per second.")] = 30.0,
    loss: Annotated[str, typer.Option(help="Share of answers that may differ.")] = "1%",
    cores: Cores = 1,
    json: Json = False,
) -> None:
    """Let easy frames leave a classifier early, while day turns to night.

    Takes two minutes: trains ramps at which frames can leave, then plays the same frames to the
    model without and with early exits, alternating every few seconds. Prints latency, how often
    answers differ, and where rows left, and writes exits-report.json into the current folder.

    Example: slacktide demo exits --model residual --loss 0.5%
    """
    from slacktide.domain import parse_percent
    from slacktide.lab.cli.demo.exits import ExitsRun, play_exits, show_exits
    from slacktide.lab.cli.demo.shared import perform

    try:
        parse_percent(loss)
    except ValueError as error:
        fail(f"--loss: {error}")
    play = partial(play_exits, ExitsRun(model, seconds, rate, loss))
    perform(play, show_exits, "exits-report.json", cores, json=json)


@demo.command("pipeline")
def pipeline(
    name: Annotated[
        str, typer.Option("--pipeline", help="Example pipeline: traffic or surveillance.")
    ] = "traffic",
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600.0, help="Length of each load.")
    ] = 10.0,
    loads: Annotated[
        list[float],
        typer.Option(
            "--load",
            min=0.01,
            max=20.0,
            help="Load as a multiple of the measured capacity. May be given several times.",
        ),
    ] = [0.5, 1.0, 1.5],  # noqa: B006
    cores: Cores = 2,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Serve the models without early exits, moving cores or placement.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Find vehicles, name their brands and read their plates: one model, one deadline.

    Takes a minute: serves a detector and the two models behind it as one pipeline, measures how
    many frames a second it can answer, and sends fewer, as many and more. Prints which stages were
    left out under load, the answers for one frame, and the actions of variants, early exits, cores
    and placement, and writes pipeline-report.json into the current folder.

    Example: slacktide demo pipeline --load 1 --load 2
    """
    from slacktide.lab.cli.demo.pipeline import PipelineRun, play_pipeline, show_pipeline
    from slacktide.lab.cli.demo.shared import perform

    play = partial(play_pipeline, PipelineRun(name, seconds, tuple(loads), plain=plain))
    perform(play, show_pipeline, "pipeline-report.json", cores, json=json)
