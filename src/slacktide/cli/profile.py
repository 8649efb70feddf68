"""`slacktide profile MODEL`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slacktide._extensions import import_named
from slacktide.cli.arguments import ModelPath, StateDir, open_model
from slacktide.cli.flags import Glue, offer_glue
from slacktide.cli.output import (
    FELL_SHORT,
    can_write,
    console,
    fail,
    print_json,
    progress,
    seconds_of,
    write_page,
)

_MOST_CLASSES = 25

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slacktide.executors.ports import ModelSource
    from slacktide.executors.process import ProcessExecutor
    from slacktide.models.labelled.comparison import VariantAccuracy
    from slacktide.models.labelled.images import LabelledSet
    from slacktide.models.profile_cache import MeasuredAccuracies, ProfileCache, ProfiledModel
    from slacktide.models.repository.repository import ModelDefinition
    from slacktide.profiles import LatencyTable, ProfileRecord


def profile(
    model: ModelPath,
    version: Annotated[
        str | None, typer.Option(help="Measure only this version; default: all served versions.")
    ] = None,
    cores: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of cores to measure; may be given several times; default: 1, 2, 4, … all.",
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time to spend on each version.")] = "10s",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Measure until every p99 has enough samples (200).")
    ] = False,
    state_dir: StateDir = None,
    accuracy: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images (COCO, YOLO, a folder for each class, or labels.jsonl): also "
            "measure and store the accuracy of each variant of a family.",
            exists=True,
        ),
    ] = None,
    precisions: Annotated[
        bool,
        typer.Option(
            "--precisions",
            help="Instead compare fp32, bf16 and int8, with ONNX Runtime and OpenVINO: time, "
            "rows/s, agreement of the answers, memory. int8 needs the model's samples.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="HTML file for plots of measured and modelled latency by cores and batch size."
        ),
    ] = None,
    glue: Glue = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model's latency by batch size and cores, and store it with the model.

    Example: slacktide profile models/residual --budget 20s --plot profile.html
    """
    from slacktide.cli.main import PROFILE_PAGE
    from slacktide.executors.core_probe import busy_warning
    from slacktide.executors.cores import available_cores
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.models.labelled.images import DataError
    from slacktide.models.profile_cache import ProfileCache
    from slacktide.models.repository.errors import RepositoryError
    from slacktide.models.repository.profile_store import ProfileStore

    seconds = seconds_of("--budget", budget)
    can_write({"--plot": plot}, page="--plot")
    offer_glue(glue)
    usable = tuple(available_cores())
    counts = _core_counts(cores, len(usable))
    profiles = ProfileCache(ProfileStore(state_dir))
    name, definitions = _definitions(model, version, state_dir, profiles)
    labelled = None if accuracy is None else _labelled(accuracy, name, definitions)
    groups = [usable[:count] for count in counts]
    if precisions:
        _precisions(definitions, profiles, groups, seconds, json=json)
        return
    session = _Session(profiles, usable, groups, seconds, thorough=thorough, shown=not json)
    try:
        asyncio.run(session.run(definitions, labelled))
    except (MeasuringError, RepositoryError) as error:
        fail(str(error), FELL_SHORT)
    except DataError as error:
        fail(f"--accuracy: {error}", FELL_SHORT)
    records = {_label(definition): model.record for definition, model in session.models}
    shares = [record.cpu_share for record in records.values() if record.cpu_share is not None]
    warning = busy_warning(min(shares, default=None))
    write_page("--plot", plot, lambda: import_named(PROFILE_PAGE)(name, records))
    if json:
        if warning:
            typer.echo(warning, err=True)
        print_json(_document(session))
        return
    if warning:
        console().print(warning, style="bold")
    _print_session(console(), name, definitions, session)


def _precisions(
    definitions: Sequence[ModelDefinition],
    profiles: ProfileCache,
    groups: Sequence[tuple[int, ...]],
    seconds: float,
    *,
    json: bool,
) -> None:
    """Measure and print the table of backends and precisions of each version."""
    from slacktide.cli.precisions import MeasuredWay, measure_ways, print_ways
    from slacktide.executors.process import ProcessExecutor
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.models.repository.errors import RepositoryError

    async def measured() -> dict[str, list[MeasuredWay]]:
        executor = ProcessExecutor()
        try:
            return {
                f"{definition.name} version {definition.version}": await measure_ways(
                    executor, profiles, definition, groups, budget_s=seconds, shown=not json
                )
                for definition in definitions
            }
        finally:
            await executor.close()

    try:
        tables = asyncio.run(measured())
    except (MeasuringError, RepositoryError) as error:
        fail(str(error), FELL_SHORT)
    if json:
        print_json({title: [way.document() for way in ways] for title, ways in tables.items()})
        return
    for title, ways in tables.items():
        print_ways(console(), title, ways)


