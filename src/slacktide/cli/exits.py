"""`slacktide exits add MODEL --data SAMPLES`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slacktide.cli.arguments import ModelPath, StateDir, open_model
from slacktide.cli.output import FELL_SHORT, console, fail, print_json, progress

if TYPE_CHECKING:
    from slacktide.exits.training import PooledRows
    from slacktide.models.exit_samples import LearntRamps
    from slacktide.models.repository.repository import ModelDefinition

exits = typer.Typer(
    name="exits", help="Learn where a classifier can answer early.", add_completion=False
)


@exits.callback()
def _group() -> None:
    """Learn where a classifier can answer early."""


@exits.command()
def add(
    model: ModelPath,
    data: Annotated[
        Path,
        typer.Option(
            help="An .npz file with rows like those of real requests, in order of arrival: "
            "an array for each input, with the batch axis first.",
            exists=True,
            dir_okay=False,
        ),
    ],
    rare: Annotated[
        Path | None,
        typer.Option(
            help="An .npz file with rows of classes that are rare in --data. Half of them train "
            "ramps, the others judge which answers are kept.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Share of answers that may change, for the column 'may leave'; default: the "
            "model's setting accuracy_loss, or 1%."
        ),
    ] = None,
    state_dir: StateDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learn ramps for a model from samples, and store them with the model.

    A model with early_exit in its settings also learns from its requests; samples give it ramps
    from the start. The last samples are used to measure how often each ramp gives the model's
    answer. No labels are needed.

    Example: slacktide exits add models/residual --data frames.npz --loss 0.5%
    """
    from slacktide.cli.output import share_of
    from slacktide.executors.cores import available_cores
    from slacktide.executors.process import ProcessExecutor
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.exits.errors import ExitError
    from slacktide.models.exit_files import find_ramps, find_rare, save_ramps, save_rare
    from slacktide.models.exit_samples import learn_from_samples
    from slacktide.models.repository.errors import RepositoryError
    from slacktide.models.repository.profile_store import ProfileStore, model_hash

    loss_share = None if loss is None else share_of(loss)
    try:
        _, name, definitions = open_model(model, state_dir)
    except RepositoryError as error:
        fail(str(error))
    if definitions[0].settings.variants is not None:
        fail(f"{name} has variants; model families have no early exits")
    store, learnt = ProfileStore(state_dir), {}

    def find_kept(definition: ModelDefinition, place: Path) -> PooledRows | None:
        """Return rare rows that were supplied earlier."""
        return find_rare(place, model_hash(definition))

    async def learn_all() -> None:
        executor = ProcessExecutor()
        try:
            for definition in definitions:
                place = await asyncio.to_thread(store.exits_folder, definition)
                try:
                    previous = await asyncio.to_thread(find_ramps, definition, place)
                except ExitError as error:
                    typer.echo(f"replacing the previous ramps: {error}", err=True)
                    previous = None
                with progress(shown=not json) as move:
                    ramps = await learn_from_samples(
                        executor,
                        definition,
                        data,
                        cores=tuple(available_cores()),
                        revision=1 if previous is None else previous.revision + 1,
                        rare=rare or await asyncio.to_thread(find_kept, definition, place),
                        progress=move,
                    )
                await asyncio.to_thread(save_ramps, definition, place, ramps.manifest)
                if rare is not None and ramps.rare is not None:
                    sha256 = ramps.manifest.model_sha256
                    await asyncio.to_thread(save_rare, place, ramps.rare, sha256)
                learnt[definition.version] = ramps
        finally:
            await executor.close()

    try:
        asyncio.run(learn_all())
    except (ExitError, MeasuringError, RepositoryError) as error:
        fail(str(error), FELL_SHORT)
    settings = definitions[0].settings.exits
    default_loss = 0.01 if settings is None else settings.accuracy_loss
    target_loss = default_loss if loss_share is None else loss_share
    if json:
        print_json({number: _document(ramps, target_loss) for number, ramps in learnt.items()})
        return
    for number, version_ramps in learnt.items():
        _print(f"{name} version {number}", version_ramps, target_loss)
    if settings is None:
        console().print(
            "To let requests leave early, set early_exit in slacktide.yaml (such as 1%)."
        )


def _document(learnt: LearntRamps, loss: float) -> dict[str, object]:
    manifest = learnt.manifest
    return {
        "revision": manifest.revision,
        "rows": manifest.rows,
        "model_sha256": manifest.model_sha256,
        "outputs": manifest.outputs,
        "rare_rows": _rare_rows(learnt),
        "accuracy_loss": loss,
        "ramps": [
            {
                "position": ramp.position,
                "tensor": ramp.tensor,
                "cost": ramp.cost,
                "features": len(ramp.weights),
                "temperature": ramp.temperature,
                "agreement": ramp.agreement,
                "may_leave": judged.leaving(loss),
            }
            for ramp, judged in zip(manifest.ramps, learnt.judged, strict=True)
        ],
    }


def _rare_rows(learnt: LearntRamps) -> dict[str, int]:
    """Return the number of supplied rows, by the class that the model gave them."""
    classes = () if learnt.rare is None else learnt.rare.logits.argmax(axis=1).tolist()
    return {str(number): count for number, count in sorted(Counter(classes).items())}


def _print(title: str, learnt: LearntRamps, loss: float) -> None:
    from rich.table import Table

    from slacktide.domain.units import percent

    headings = ("position", "tensor", "cost before", "features", "agrees", "may leave")
    table = Table(*headings, title=title)
    for ramp, judged in zip(learnt.manifest.ramps, learnt.judged, strict=True):
        table.add_row(
            str(ramp.position),
            ramp.tensor,
            percent(ramp.cost),
            str(len(ramp.weights)),
            percent(ramp.agreement),
            percent(judged.leaving(loss)),
        )
    out = console()
    out.print(table)
    manifest, newest = learnt.manifest, len(learnt.judged[0].agrees)
    out.print(
        f"learnt from {manifest.rows} rows, tested on the last {newest}; "
        f"revision {manifest.revision}\n"
        "agrees: rows for which the ramp gives the model's answer; may leave: rows that could "
        f"leave if this were the only ramp and {percent(loss)} of the answers could change"
    )
    if rare_rows := _rare_rows(learnt):
        counts = ", ".join(f"class {number}: {count}" for number, count in rare_rows.items())
        out.print(f"rare rows, half of them judged: {counts}")
