"""`slacktide reproduce PAPER`: published experiments, run again beside the printed figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from slacktide.cli import (
    FELL_SHORT,
    ExtensionGroup,
    can_write,
    console,
    fail,
    make_command,
    print_json,
    progress,
)
from slacktide.executors import allowed_processors

if TYPE_CHECKING:
    from slacktide_papers.harness import Publication, Reproduction


class _Publications(ExtensionGroup):
    """The group with a command for each paper, including papers of other Python packages."""

    kind = "publication"

    def make(self, name: str, extension: Any) -> Any:
        from slacktide_papers.harness import Publication

        if not isinstance(extension, Publication):
            kind = type(extension).__name__
            fail(f"publication {name!r} cannot be used: expected a Publication, got a {kind}")
        return make_command(name, _command(name, _help_of(name, extension), lambda: extension))


reproduce = typer.Typer(
    name="reproduce",
    cls=_Publications,
    add_completion=False,
    help="Rerun a published evaluation, and compare our figures with the published ones.",
    no_args_is_help=True,
)

Load: TypeAlias = "Callable[[], Publication[Any, Any, Any, Any, Any]]"
_WHAT = "What to measure"
_REPORT = "Output"


@dataclass(frozen=True, slots=True)
class PaperHelp:
    """Help texts of a paper's command, and of its options whose meaning depends on the paper."""

    about: str
    experiments: str
    quick: str
    seeds: str
    data: str
    setting: str = ""
    """Help of `--setting`. If this or one of the next three is empty, there is no such option."""
    instances: str = ""
    """Help of `--instances`: a file of a user's instances, which `plan` plans."""
    table: str = ""
    """Help of `--table`: files with a user's exit tables."""
    inputs: str = ""
    """Help of `--inputs`: how many inputs of each stream are played."""


PAPERS = {
    "orloj": PaperHelp(
        """Orloj (2022): Tables 2 to 5 and Figures 12 to 14, simulated with the server's engine.

    The whole evaluation takes under 40 minutes on two idle cores and can be interrupted.

    Example: slacktide reproduce orloj --quick

    Example: slacktide reproduce orloj table-2 table-3 --setting P --csv rows.csv --html page.html
    """,
        experiments="table-2, table-3, table-4, table-5, figure-12, figure-13, figure-14; "
        "default: all of them.",
        quick="One seed, fewer requests, cases and SLOs: under two minutes on two idle cores.",
        seeds="Runs of each row, 5 by default; Q, notice and figures have at most 3.",
        data="Folder with the Azure Functions 2019 trace, which determines the arrivals; "
        "default: arrivals are drawn as the setting states.",
        setting="P: calibrated on the paper's tables; Q: padding dominates; or both.",
    ),
    "sponge": PaperHelp(
        """Sponge (2024): Figures 1, 3 and 4 and Table 1, then harder settings, simulated with the
    server's engine and planners.

    Example: slacktide reproduce sponge --quick

    Example: slacktide reproduce sponge figure-4 --data traces --json figure-4.json --html page.html
    """,
        experiments="figure-1, table-1, figure-3, figure-4, varied, harder; default: all of them.",
        quick="One seed, a minute of traffic, fewer policies: under two minutes on two idle cores.",
        seeds="Runs of each row whose arrivals are drawn; default: 3.",
        data="Folder with the public bandwidth traces and latencies; default: bandwidths are "
        "drawn from a seed, without Figure 3.",
    ),
    "jellyfish": PaperHelp(
        """Jellyfish (2022): Figures 10 to 21 and Table 2, simulated with the server's engine and
    planner and the client library, beside the published system.

    Example: slacktide reproduce jellyfish --quick

    Example: slacktide reproduce jellyfish figure-12 table-2 --data traces --html page.html

    Example: slacktide reproduce jellyfish plan --instances instances.json
    """,
        experiments="figure-10, figure-11, figure-12 (with 13), figure-14, figure-15, table-2, "
        "figure-16, figure-17, figure-18, figure-19, ablations; default: all of them. `plan`: only "
        "the instances of --instances.",
        quick="A few settings of each experiment, 20 s each: under two minutes on two idle cores.",
        seeds="Runs of each row; default: 1.",
        data="Folder with the public bandwidth traces, frame sizes and profile; default: traces "
        "are drawn from a seed.",
        instances="With `plan`: JSON file of instances; prints each planner's choice, its "
        "objective and its time.",
    ),
    "apparate": PaperHelp(
        """Apparate (2024): Figures 9, 11 and 13 to 18 and Tables 1 to 4, simulated with the
    server's engine and planner, from the answers of ramps in the example models.

    The first run plays whole streams to the models, which takes one core about ten minutes per
    video. Training features stay in the user's cache folder (1.4 GB in all). The run can be
    interrupted and resumed.

    Example: slacktide reproduce apparate --quick

    Example: slacktide reproduce apparate figure-13 figure-16 --inputs 3000

    Example: slacktide reproduce apparate table-2 --table mine.npz --html page.html
    """,
        experiments="figure-9, figure-11, figure-13 (with 14), figure-16 (with 15), table-2 (with "
        "1), figure-17, figure-17-videos, figure-18, table-3, table-4, modes, deadline, hours, "
        "capacity, capacity-hours; default: all of them. `live`, only if named, plays three "
        "streams to a real server.",
        quick="Two videos of 4,000 frames, ramps trained on the first quarter: under four "
        "minutes on two idle cores.",
        seeds="Number of seeds for the arrivals of texts; default: 1.",
        data="Folder with the Azure Functions 2019 trace, which determines the arrivals "
        "of texts; default: they are drawn from a seed.",
        table="File with your exit table (docs/internals/exits.md states the format), played "
        "instead of the examples'. May be given several times.",
        inputs="Number of inputs to play of each stream after its first tenth, on which ramps are "
        "trained; default: all.",
    ),
    "octopinf": PaperHelp(
        """OctopInf (2025): Figures 6 to 11, simulated: nine edge devices with cameras and a server,
    the links between them, and the policies that place the stages of pipelines on them.

    The whole evaluation takes hours and can be interrupted and resumed.

    Example: slacktide reproduce octopinf --quick

    Example: slacktide reproduce octopinf figure-6 figure-8 --data traces --html page.html
    """,
        experiments="figure-6 (with 7), figure-8, figure-9, figure-10, figure-11, surges, "
        "all-five (ours, not the paper's), contention; default: all of them.",
        quick="One seed, 20 s of each run, fewer experiments: under three minutes on two idle "
        "cores.",
        seeds="Runs of each row, 3 by default; figure-11 and surges have one.",
        data="Folder with the public object counts and 5G bandwidths; default: drawn from a seed.",
    ),
}
"""By name of a folder of `slacktide_papers`, whose module `paper` defines `PAPER`."""