def _core_counts(cores: Sequence[int] | None, usable: int) -> list[int]:
    """Core counts to measure: the given counts, else the powers of two and all cores."""
    doubling = {1 << power for power in range(usable.bit_length())}
    counts = sorted(set(cores or doubling | {usable}))
    if counts[-1] > usable:
        fail(f"--cores: expected at most {usable}, got {counts[-1]}")
    return counts


def _definitions(
    model: Path, version: str | None, state_dir: Path | None, profiles: ProfileCache
) -> tuple[str, tuple[ModelDefinition, ...]]:
    """The name and served versions of a model. Adds the models of pipelines to
    `profiles.stages`."""
    from slacktide.models.repository.errors import RepositoryError

    try:
        repository, name, definitions = open_model(model, state_dir)
        pipelines = [listed.pipeline for listed in repository.scan() if listed.pipeline is not None]
    except RepositoryError as error:
        fail(str(error))
    if version is not None:
        definitions = tuple(d for d in definitions if d.version == version)
        if not definitions:
            fail(f"--version: {version!r} is not served")
    profiles.stages.update(*(pipeline.models for pipeline in pipelines))
    return name, definitions


def _labelled(path: Path, name: str, definitions: Sequence[ModelDefinition]) -> LabelledSet:
    """Read the images for measuring the accuracy of variants."""
    from slacktide.executors.decoders.labels import names_in
    from slacktide.executors.onnx_file import OnnxFile
    from slacktide.executors.onnx_runtime import ModelError
    from slacktide.models.labelled.images import DataError
    from slacktide.models.labelled.reading import read_labels

    first = definitions[0]
    if first.settings.variants is None:
        fail(f"--accuracy: {name} has no variants; add them to its slacktide.yaml")
    try:
        names = first.labels or names_in(OnnxFile(first.model_path, first.data_root).metadata)
        return read_labels(path, names)
    except ModelError as error:
        fail(f"{first.where}: {error}")
    except DataError as error:
        fail(f"--accuracy: {error}")


class _Session:
    """Measures models, and holds the results."""

    def __init__(
        self,
        profiles: ProfileCache,
        cores: tuple[int, ...],
        groups: Sequence[tuple[int, ...]],
        seconds: float,
        *,
        thorough: bool,
        shown: bool,
    ) -> None:
        """`groups` of cores are measured for `seconds` per version."""
        self.profiles = profiles
        self.models: list[tuple[ModelDefinition, ProfiledModel]] = []
        self.accuracies: dict[str, tuple[VariantAccuracy, ...]] = {}
        """Accuracies of variants, by version."""
        self.stages: dict[str, list[str]] = {}
        """Lines to print about early exits, by version."""
        self.assumptions: list[str] = []
        """Sentences about assumed inputs."""
        self._cores, self._groups = cores, groups
        self._seconds, self._thorough, self._shown = seconds, thorough, shown

    async def run(
        self, definitions: Sequence[ModelDefinition], labelled: LabelledSet | None
    ) -> None:
        """Measure times, accuracy on `labelled` images, and early exits. Raises MeasuringError,
        RepositoryError and DataError."""
        from slacktide.executors.process import ProcessExecutor
        from slacktide.models.families import profiled_files

        executor = ProcessExecutor()
        try:
            for definition in (file for version in definitions for file in profiled_files(version)):
                await self._measure(executor, definition)
            if labelled is not None:
                for definition in definitions:
                    await self._measure_accuracy(executor, definition, labelled)
            for definition in definitions:
                await self._time_exits(executor, definition)
        finally:
            await executor.close()

    async def _measure(self, executor: ProcessExecutor, definition: ModelDefinition) -> None:
        from slacktide.executors.row_check import dependence_warning
        from slacktide.executors.synthetic_inputs import assumptions_of
        from slacktide.executors.timed_replica import MeasuringError
        from slacktide.models.profile_cache import label_of
        from slacktide.models.replica_launcher import source_of

        source = source_of(definition, self._threads(definition))
        with progress(shown=self._shown) as move:
            model = await self.profiles.measure(
                definition,
                source,
                executor,
                self._groups,
                budget_s=self._seconds,
                thorough=self._thorough,
                progress=move,
            )
        self.models.append((definition, model))
        shapes, guess = model.record.shapes, model.guess
        if source.image_sizes:
            source = replace(source, warmup_shapes=shapes)
        self.assumptions.extend(assumptions_of(source, model.interface, shapes, guess))
        if guess:
            raise MeasuringError(self.assumptions[-1])
        if model.dependence:
            reason = dependence_warning(model.dependence)
            typer.echo(f"warning: {label_of(definition)}: {reason}", err=True)

    def _threads(self, definition: ModelDefinition) -> tuple[int, ...]:
        """Thread counts of a model's sessions if served alone; empty if its cores are fixed."""
        from slacktide.models.core_layout import assign_lanes

        settings = {definition.name: definition.settings}
        lane = assign_lanes(settings, self._cores, allow_fewer=True).scaled_lane(definition.name)
        return () if lane is None else lane.threads(definition.settings)

    async def _measure_accuracy(
        self,
        executor: ProcessExecutor,
        definition: ModelDefinition,
        labelled: LabelledSet,
    ) -> None:
        from slacktide.models.labelled.comparison import accuracy_document
        from slacktide.models.labelled.measuring import measure_accuracy

        with progress(shown=self._shown) as move:
            measured = self.accuracies[definition.version] = await measure_accuracy(
                executor, definition, labelled, cores=self._cores, progress=move
            )
        self.profiles.save_accuracies(definition, accuracy_document(measured, labelled))

    async def _time_exits(self, executor: ProcessExecutor, definition: ModelDefinition) -> None:
        from slacktide.models.replica_launcher import source_of
        from slacktide.models.repository.profile_store import model_hash

        if (exits := self.profiles.exit_source(definition)) is not None:
            source = replace(source_of(definition, ()), exits=exits)
            self.stages[definition.version] = await _stage_lines(
                executor, source, self._cores[:1], model_hash(definition)
            )


