"""`slacktide profile MODEL`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slacktide.cli.output import (
    FELL_SHORT,
    can_write,
    console,
    fail,
    print_json,
    progress_bar,
    seconds_of,
    write_page,
)

if TYPE_CHECKING:
    from rich.console import Console

    from slacktide.profiles import ProfileRecord


def profile(
    model: Annotated[
        Path, typer.Argument(help="A model's folder, e.g. models/resnet, or one ONNX file.")
    ],
    version: Annotated[
        str | None, typer.Option(help="Only this version; default: all served versions.")
    ] = None,
    cores: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Core count to measure; may be given several times; default: 1, 2, 4, … all.",
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time per version.")] = "10s",
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Measure until every p99 has samples enough of its own (200)."
        ),
    ] = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the profile if the model's folder is read-only.",
            envvar="SLACKTIDE_STATE_DIR",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Page to write with plots of latency by cores and batch, measured and modelled."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model's latency by batch size and cores, and store it beside the model.

    Example: slacktide profile models/residual --budget 20s --plot profile.html
    """
    from slacktide.executors.cores import available_cores
    from slacktide.executors.process import ProcessExecutor
    from slacktide.executors.synthetic_inputs import assumptions_of
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.models.core_layout import assign_lanes
    from slacktide.models.profile_cache import ProfileCache, ProfiledModel
    from slacktide.models.replica_launcher import source_of
    from slacktide.models.repository.errors import RepositoryError
    from slacktide.models.repository.profile_store import ProfileStore
    from slacktide.models.repository.repository import ModelDefinition
    from slacktide.models.repository.single_model import SingleModel, open_repository
    from slacktide.profiles.amdahl import fit_grid
    from slacktide.reports import profile_page

    seconds = seconds_of("--budget", budget)
    can_write({"--plot": plot}, page="--plot")
    folder = model.resolve()
    usable = tuple(available_cores())
    doubling = {1 << power for power in range(len(usable).bit_length())}
    counts = sorted(set(cores or doubling | {len(usable)}))
    if counts[-1] > len(usable):
        fail(f"--cores: expected at most {len(usable)}, got {counts[-1]}")
    try:
        repository = open_repository(folder if folder.is_file() else folder.parent, state_dir)
        name = repository.model if isinstance(repository, SingleModel) else folder.name
        definitions = repository.read(name)
    except RepositoryError as error:
        fail(str(error))
    if version is not None:
        definitions = tuple(d for d in definitions if d.version == version)
        if not definitions:
            fail(f"--version: {version!r} is not served")
    profiles = ProfileCache(ProfileStore(state_dir))

    def threads_of(definition: ModelDefinition) -> tuple[int, ...]:
        """Of its sessions if it were served here alone; none if its cores stay as they are."""
        layout = assign_lanes({definition.name: definition.settings}, usable, allow_fewer=True)
        lane = layout.scaled_lane(definition.name)
        return () if lane is None else lane.threads(definition.settings)

    assumed: list[str] = []

    async def measure_all() -> list[tuple[str, ProfiledModel]]:
        executor = ProcessExecutor()
        try:
            found = []
            for definition in definitions:
                source = source_of(definition, threads_of(definition))
                with progress_bar(shown=not json) as move:
                    known = await profiles.measure(
                        definition,
                        source,
                        executor,
                        [usable[:count] for count in counts],
                        budget_s=seconds,
                        thorough=thorough,
                        progress=move,
                    )
                found.append((definition.version, known))
                shapes, guess = known.record.shapes, known.guess
                assumed.extend(assumptions_of(source, known.interface, shapes, guess))
                if guess:
                    raise MeasuringError(assumed[-1])
            return found
        finally:
            await executor.close()

    try:
        found = asyncio.run(measure_all())
    except MeasuringError as error:
        fail(str(error), FELL_SHORT)
    records = {number: known.record for number, known in found}
    write_page("--plot", plot, lambda: profile_page(name, records))
    if json:
        fits = {
            number: {
                "p99": fit_grid(table.batches, table.cores, table.p99_s).to_dict(),
                "p50": fit_grid(table.batches, table.cores, table.p50_s).to_dict(),
            }
            for number, table in ((number, one.table) for number, one in records.items())
        }
        print_json(
            {number: {**known.record.to_dict(), "fit": fits[number]} for number, known in found}
        )
        return
    for number, known in found:
        _print(console(), f"{name} version {number}", known.record)
        sizes = ", ".join(
            f"{size.nbytes / (1 << 20):.0f} MiB (threads: {size.threads})"
            for size in known.sessions
        )
        console().print(f"memory of a replica's sessions: {sizes}")  # in the order of opening
    for sentence in dict.fromkeys(assumed):
        console().print(f"assumed: {sentence}", markup=False, highlight=False)


def _print(out: Console, title: str, record: ProfileRecord) -> None:
    from rich.bar import Bar
    from rich.table import Table

    from slacktide.profiles import show
    from slacktide.profiles.amdahl import fit_grid

    table = record.table
    measured = Table(*show.headings(table), title=title)
    for row in show.lines(table):
        measured.add_row(*row)
    out.print(measured)
    for line in [*show.summary(table), show.FOOTNOTE]:
        out.print(line)
    if sizes := show.size_lines(record):
        others = Table(*show.size_headings(record), title="rows of other sizes")
        for cells in sizes:
            others.add_row(*cells)
        out.print(others)
    if (law := show.size_law(record)) is not None:
        out.print(show.law_formula(law))
    for name, grid in (("p50", table.p50_s), ("p99", table.p99_s)):
        fit = fit_grid(table.batches, table.cores, grid)
        out.print(f"\n{name}: {show.formula(fit.model)}\n{show.fit_summary(fit)}")
    bars = Table(*show.FIT_HEADINGS, "measured (log)", "model (log)", title="p99 and its model")
    for cells, (length, modelled) in zip(show.fit_lines(fit), show.bar_lengths(fit), strict=True):
        bars.add_row(*cells, *(Bar(1.0, 0.0, part, width=16) for part in (length, modelled)))
    out.print(bars)
    out.print(show.FIT_FOOTNOTE)
