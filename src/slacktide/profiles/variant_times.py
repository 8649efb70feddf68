"""Times of a model's variants: of those that are sizes of one file, by the law over sizes; of all,
such that a larger variant is never predicted to be faster."""

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
    """The table for rows of shape `target`, where `table` was measured with rows of `reference` and
    `sized` beside it.

    A size that was measured has the work that it showed. Others have what the law over sizes says
    of them, with a p99 that is `LAW_SPREAD` wider outside of what was measured. Raises ProfileError
    if the law cannot tell.
    """
    scale, unit = WorkScale(table), elements(reference)
    works = {1.0: 1.0} | {size: work for (size, _), work in scale.works_of(sized).items()}
    size = elements(target) / unit
    if size in works:
        return scale.table_of(works[size])
    law = SizeLaw.fit([SizeWork(*size_work) for size_work in works.items()])
    if law is None or not law.reaches(size):
        raise ProfileError(f"says nothing of rows of shape {[list(shape) for shape in target]}")
    within = law.sizes[0] <= size <= law.sizes[-1]
    return scale.table_of(law.work(size), 1.0 if within else LAW_SPREAD)


def rising(seconds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Times by variant (smallest first) and batch (1, 2, …), raised where one would be below that
    of a smaller variant or batch. A variant of fewer batches ends as it did. Source: Jellyfish's
    code, which raises the p99 of a profile likewise."""
    rows: list[tuple[float, ...]] = []
    for column in seconds:
        below = rows[-1] if rows else ()
        least, row = 0.0, []
        for batch, value in enumerate(column):
            least = max(least, value, below[min(batch, len(below) - 1)] if below else 0.0)
            row.append(least)
        rows.append(tuple(row))
    return tuple(rows)
