"""`slacktide profile MODEL --precisions`: the table of backends and precisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from slacktide.cli.output import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slacktide.executors.ports import Executor
    from slacktide.models.profile_cache import ProfileCache, ProfiledModel
    from slacktide.models.repository.repository import ModelDefinition

WAYS = (
    ("fp32", "onnxruntime"),
    ("fp32", "openvino"),
    ("bf16", "openvino"),
    ("int8", "onnxruntime"),
    ("int8", "openvino"),
)
"""Precisions and backends, the model as it is comes first."""


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """A model in one precision and backend."""

    precision: str
    backend: str
    profile: ProfiledModel | None
    reason: str = ""
    """Why it cannot be used; empty if it can."""

    @property
    def row_s(self) -> float:
        """Expected seconds of one row on the most cores."""
        assert self.profile is not None
        table = self.profile.record.table
        return table.expected(1, table.cores[-1])

    @property
    def rows_per_s(self) -> float:
        """Highest throughput of any batch size on the most cores."""
        assert self.profile is not None
        table = self.profile.record.table
        return max(rows / table.expected(rows, table.cores[-1]) for rows in table.batches)

    @property
    def memory(self) -> int:
        """Bytes of a replica's sessions."""
        assert self.profile is not None
        return sum(session.nbytes for session in self.profile.sessions)

    def document(self) -> dict[str, object]:
        """The way for `--json`."""
        head: dict[str, object] = {"precision": self.precision, "backend": self.backend}
        if self.profile is None:
            return head | {"reason": self.reason}
        agreement = self.profile.agreement
        return head | {
            "row_s": self.row_s,
            "rows_per_s": self.rows_per_s,
            "memory": self.memory,
            "agreement": None if agreement is None else asdict(agreement),
            "reason": self.reason,
        }


async def measure_ways(
    executor: Executor,
    profiles: ProfileCache,
    definition: ModelDefinition,
    cores: Sequence[tuple[int, ...]],
    *,
    budget_s: float,
    shown: bool,
) -> list[MeasuredWay]:
    """Measure a model in each of `WAYS`, and store the profiles. Raises MeasuringError if the model
    as it is cannot run."""
    from slacktide.executors.timed_replica import MeasuringError
    from slacktide.models.backends import check_agreement
    from slacktide.models.replica_launcher import source_of

    ways: list[MeasuredWay] = []
    for precision, backend in WAYS:
        update = {"precision": precision, "backend": backend, "variants": None}
        settings = definition.settings.model_copy(update=update)
        way = replace(definition, settings=settings, files={}, variant="")
        profile = None
        try:
            with progress(shown=shown) as move:
                profile = await profiles.measure(
                    way, source_of(way), executor, cores, budget_s=budget_s, progress=move
                )
            check_agreement(way, profile.agreement)
        except MeasuringError as error:
            if not ways:
                raise
            ways.append(MeasuredWay(precision, backend, profile, str(error)))
        else:
            ways.append(MeasuredWay(precision, backend, profile))
    return ways


def print_ways(out: Console, title: str, ways: Sequence[MeasuredWay]) -> None:
    """Print a row for each way that was measured, and a sentence about each that cannot be used."""
    from rich.table import Table

    first = ways[0]
    columns = ("one row", "rows/s", "× rows/s", "same class", "largest error", "memory")
    table = Table("precision", "backend", *columns, title=title)
    for way in ways:
        if way.profile is None:
            continue
        agreement = way.profile.agreement
        agreeing = "–" if agreement is None or agreement.top1 is None else f"{agreement.top1:.1%}"
        table.add_row(
            way.precision,
            way.backend,
            f"{way.row_s * 1e3:.2f} ms",
            f"{way.rows_per_s:.1f}",
            f"{way.rows_per_s / first.rows_per_s:.2f}",
            agreeing,
            "–" if agreement is None else f"{agreement.error:.2%}",
            f"{way.memory / (1 << 20):.0f} MiB",
        )
    out.print(table)
    agreements = [way.profile.agreement for way in ways if way.profile is not None]
    compared = next((agreement for agreement in agreements if agreement is not None), None)
    if compared is not None and not compared.sampled:
        out.print("Answers were compared on random rows; state real ones as 'samples'.")
    for way in ways:
        if way.reason:
            line = f"{way.precision} with {way.backend} is not used: {way.reason}"
            out.print(line, markup=False, highlight=False)
