"""Batch times of a model's variants. Variants that are input sizes of one model file follow the law
over sizes (`SizeLaw`); a larger variant is never predicted to be faster than a smaller one."""

from __future__ import annotations

from collections.abc import Sequence

from slacktide.domain import Signature
from slacktide.profiles.known_shape import LAW_SPREAD, WorkScale
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.size_law import SizeLaw, SizeWork, elements


def table_at(
    table: LatencyTable, reference: Signature, sized: Sequence[SizeTime], target: Signature
) -> LatencyTable:
    """The table for rows of shape `target`, given a `table` measured with rows of shape `reference`
    and times `sized` of rows of other sizes.

    A measured size keeps its measured work. Other sizes follow the law over sizes; beyond the range
    measured, p99s are multiplied by `LAW_SPREAD`. Raises ProfileError if `target` is out of reach.
    """
    scale, unit = WorkScale(table), elements(reference)
    works = {1.0: 1.0} | {size: work for (size, _), work in scale.works_of(sized).items()}
    size = elements(target) / unit
    if size in works:
        return scale.table_of(works[size])
    law = SizeLaw.fit([SizeWork(*size_work) for size_work in works.items()])
    if law is None or not law.reaches(size):
        raise ProfileError(f"does not cover rows of shape {[list(shape) for shape in target]}")
    within = law.sizes[0] <= size <= law.sizes[-1]
    return scale.table_of(law.work(size), 1.0 if within else LAW_SPREAD)


def rising(seconds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Return `seconds` by variant (smallest first) and batch (1, 2, …), each raised to at least the
    times of smaller variants and batches. Variants may have different numbers of batches. Source:
    Jellyfish's code, which raises the p99 of a profile in this way."""
    rows: list[tuple[float, ...]] = []
    for column in seconds:
        below = rows[-1] if rows else ()
        least, row = 0.0, []
        for batch, value in enumerate(column):
            least = max(least, value, below[min(batch, len(below) - 1)] if below else 0.0)
            row.append(least)
        rows.append(tuple(row))
    return tuple(rows)
