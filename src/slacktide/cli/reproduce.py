"""`slacktide reproduce PAPER`: published experiments, run again beside the printed figures."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli.output import FELL_SHORT, console, fail, print_json, progress_bar, require_plots

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
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes; default: one for each core.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where every run is kept as soon as it is done, and taken from the next time; "
            "default: in the user's cache folder.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Forget what the state file has.", rich_help_panel=_WHAT),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit 1 if a goal is missed.", rich_help_panel=_REPORT),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write everything as JSON; - for stdout, instead of the tables.",
            rich_help_panel=_REPORT,
            allow_dash=True,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the rows as CSV; - for stdout, instead of the tables.",
            rich_help_panel=_REPORT,
            allow_dash=True,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots.", rich_help_panel=_REPORT),
    ] = None,
) -> None:
    """Orloj (2022): Tables 2 to 5 and Figures 12 to 14, simulated with the engine that serves.

    All of it takes about half an hour on two cores; it can be stopped and goes on where it was.

    Example: slacktide reproduce orloj --quick

    Example: slacktide reproduce orloj table-2 table-3 --setting P --csv rows.csv --html page.html
    """
    from slacktide.load.report.provenance import gather
    from slacktide.reports import ReportError
    from slacktide.reproduce.errors import ReproduceError
    from slacktide.reproduce.orloj.experiments import QUICK, Scope
    from slacktide.reproduce.orloj.page import page
    from slacktide.reproduce.orloj.run import CODE, chosen
    from slacktide.reproduce.orloj.run import reproduce as run
    from slacktide.reproduce.orloj.show import render
    from slacktide.reproduce.orloj.traces import azure_counts
    from slacktide.reproduce.state import Results, fingerprint

    if html is not None:
        require_plots("--html")
    for flag, path in (("--json", json), ("--csv", csv), ("--html", html)):
        if path is not None and not path.parent.is_dir():
            fail(f"{flag}: no such folder: {path.parent}")
    to_stdout = [flag for flag, path in (("--json", json), ("--csv", csv)) if path == Path("-")]
    if len(to_stdout) > 1:
        fail("--json - and --csv - cannot both go to stdout")
    scope = replace(QUICK if quick else Scope(), settings=setting.names)
    if seeds is not None:
        scope = replace(scope, seeds=seeds)
    try:
        if data is not None:
            scope = replace(scope, trace=azure_counts(data))
        experiments = chosen(experiment or ())
        results = Results(state or _default_state(), fingerprint(CODE), fresh=fresh)
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
    try:
        if json is not None:
            if json == Path("-"):
                print_json(result.to_dict())
            else:
                json.write_bytes(result.to_json())
        if csv is not None:
            if csv == Path("-"):
                typer.echo(result.to_csv(), nl=False)
            else:
                csv.write_text(result.to_csv(), encoding="utf-8")
        if html is not None:
            html.write_text(page(result), encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    except ReportError as error:
        fail(f"--html: {error}", FELL_SHORT)
    if not to_stdout:
        console().print(render(result))
    if check and result.falls_short:
        missed = sum(not goal.met for goal in result.goals)
        fail(f"{missed} of {len(result.goals)} goals missed", FELL_SHORT)


def _default_state() -> Path:
    """In the user's cache folder (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache else Path.home() / ".cache"
    return folder / "slacktide" / "reproduce-orloj.jsonl"