def _help_of(name: str, paper: Publication[Any, Any, Any, Any, Any]) -> PaperHelp:
    """Help for a paper of another Python package."""
    return PaperHelp(
        f"{paper.title}\n\n    Example: slacktide reproduce {name} --quick\n    ",
        experiments=f"{', '.join(paper.experiments)}; default: all that need not be named.",
        quick=f"Shorter runs: {paper.quick.size}.",
        seeds=f"Runs of each row; default: {paper.scope.seeds}.",
        data="Folder with recorded data, if the paper uses any.",
    )


def _options(paper: PaperHelp) -> Iterator[Parameter]:
    """Options of a paper's command, in the order of its help."""

    def parameter(name: str, kind: Any, about: Any, default: Any = None) -> Parameter:
        annotation = Annotated[kind, about]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def option(name: str, kind: Any, help: str, panel: str = _WHAT, **more: Any) -> Parameter:
        about = typer.Option(f"--{name}", help=help, rich_help_panel=panel, **more)
        return parameter(name, kind, about, False if kind is bool else None)

    listed = typer.Argument(metavar="[EXPERIMENT]...", help=paper.experiments, show_default=False)
    yield parameter("experiment", list[str] | None, listed)
    if paper.setting:
        about = typer.Option(help=paper.setting, rich_help_panel=_WHAT, case_sensitive=False)
        yield parameter("setting", Literal["P", "Q", "both"], about, "both")
    if paper.instances:
        yield option("instances", Path | None, paper.instances, metavar="FILE")
    if paper.table:
        yield option("table", list[Path] | None, paper.table, metavar="FILE")
    number: dict[str, Any] = {"min": 1, "metavar": "N"}
    if paper.inputs:
        yield option("inputs", int | None, paper.inputs, **number)
    file: dict[str, Any] = {"panel": _REPORT, "metavar": "FILE", "allow_dash": True}
    yield option("quick", bool, paper.quick)
    yield option("seeds", int | None, paper.seeds, **number)
    yield option("data", Path | None, paper.data, metavar="DIR")
    yield option("jobs", int | None, "Number of processes; default: one for each core.", **number)
    state = "File with the results of finished runs, which are not repeated; "
    state += "default: in the user's cache folder."
    yield option("state", Path | None, state, metavar="FILE")
    yield option("fresh", bool, "Discard the results in the state file.")
    yield option("check", bool, "Exit 1 if a goal is missed.", _REPORT)
    as_json = "Write all results as JSON; - writes them to stdout instead of the tables."
    yield option("json", Path | None, as_json, **file)
    as_csv = "Write the rows as CSV; - writes them to stdout instead of the tables."
    yield option("csv", Path | None, as_csv, **file)
    yield option("html", Path | None, "Write an HTML page with plots.", _REPORT, metavar="FILE")


