"""`slacktide load TARGET`. Most of its flags and their texts come from `slacktide.lab.load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slacktide.cli import (
    can_write,
    console,
    fail,
    option,
    print_json,
    progress,
    require_goodput,
    share_of,
    with_flags,
    write_page,
)
from slacktide.lab.load.flags import LoadFlags

if TYPE_CHECKING:
    from slacktide.lab.load.run import Progress

_REPORT = "Output"


@with_flags(LoadFlags, after="target")
def load(
    target: Annotated[
        str,
        typer.Argument(
            help="HOST, HOST:PORT, or a URL whose scheme chooses the protocol: http://, https://, "
            "grpc:// or grpcs://.",
            metavar="TARGET",
        ),
    ],
    min_goodput: Annotated[
        float | None,
        option(
            _REPORT,
            "Exit 1 if goodput is below this share (0.95, 95%).",
            metavar="SHARE",
            parser=share_of,
        ),
    ] = None,
    html: Annotated[
        Path | None, option(_REPORT, "Also write the report as an HTML page.", metavar="FILE")
    ] = None,
    json: Annotated[bool, option(_REPORT, "Print JSON.", "--json")] = False,
    **flags: Any,
) -> None:
    """Send open-loop load with deadlines, and report how much was answered on time.

    Each request is sent when it is due, even if earlier ones have no answer yet; latency counts
    from then. Ctrl-C ends the run and reports the results so far.

    Example: slacktide load 127.0.0.1:8000 --model mlp --arrivals poisson:200 --deadline 50ms

    Example: slacktide load grpc://127.0.0.1:8001 --duration 30s --deadline 100ms
    --stream 'model=residual arrivals=gamma:40:cv=3' --stream 'model=dense arrivals=poisson:300'

    Example: slacktide load 127.0.0.1:8000 --model mlp --deadline 1s --link trace.csv --rtt 40ms

    Example: slacktide load 127.0.0.1:8000 --model text --deadline 60ms --stream
    'application=notes arrivals=poisson:90 shape=input_ids=8..24 shape=attention_mask=8..24'
    --stream 'application=essays arrivals=poisson:9 shape=input_ids=200 shape=attention_mask=200'
    """
    from slacktide.lab.load.build import NO_MODEL, build_spec
    from slacktide.lab.load.generate import run_load_sync
    from slacktide.lab.load.spec import LoadError
    from slacktide.lab.reports import page, render

    can_write({"--html": html})
    try:
        spec = build_spec(target, **flags)
        with progress(shown=not json) as move:
            report = run_load_sync(spec, lambda at: move(at.elapsed_s / at.length_s, _standing(at)))
    except LoadError as error:
        files = flags["token_file"], flags["ca_file"]
        is_unnamed = str(error).endswith(NO_MODEL)
        fail(f"{error}{_models_of(target, *files) if is_unnamed else ''}")
    write_page("--html", html, lambda: page(report))
    if json:
        print_json(report.to_dict())
    else:
        console().print(render(report))
    require_goodput(report.goodput, min_goodput)


def _models_of(target: str, token_file: Path | None, ca_file: Path | None) -> str:
    """Return the end of a message: the models that the server has, or why they are unknown."""
    import uvloop

    from slacktide.lab.load.build import parse_target
    from slacktide.lab.load.discover import model_names
    from slacktide.lab.load.spec import LoadError

    try:
        at = parse_target(target, token_file=token_file, ca_file=ca_file)
        return f", one of: {', '.join(uvloop.run(model_names(at))) or '(none is served)'}"
    except LoadError as error:
        return f" ({error})"


def _standing(at: Progress) -> str:
    """State of the run so far, in a few words."""
    from slacktide.domain import percent

    judged = percent(at.on_time / at.ended) if at.ended else "–"
    return f"{at.submitted} of {at.planned} sent, {judged} of {at.ended} on time"