def _document(session: _Session) -> dict[str, object]:
    """The document for `--json`."""
    from slacktide.profiles.amdahl import fit_grid

    document: dict[str, object] = {}
    for definition, model in session.models:
        table = model.record.table
        fits = {
            "p99": fit_grid(table.batches, table.cores, table.p99_s).to_dict(),
            "p50": fit_grid(table.batches, table.cores, table.p50_s).to_dict(),
        }
        document[_label(definition)] = {**model.record.to_dict(), "fit": fits}
    if session.accuracies:
        document["accuracy"] = session.accuracies
    if session.stages:
        document["early_exits"] = session.stages
    return document


def _print_session(
    out: Console, name: str, definitions: Sequence[ModelDefinition], session: _Session
) -> None:
    """Print all results as tables and lines."""
    from slacktide.models.learnt import size_table

    for definition, model in session.models:
        _print(out, f"{name} version {_label(definition)}", model.record)
        sizes = ", ".join(
            f"{size.nbytes / (1 << 20):.0f} MiB (threads: {size.threads})"
            for size in model.sessions
        )
        out.print(f"memory of a replica's sessions: {sizes}")  # in the order of opening
    for line in (line for lines in session.stages.values() for line in lines):
        out.print(line, markup=False, highlight=False)
    for definition in definitions:
        if definition.settings.variants is None:
            continue
        models = [model for file, model in session.models if file.version == definition.version]
        first, sides = models[0], definition.settings.variants.sizes
        tables = [size_table(first.record, first.interface, side) for side in sides]
        tables = tables or [model.record.table for model in models]
        scores = session.accuracies.get(definition.version, ())
        stored = session.profiles.accuracies(definition)
        _print_variants(out, definition, tables, scores, stored)
        if scores:
            _print_classes(out, scores)
    for sentence in dict.fromkeys(session.assumptions):
        out.print(f"assumed: {sentence}", markup=False, highlight=False)


async def _stage_lines(
    executor: ProcessExecutor, source: ModelSource, cores: tuple[int, ...], model_sha256: str
) -> list[str]:
    """Lines with the time until each ramp answers, and the overhead of all ramps, on one core."""
    from slacktide.domain import ExitPolicy, PoolId
    from slacktide.executors.measuring import measure_stages
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.exits.errors import ExitError
    from slacktide.exits.manifest import read_manifest

    assert source.exits is not None
    if not (source.exits.folder / "manifest.json").exists():
        return ["early exits: no ramps learnt yet"]
    try:
        manifest = read_manifest(source.exits.folder, model_sha256=model_sha256)
        ramps = tuple(range(len(manifest.ramps)))
        pool = PoolId(source.name, source.version)
        policy = ExitPolicy(pool, ramps, (0.0,) * len(ramps), revision=manifest.revision)
        times = await measure_stages(executor, source, policy, cores=cores)
    except (ExitError, MeasuringError) as error:
        return [f"early exits: {error}"]
    lines = []
    for rows, whole, stage_ends in zip(times.rows, times.whole_s, times.stage_s, strict=True):
        overhead = f"all ramps add {stage_ends[-1] / whole - 1:.1%}"
        lines.append(f"early exits, batch {rows}, 1 core: model {whole * 1e3:.2f} ms, {overhead}")
        for tensor, end in zip(manifest.positions, stage_ends, strict=False):
            lines.append(f"  {end * 1e3:8.2f} ms ({end / whole:.0%})  {tensor}")
    return lines


