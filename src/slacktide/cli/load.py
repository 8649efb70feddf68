"""`slacktide load TARGET`: flags for `slacktide.load`, whose texts they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli.output import (
    FELL_SHORT,
    console,
    fail,
    option,
    print_json,
    progress_bar,
    require_plots,
)
from slacktide.load import LoadError, Progress, build_spec, run_load_sync
from slacktide.reports import Report, ReportError, page, render
from slacktide.reports.table import percent

_TRAFFIC = "What to send, and when"
_JUDGE = "How it is judged"
_WIRE = "How it travels"
_REPORT = "What comes of it"


def load(
    target: Annotated[
        str,
        typer.Argument(
            help="HOST, HOST:PORT or a URL: http://, https://, grpc:// or grpcs:// chooses the "
            "protocol.",
            metavar="TARGET",
        ),
    ],
    model: Annotated[
        str, option(_TRAFFIC, "Model to ask.", metavar="NAME", show_default=False)
    ] = "",
    version: Annotated[
        str, option(_TRAFFIC, "Its version; default: the latest.", metavar="N", show_default=False)
    ] = "",
    arrivals: Annotated[
        str,
        option(
            _TRAFFIC,
            "poisson:RATE, gamma:RATE:cv=CV, onoff:RATE_ON:RATE_OFF:MEAN_ON:MEAN_OFF, "
            "diurnal:LOW:HIGH:PERIOD, windows:RATE:WINDOW:cv=CV, constant:RATE or trace:FILE; "
            "rates per second.",
            metavar="PROCESS",
        ),
    ] = "poisson:10",
    duration: Annotated[str, option(_TRAFFIC, "What is scored.", metavar="TIME")] = "10s",
    warmup: Annotated[
        str, option(_TRAFFIC, "The same load before that, not scored.", metavar="TIME")
    ] = "0s",
    stream: Annotated[
        list[str] | None,
        option(
            _TRAFFIC,
            "One of several streams: 'model=NAME arrivals=… deadline=…'; keys are the flags "
            "of a single stream, which give what it leaves out. May be given several times.",
            metavar="WORDS",
        ),
    ] = None,
    rows: Annotated[
        str, option(_TRAFFIC, "Rows of a request; of a list (1,2,4) one is drawn.", metavar="N,…")
    ] = "1",
    shape: Annotated[
        list[str] | None,
        option(
            _TRAFFIC,
            "INPUT=DIMS for free axes, as ids=16 or image=3x224x224; of a list (16,64) or a "
            "range (8..24) one is drawn. May be given several times.",
            metavar="INPUT=DIMS",
        ),
    ] = None,
    payload: Annotated[
        str,
        option(
            _TRAFFIC,
            "random, random:integers=N, or files (.npy, .npz, .json), separated by commas.",
            metavar="KIND",
        ),
    ] = "random",
    seed: Annotated[
        int, option(_TRAFFIC, "Of arrivals, deadlines and payloads alike.", metavar="N")
    ] = 0,
    deadline: Annotated[
        str,
        option(_JUDGE, "50ms, mix:24ms,60ms@2,120ms, uniform:20ms:200ms or none.", metavar="SPEC"),
    ] = "none",
    send_deadlines: Annotated[
        bool,
        option(
            _JUDGE,
            "Whether the server is told the deadline.",
            "--send-deadlines/--no-send-deadlines",
        ),
    ] = True,
    patience: Annotated[
        str, option(_JUDGE, "How long after its deadline to wait.", metavar="TIME")
    ] = "10s",
    application: Annotated[
        str, option(_WIRE, "Whom the requests are from.", metavar="NAME", show_default=False)
    ] = "",
    priority: Annotated[int, option(_WIRE, "1 (highest) to 5; 0 says nothing.", metavar="N")] = 0,
    parameter: Annotated[
        list[str] | None,
        option(
            _WIRE,
            "NAME=VALUE, a further request parameter. May be given several times.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    connections: Annotated[
        int | None,
        option(
            _WIRE,
            "HTTP: most open at once (512); gRPC: channels (1).",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    upload: Annotated[
        str,
        option(
            _WIRE,
            "How long after its headers each body leaves, as over a slow uplink; HTTP only.",
            metavar="TIME",
        ),
    ] = "0s",
    link: Annotated[
        str,
        option(
            _WIRE,
            "What requests travel over: a rate (5Mbit/s), a bandwidth trace (FILE.csv), 4g "
            "or 5g (drawn).",
            metavar="LINK",
            show_default=False,
        ),
    ] = "",
    rtt: Annotated[str, option(_WIRE, "Its round trip.", metavar="TIME")] = "0s",
    shared_link: Annotated[
        bool,
        option(
            _WIRE, "All connections queue for one link; else each has its own.", "--shared-link"
        ),
    ] = False,
    token_file: Annotated[
        Path | None, option(_WIRE, "File with the bearer token.", metavar="FILE")
    ] = None,
    ca_file: Annotated[
        Path | None, option(_WIRE, "Certificates (PEM) to trust over TLS.", metavar="FILE")
    ] = None,
    spin: Annotated[
        bool, option(_WIRE, "Never sleep between sends; takes a core.", "--spin")
    ] = False,
    lateness_warning: Annotated[
        str, option(_REPORT, "Own lateness (p99) above which the report warns.", metavar="TIME")
    ] = "5ms",
    min_goodput: Annotated[
        float | None,
        option(
            _REPORT,
            "Exit 1 if a smaller share is answered in time.",
            metavar="SHARE",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    title: Annotated[
        str, option(_REPORT, "Of the report.", metavar="TEXT", show_default=False)
    ] = "",
    html: Annotated[
        Path | None, option(_REPORT, "Write the report as a page too.", metavar="FILE")
    ] = None,
    json: Annotated[bool, option(_REPORT, "Print JSON.", "--json")] = False,
) -> None:
    """Send open-loop load with deadlines to a server, and report what was answered in time.

    Requests leave when they are due, whatever became of those before; latency counts from then.
    Ctrl-C ends the run and reports what was done.

    Example: slacktide load 127.0.0.1:8000 --model mlp --arrivals poisson:200 --deadline 50ms

    Example: slacktide load grpc://127.0.0.1:8001 --duration 30s --deadline 100ms
    --stream 'model=residual arrivals=gamma:40:cv=3' --stream 'model=dense arrivals=poisson:300'

    Example: slacktide load 127.0.0.1:8000 --model mlp --deadline 1s --link trace.csv --rtt 40ms

    Example: slacktide load 127.0.0.1:8000 --model text --deadline 60ms --stream
    'application=notes arrivals=poisson:90 shape=input_ids=8..24 shape=attention_mask=8..24'
    --stream 'application=essays arrivals=poisson:9 shape=input_ids=200 shape=attention_mask=200'
    """
    if html is not None:
        _can_write_page(html)
    try:
        spec = build_spec(
            target,
            model=model,
            version=version,
            application=application,
            arrivals=arrivals,
            deadline=deadline,
            priority=priority,
            rows=rows,
            shape=shape or (),
            payload=payload,
            parameter=parameter or (),
            stream=stream or (),
            duration=duration,
            warmup=warmup,
            seed=seed,
            connections=connections,
            patience=patience,
            upload=upload,
            link=link,
            rtt=rtt,
            shared_link=shared_link,
            send_deadlines=send_deadlines,
            spin=spin,
            lateness_warning=lateness_warning,
            token_file=token_file,
            ca_file=ca_file,
            title=title,
        )
        with progress_bar(shown=not json) as move:
            report = run_load_sync(spec, lambda at: move(_share(at), _standing(at)))
    except LoadError as error:
        fail(str(error))
    if html is not None:
        _write_page(html, report)
    if json:
        print_json(report.to_dict())
    else:
        console().print(render(report))
    if min_goodput is not None and report.goodput < min_goodput:
        reached, wanted = percent(report.goodput), percent(min_goodput)
        fail(f"goodput {reached} falls short of the {wanted} of --min-goodput", FELL_SHORT)


def _share(at: Progress) -> float:
    return at.elapsed_s / at.length_s


def _standing(at: Progress) -> str:
    """What has come of the run so far, in a few words."""
    judged = percent(at.on_time / at.ended) if at.ended else "–"
    return f"{at.submitted} of {at.planned} sent, {judged} of {at.ended} on time"


def _can_write_page(path: Path) -> None:
    """Fail before the run rather than after it."""
    require_plots("--html")
    if not path.parent.is_dir():
        fail(f"--html: no such folder: {path.parent}")


def _write_page(path: Path, report: Report) -> None:
    try:
        path.write_text(page(report), encoding="utf-8")
    except (OSError, ReportError) as error:
        fail(f"--html: {error}", FELL_SHORT)
