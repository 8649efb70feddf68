"""`slacktide reproduce PAPER`: published experiments, run again beside the printed figures."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli.output import fail, progress_bar
from slacktide.cli.reproducing import Wanted

reproduce = typer.Typer(
    name="reproduce",
    help="Run a published experiment again, and set our figures beside the printed ones.",
    no_args_is_help=True,
)

_WHAT = "What to measure"
_REPORT = "What comes of it"


class Settings(StrEnum):
    """What `--setting` may be."""

    P = "P"
    Q = "Q"
    BOTH = "both"

    @property
    def names(self) -> tuple[str, ...]:
        return ("P", "Q") if self is Settings.BOTH else (self.value,)


_Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Processes; default: one for each core.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
_State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where every run is kept as soon as it is done, and taken from the next time; "
        "default: in the user's cache folder.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
_Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Forget what the state file has.", rich_help_panel=_WHAT),
]
_Check = Annotated[
    bool,
    typer.Option("--check", help="Exit 1 if a goal is missed.", rich_help_panel=_REPORT),
]
_Json = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write everything as JSON; - for stdout, instead of the tables.",
        rich_help_panel=_REPORT,
        allow_dash=True,
    ),
]
_Csv = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the rows as CSV; - for stdout, instead of the tables.",
        rich_help_panel=_REPORT,
        allow_dash=True,
    ),
]
_Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a page with plots.", rich_help_panel=_REPORT),
]


@reproduce.command()
def orloj(
    experiment: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="table-2, table-3, table-4, table-5, figure-12, figure-13, figure-14; "
            "default: all of them.",
            show_default=False,
        ),
    ] = None,
    setting: Annotated[
        Settings,
        typer.Option(
            case_sensitive=False,
            help="P, calibrated on the paper's tables; Q, where padding dominates; or both.",
            rich_help_panel=_WHAT,
        ),
    ] = Settings.BOTH,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed, fewer requests, cases and SLOs: under two minutes.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs of each row, 5 by default; Q, notice and figures have at most 3.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the Azure Functions 2019 trace, whose counts the arrivals then "
            "follow; default: arrivals drawn by the setting.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    jobs: _Jobs = None,
    state: _State = None,
    fresh: _Fresh = False,
    check: _Check = False,
    json: _Json = None,
    csv: _Csv = None,
    html: _Html = None,
) -> None:
    """Orloj (2022): Tables 2 to 5 and Figures 12 to 14, simulated with the engine that serves.

    All of it takes about half an hour on two cores; it can be stopped and goes on where it was.

    Example: slacktide reproduce orloj --quick

    Example: slacktide reproduce orloj table-2 table-3 --setting P --csv rows.csv --html page.html
    """
    from slacktide.load.report.provenance import gather
    from slacktide.reproduce.errors import ReproduceError
    from slacktide.reproduce.harness.run import reproduce as run
    from slacktide.reproduce.harness.show import page, render
    from slacktide.reproduce.orloj.paper import PAPER
    from slacktide.reproduce.state import Results, fingerprint

    wanted = Wanted(json, csv, html, check=check)
    scope = replace(PAPER.quick if quick else PAPER.scope, settings=setting.names)
    if seeds is not None:
        scope = replace(scope, seeds=seeds)
    try:
        if data is not None:
            scope = PAPER.with_data(scope, data)
        experiments = PAPER.chosen(experiment or ())
        results = Results(state or _default_state("orloj"), fingerprint(PAPER.code), fresh=fresh)
        with progress_bar() as move:
            result = run(
                PAPER,
                experiments,
                scope,
                results,
                provenance=gather(),
                jobs=jobs or len(os.sched_getaffinity(0)),
                moved=move,
            )
    except ReproduceError as error:
        fail(str(error))
    wanted.deliver(result, render=render, page=page)


@reproduce.command()
def sponge(
    experiment: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="figure-1, table-1, figure-3, figure-4, varied, harder; default: all of them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed, a minute of traffic, fewer policies: under a minute.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs of each row whose arrivals are drawn; default: 3.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the public bandwidth traces and latencies; default: bandwidths drawn "
            "from a seed, and no Figure 3.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    jobs: _Jobs = None,
    state: _State = None,
    fresh: _Fresh = False,
    check: _Check = False,
    json: _Json = None,
    csv: _Csv = None,
    html: _Html = None,
) -> None:
    """Sponge (2024): Figures 1, 3 and 4 and Table 1, then harder settings, simulated with the
    engine and the planners that serve.

    Example: slacktide reproduce sponge --quick

    Example: slacktide reproduce sponge figure-4 --data traces --json figure-4.json --html page.html
    """
    from slacktide.load.report.provenance import gather
    from slacktide.reproduce.errors import ReproduceError
    from slacktide.reproduce.sponge.experiments import QUICK, Scope
    from slacktide.reproduce.sponge.page import page
    from slacktide.reproduce.sponge.run import CODE, chosen
    from slacktide.reproduce.sponge.run import reproduce as run
    from slacktide.reproduce.sponge.show import render
    from slacktide.reproduce.state import Results, fingerprint

    wanted = Wanted(json, csv, html, check=check)
    scope = replace(QUICK if quick else Scope(), folder=data)
    if seeds is not None:
        scope = replace(scope, seeds=seeds)
    try:
        experiments = chosen(experiment or ())
        results = Results(state or _default_state("sponge"), fingerprint(CODE), fresh=fresh)
        with progress_bar() as move:
            result = run(
                experiments,
                scope,
                results,
                provenance=gather(),
                jobs=jobs or len(os.sched_getaffinity(0)),
                moved=move,
            )
    except ReproduceError as error:
        fail(str(error))
    wanted.deliver(result, render=render, page=page)


def _default_state(paper: str) -> Path:
    """In the user's cache folder (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache else Path.home() / ".cache"
    return folder / "slacktide" / f"reproduce-{paper}.jsonl"