def _command(name: str, paper: PaperHelp, load: Load) -> Callable[..., None]:
    """The command of a paper. Its signature is built here, because typer reads options from it."""

    def command(**options: Any) -> None:
        _reproduce(name, load, **options)

    command.__doc__ = paper.about
    parameters = list(_options(paper))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _reproduce(
    name: str,
    load: Load,
    *,
    experiment: list[str] | None,
    quick: bool,
    seeds: int | None,
    data: Path | None,
    jobs: int | None,
    state: Path | None,
    fresh: bool,
    check: bool,
    json: Path | None,
    csv: Path | None,
    html: Path | None,
    setting: str | None = None,
    instances: Path | None = None,
    table: list[Path] | None = None,
    inputs: int | None = None,
) -> None:
    if (instances is not None) != (experiment == ["plan"]):
        fail(
            "--instances: expected `plan` as the only experiment, and `plan` needs --instances FILE"
        )
    if instances is not None:
        _plan(instances, json)
        return
    # One BLAS thread per process, because every core has a process; set before NumPy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from slacktide.lab.load.report import gather
    from slacktide_papers.harness.run import reproduce as run
    from slacktide_papers.harness.state import ReproduceError, Results, fingerprint

    paper = load()
    can_write({"--json": json, "--csv": csv, "--html": html})
    if json == csv == Path("-"):
        fail("--json - and --csv - cannot both go to stdout")
    jobs = jobs or len(allowed_processors())
    scope = paper.quick if quick else paper.scope
    if setting is not None:
        scope = replace(scope, settings=("P", "Q") if setting == "both" else (setting,))
    if seeds is not None:
        scope = replace(scope, seeds=seeds)
    if inputs is not None:
        scope = replace(scope, inputs=inputs)
    try:
        experiments = paper.chosen(experiment or ())
        if data is not None:
            scope = paper.with_data(scope, data, experiments)
        if table:
            scope = scope.with_tables(table)
        if state is None:  # the user's cache folder (XDG Base Directory Specification)
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            state = cache / "slacktide" / f"reproduce-{name}.jsonl"
        results = Results(state, fingerprint(paper.code), fresh=fresh)
        with progress() as move:
            if paper.prepare is not None:
                scope = paper.prepare(scope, experiments, jobs=jobs, moved=move)
            result = run(
                paper, experiments, scope, results, provenance=gather(), jobs=jobs, moved=move,
                quick=quick,
            )  # fmt: skip
    except ReproduceError as error:
        fail(str(error))
    except KeyboardInterrupt as interrupt:
        finished = f"{interrupt} stored in {state}" if interrupt.args else "finished work is stored"
        command = "the same command without --fresh" if fresh else "the same command"
        typer.echo(f"interrupted: {finished}; {command} continues from there", err=True)
        raise
    _deliver(result, json, csv, html)
    missed = sum(not goal.met for goal in result.goals)
    if check and missed:
        fail(f"{missed} of {len(result.goals)} goals missed", FELL_SHORT)


def _plan(path: Path, json: Path | None) -> None:
    """Print what each planner chooses for the instances in the file `path`, or write it as JSON."""
    import orjson

    from slacktide.lab.reports import rich_table
    from slacktide_papers.harness.show import table
    from slacktide_papers.harness.state import ReproduceError
    from slacktide_papers.jellyfish.instances import COLUMNS, PLANS, planned, read_instances

    can_write({"--json": json})
    try:
        plans = [plan for name, fleet in read_instances(path) for plan in planned(name, fleet)]
    except ReproduceError as error:
        fail(str(error))
    if json == Path("-"):
        print_json(plans)
        return
    if json is not None:
        json.write_bytes(orjson.dumps(plans, option=orjson.OPT_INDENT_2))
    console().print(rich_table(table(PLANS, plans, COLUMNS, words=3)))


def _deliver(
    result: Reproduction[Any, Any, Any], json: Path | None, csv: Path | None, html: Path | None
) -> None:
    """Write the files and print the result. Exits if that fails."""
    from slacktide.lab.reports import ReportError
    from slacktide_papers.harness.show import page, render

    stdout = Path("-")
    try:
        if json == stdout:
            print_json(result.to_dict())
        elif json is not None:
            json.write_bytes(result.to_json())
        if csv == stdout:
            typer.echo(result.to_csv(), nl=False)
        elif csv is not None:
            csv.write_text(result.to_csv(), encoding="utf-8")
        if html is not None:
            html.write_text(page(result), encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", FELL_SHORT)
    except ReportError as error:
        fail(f"--html: {error}", FELL_SHORT)
    if stdout not in (json, csv):
        console().print(render(result))


def _load_ours(name: str) -> Publication[Any, Any, Any, Any, Any]:
    return import_module(f"slacktide_papers.{name}.paper").PAPER  # type: ignore[no-any-return]


for _name, _paper in PAPERS.items():
    reproduce.command(_name)(_command(_name, _paper, partial(_load_ours, _name)))
