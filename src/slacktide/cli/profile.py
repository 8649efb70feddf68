"""`slacktide profile MODEL`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli.output import FELL_SHORT, console, fail, print_json, progress_bar
from slacktide.repository.units import parse_seconds


def profile(
    model: Annotated[Path, typer.Argument(help="A model's folder, e.g. models/resnet.")],
    version: Annotated[
        str | None, typer.Option(help="Just this version; default: all that are served.")
    ] = None,
    cores: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Core count to measure; several times; default: 1, 2, 4, … all."),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time per version.")] = "10s",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Measure on until every p99 is its own.")
    ] = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where the profile goes if the model's folder is read-only.",
            envvar="SLACKTIDE_STATE_DIR",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model's latency by batch size and cores, and store it beside the model.

    Example: slacktide profile models/residual --budget 20s
    """
    from rich.table import Table

    from slacktide.executors import ProcessExecutor, available_cores
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.profiles import show
    from slacktide.repository import ModelDefinition, ProfileStore, Repository, RepositoryError
    from slacktide.server.lanes import lay_out
    from slacktide.server.launching import source_of
    from slacktide.server.shelf import KnownModel, ProfileShelf

    try:
        seconds = parse_seconds(budget)
    except ValueError as error:
        fail(f"--budget: {error}")
    folder = model.resolve()
    usable = tuple(available_cores())
    counts = sorted(set(cores)) if cores else _doubling(len(usable))
    if counts[-1] > len(usable):
        fail(f"--cores: expected at most {len(usable)}, got {counts[-1]}")
    try:
        definitions = Repository(folder.parent).read(folder.name)
    except RepositoryError as error:
        fail(str(error))
    if version is not None:
        definitions = tuple(d for d in definitions if d.version == version)
        if not definitions:
            fail(f"--version: {version!r} is not served")
    shelf = ProfileShelf(ProfileStore(state_dir))

    def threads_of(definition: ModelDefinition) -> tuple[int, ...]:
        """Of its sessions if it were served here alone; none if its cores stay as they are."""
        layout = lay_out({definition.name: definition.settings}, usable, allow_fewer=True)
        lane = layout.scaled_lane(definition.name)
        return () if lane is None else lane.threads(definition.settings)

    async def measure_all() -> list[tuple[str, KnownModel]]:
        executor = ProcessExecutor()
        try:
            found = []
            for definition in definitions:
                with progress_bar(shown=not json) as move:
                    known = await shelf.measure(
                        definition,
                        source_of(definition, threads_of(definition)),
                        executor,
                        [usable[:count] for count in counts],
                        budget_s=seconds,
                        thorough=thorough,
                        progress=move,
                    )
                found.append((definition.version, known))
            return found
        finally:
            await executor.close()

    try:
        found = asyncio.run(measure_all())
    except MeasuringError as error:
        fail(str(error), FELL_SHORT)
    if json:
        print_json({number: known.record.to_dict() for number, known in found})
        return
    out = console()
    for number, known in found:
        table = Table(*show.headings(known.record.table), title=f"{folder.name} version {number}")
        for row in show.lines(known.record.table):
            table.add_row(*row)
        out.print(table)
        for line in [*show.summary(known.record.table), show.FOOTNOTE]:
            out.print(line)


def _doubling(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    counts = []
    count = 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]