def _label(definition: ModelDefinition) -> str:
    variant = f"@{definition.variant}" if definition.variant else ""
    return f"{definition.version}{variant}"


def _print_variants(
    out: Console,
    definition: ModelDefinition,
    tables: Sequence[LatencyTable],
    scores: Sequence[VariantAccuracy],
    stored: MeasuredAccuracies,
) -> None:
    """Print a row for each variant: its accuracy, its latency, and whether it is worth serving.
    `scores`: accuracies just measured, if any."""
    from rich.table import Table

    from slacktide.models.families import accuracies, worth_serving

    assert definition.settings.variants is not None
    measured = stored.by_name
    accuracy, _ = accuracies(definition.settings.variants, measured)
    served, _ = worth_serving(accuracy, stored.differences)
    cores = tables[0].cores
    headings = [f"p99 alone, {count} core{'s' * (count > 1)}" for count in cores]
    differs = bool(measured) and any(
        measured.get(name) != share for name, share in accuracy.items()
    )
    columns = ["stated", "measured"] if differs else ["accuracy"]
    columns += ["95 %", "AP50", "F1"] if scores else []
    by_name = {score.variant: score for score in scores}
    variants = Table("variant", *columns, *headings, "served", title="variants")
    for (name, share), table in zip(accuracy.items(), tables, strict=True):
        cells = [_share(share), _share(measured.get(name))] if differs else [_share(share)]
        if scores:
            score = by_name[name]
            low, high = score.interval
            cells += [f"{low:.3f} to {high:.3f}", _share(score.ap50), _share(score.f1)]
        cells += [f"{table.p99(1, count) * 1e3:.2f} ms" for count in cores]
        variants.add_row(name, *cells, "yes" if name in served else "no")
    out.print(variants)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.3f}"


def _print_classes(out: Console, scores: Sequence[VariantAccuracy]) -> None:
    """Print a row for each of the commonest classes, with the accuracy and F1 of each variant."""
    from rich.markup import escape
    from rich.table import Table

    ranked = sorted(scores[0].classes.items(), key=lambda pair: -pair[1].count)
    metric = "top-1" if scores[0].ap50 is None else "AP50:95"
    headings = [f"{score.variant} {metric}, F1" for score in scores]
    classes = Table("class", "count", *headings, title="classes")
    for name, common in ranked[:_MOST_CLASSES]:
        parts = (score.classes[name] for score in scores)
        cells = (f"{part.accuracy:.3f} {part.f1:.3f}" for part in parts)
        heading = escape(name if name.isprintable() else ascii(name))
        classes.add_row(heading, str(common.count), *cells)
    out.print(classes)
    if len(ranked) > _MOST_CLASSES:
        out.print(f"{len(ranked) - _MOST_CLASSES} rarer classes are listed only by --json")


def _print(out: Console, title: str, record: ProfileRecord) -> None:
    from rich.bar import Bar
    from rich.table import Table

    from slacktide.profiles import is_quiet, show
    from slacktide.profiles.amdahl import fit_grid

    table = record.table
    measured = Table(*show.headings(table), title=title)
    for row in show.lines(table):
        measured.add_row(*row)
    out.print(measured)
    quiet = is_quiet(record.cpu_share)
    for line in [*(show.summary(table) if quiet else ()), show.FOOTNOTE]:
        out.print(line)
    if sizes := show.size_lines(record):
        other_sizes = Table(*show.size_headings(record), title="other row sizes")
        for cells in sizes:
            other_sizes.add_row(*cells)
        out.print(other_sizes)
    if (law := show.size_law(record)) is not None:
        out.print(show.law_formula(law))
    if not quiet:
        return
    for name, grid in (("p50", table.p50_s), ("p99", table.p99_s)):
        fit = fit_grid(table.batches, table.cores, grid)
        out.print(f"\n{name}: {show.formula(fit.model)}\n{show.fit_summary(fit)}")
    bars = Table(*show.FIT_HEADINGS, "measured (log)", "model (log)", title="p99 and its model")
    for cells, (length, modelled) in zip(show.fit_lines(fit), show.bar_lengths(fit), strict=True):
        bars.add_row(*cells, *(Bar(1.0, 0.0, part, width=16) for part in (length, modelled)))
    out.print(bars)
    out.print(show.FIT_FOOTNOTE)
