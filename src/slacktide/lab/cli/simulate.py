"""`slacktide simulate SCENARIO.yaml`: worlds in virtual time, cell by cell and seed by seed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slacktide.cli import (
    FELL_SHORT,
    can_write,
    console,
    fail,
    option,
    print_json,
    progress,
    require_goodput,
    seconds_of,
    share_of,
    write_page,
)
from slacktide.executors import allowed_processors

if TYPE_CHECKING:
    from slacktide.lab.load.report import Report
    from slacktide.lab.simulation.scenario import Cell, Sweep

_WHAT = "Scenario"
_RECORDING = "Recordings"
_HOW = "Execution"
_REPORT = "Output"


_OF_REPLAY = frozenset(("replay", "decisions", "request", "json", "allow_imports"))
_OF_PREDICT = frozenset(("predict", "after", "hindsight", "seed", "json", "allow_imports"))
"""Parameters that apply with --replay, and with --predict."""


def simulate(
    context: typer.Context,
    scenario: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCENARIO.yaml]",
            help="Scenario file; leave it out with --replay or --predict.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        option(
            _WHAT,
            "Replace a key of the scenario, e.g. scheduler=edf or applications.web.slo=50ms. "
            "May be given several times.",
            "--set",
            envvar="SLACKTIDE_SIMULATE_SET",
            metavar="KEY=VALUE",
        ),
    ] = None,
    allow_imports: Annotated[
        bool,
        option(
            _WHAT,
            "Allow the scenario or recording to name classes to import: scheduler=module:Class.",
            "--allow-imports",
        ),
    ] = False,
    seed: Annotated[
        list[int] | None,
        option(_WHAT, "Replace the scenario's seeds. May be given several times.", metavar="N"),
    ] = None,
    duration: Annotated[
        str | None, option(_WHAT, "Replace the scenario's duration.", metavar="TIME")
    ] = None,
    jobs: Annotated[
        int | None,
        option(
            _HOW,
            "Number of processes; default: one for each core, but no more than runs.",
            "--jobs",
            "-j",
            min=1,
            metavar="N",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        option(
            _REPORT, "Write the figures as CSV, one line for each cell and stream.", metavar="FILE"
        ),
    ] = None,
    html: Annotated[
        Path | None, option(_REPORT, "Also write the report as an HTML page.", metavar="FILE")
    ] = None,
    requests: Annotated[
        Path | None,
        option(
            _REPORT,
            "Single runs only: write one line of CSV per request, and compute exact percentiles.",
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, option(_REPORT, "Print JSON.", "--json")] = False,
    min_goodput: Annotated[
        float | None,
        option(
            _REPORT,
            "Exit 1 if the mean goodput of a cell is below this share (0.95, 95%).",
            metavar="SHARE",
            parser=share_of,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        option(
            _RECORDING,
            "Replay a recording of `serve --record`; exit 1 unless the engine issues the "
            "same commands.",
            metavar="FILE",
        ),
    ] = None,
    decisions: Annotated[
        bool,
        option(
            _RECORDING, "With --replay: explain each batch and each dropped request.", "--decisions"
        ),
    ] = False,
    request: Annotated[
        int | None,
        option(
            _RECORDING,
            "With --replay: explain only the decisions about this request.",
            metavar="ID",
        ),
    ] = None,
    predict: Annotated[
        Path | None,
        option(
            _RECORDING,
            "Predict the outcomes of recorded requests from their arrivals, and compare "
            "them with the recorded outcomes.",
            metavar="FILE",
        ),
    ] = None,
    after: Annotated[
        str,
        option(
            _RECORDING,
            "With --predict: replay this much of the recording first, to learn batch times.",
            metavar="TIME",
        ),
    ] = "0s",
    hindsight: Annotated[
        bool,
        option(
            _RECORDING,
            "With --predict: draw batch times from batches that ran at the same moment of the "
            "recording. Remaining differences are modelling errors.",
        ),
    ] = False,
) -> None:
    """Run a scenario in virtual time, with the server's own engine and schedulers.

    A scenario with a grid or several seeds prints a table of means and standard errors, any other
    prints the report of `slacktide load`. Ctrl-C shows the results so far.

    Example: slacktide simulate examples/scenarios/bursty-classifier.yaml

    Example: slacktide simulate examples/scenarios/two-tenants.yaml --set grid={} --seed 1
    --seed 2 --html page.html

    Example: slacktide simulate --replay server.rec --request 4711

    Example: slacktide simulate --predict server.rec --after 30s
    """
    parameters = frozenset(parameter.name or "" for parameter in context.command.params)
    if replay is not None or predict is not None:
        from slacktide.models import admit_all, offer_entry_points

        offer_entry_points()
        if allow_imports:
            admit_all()
    if replay is not None:
        from slacktide.lab.cli.recordings import replay_recording

        _refuse(context, parameters - _OF_REPLAY, "--replay")
        raise typer.Exit(replay_recording(replay, decisions=decisions, request=request, json=json))
    if predict is not None:
        from slacktide.lab.cli.recordings import predict_recording

        _refuse(context, parameters - _OF_PREDICT, "--predict")
        begin = seconds_of("--after", after)
        raise typer.Exit(
            predict_recording(
                predict, after=begin, hindsight=hindsight, seeds=seed or (), json=json
            )
        )
    if scenario is None:
        fail("SCENARIO.yaml: expected a scenario, --replay FILE or --predict FILE")
    _refuse(context, (_OF_REPLAY | _OF_PREDICT) - {"seed", "json", "allow_imports"}, "a scenario")
    can_write({"--html": html, "--csv": csv, "--requests": requests})
    keys = [*(set_ or ()), *([] if duration is None else [f"duration={duration}"])]
    keys += [f"seeds={seed}"] if seed else []
    sweep, single = _swept(scenario, keys, requests, jobs=jobs, quiet=json, imports=allow_imports)
    if not sweep.rows:
        fail("interrupted before the first result", FELL_SHORT)
    _deliver(sweep, sweep.rows[0].reports[0] if single else None, csv, html, json=json)
    if sweep.interrupted:
        fail("interrupted", FELL_SHORT)
    worst = min(sweep.rows, key=lambda row: row.goodput.mean)
    require_goodput(worst.goodput.mean, min_goodput, f" of {worst.name!r}")


def _swept(
    scenario: Path,
    keys: Sequence[str],
    requests: Path | None,
    *,
    jobs: int | None,
    quiet: bool,
    imports: bool,
) -> tuple[Sweep, bool]:
    """Run a scenario. Return its results, and whether it is a single run."""
    from slacktide.lab.simulation.scenario import ScenarioError, check_cell, read_scenario

    try:
        cells = read_scenario(scenario, keys, imports=imports)
        for cell in cells:  # find all faults before anything runs
            check_cell(cell)
        single = len(cells) == 1 and len(cells[0].scenario.seeds) == 1
        if requests is not None and not single:
            fail("--requests: expected one run, without a grid and with one seed")
        return _run(cells, jobs=jobs, quiet=quiet, requests=requests), single
    except ScenarioError as error:
        fail("\nerror: ".join(error.problems))
    except OSError as error:
        fail(f"--requests: {error.strerror}: {requests}", FELL_SHORT)


def _deliver(
    sweep: Sweep, report: Report | None, csv: Path | None, html: Path | None, *, json: bool
) -> None:
    """Write and print the results, or the `report` of the one run."""
    from slacktide.lab.reports import page, render, render_sweep, sweep_page

    write_page("--csv", csv, sweep.to_csv)
    write_page("--html", html, lambda: sweep_page(sweep) if report is None else page(report))
    if json:
        print_json(sweep.to_dict() if report is None else report.to_dict())
    else:
        console().print(render_sweep(sweep) if report is None else render(report))


def _refuse(context: typer.Context, names: frozenset[str], mode: str) -> None:
    """Fail if the command line gives one of these parameters, which `mode` would ignore.

    The environment may give them, because it is set for many calls.
    """
    for parameter in context.command.params:
        if parameter.name in names:
            source = context.get_parameter_source(parameter.name)
            if source is not None and source.name == "COMMANDLINE":
                flag = "SCENARIO.yaml" if parameter.name == "scenario" else parameter.opts[0]
                fail(f"{flag} has no effect with {mode}: leave it out")


def _run(
    cells: Sequence[Cell], *, jobs: int | None, quiet: bool, requests: Path | None = None
) -> Sweep:
    """Run every cell with every seed; if interrupted, return the results so far."""
    from dataclasses import replace

    from slacktide.lab.load.report import Report
    from slacktide.lab.simulation.scenario import (
        collected,
        done_in_processes,
        run_cell,
        run_task,
        task_of,
    )

    runs = {
        (number, index): (cell, seed)
        for number, cell in enumerate(cells)
        for index, seed in enumerate(cell.scenario.seeds)
    }
    jobs = min(jobs or len(allowed_processors()), len(runs))
    reports: dict[tuple[int, int], Report] = {}
    interrupted = False
    with progress(shown=not quiet) as move:

        def standing(under_way: float = 0.0) -> None:
            done = len(reports) + under_way
            move(done / len(runs), f"{len(reports)} of {len(runs)} runs")

        standing()
        try:
            if jobs == 1:
                gc.freeze()  # do not scan the objects of imports again: 5 % faster
                for place, run in runs.items():
                    reports[place] = run_cell(*run, progress=standing, requests=requests)
                    standing()
            else:
                tasks = [(place, task_of(*run)) for place, run in runs.items()]
                for place, document in done_in_processes(run_task, tasks, jobs=jobs):
                    reports[place] = Report.from_dict(document)
                    standing()
        except KeyboardInterrupt:
            interrupted = True
    sweep = collected(cells[0].scenario.title, [cell.labels for cell in cells], reports)
    return replace(sweep, interrupted=interrupted)
